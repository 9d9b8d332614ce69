//! What goes wrong on a real cluster while sixteen real sandboxes act: each episode goes on
//! elsewhere, settles once, keeps every acknowledged step and uses up no retry. What each fault cost
//! is printed.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::command::wait_for;
use longhaul_tests::slurm::Options;
use longhaul_tests::slurm::figures::{self, Fault};
use longhaul_tests::slurm::world::{Live, POOL, SANDBOXES, STEPS, WAITS, World, now, number};
use nix::sys::signal::Signal;

/// Slurm's own default, which sites keep; the cluster's is shorter.
const KILL_WAIT: &str = "KillWait=30\n";

/// The one job that all of them are in.
fn job(live: &[Live]) -> Result<&str> {
    let first = live.first().context("nothing acts")?;
    ensure!(live.iter().all(|it| it.job == first.job), "they are in several jobs: {live:?}");
    Ok(&first.job)
}

#[test]
fn what_an_allocation_gives_back_at_its_end_goes_on_in_another_one() -> Result<()> {
    let options = Options { conf: KILL_WAIT, ..Options::default() };
    let world = World::new("given-back", &options, &format!("{POOL}partition = \"low\"\nrequeue = true\n"))?;
    let mut running = world.start_clocks(SANDBOXES, WAITS)?;

    let first = world.all_acting(&mut running, SANDBOXES, STEPS, &[])?;
    let cancelled = Fault::new("scancel", &first);
    world.cluster().admin(["scancel", job(&first)?])?;
    let second = world.all_acting(&mut running, SANDBOXES, STEPS, &first)?;
    cancelled.over(&world, &second)?;

    // A job of a higher partition takes the node, and Slurm puts the allocation back into the queue.
    let preempted = Fault::new("preemption with requeue", &second);
    let node = format!("--nodelist={}", second[0].node);
    let mut higher = world.cluster().command(Path::new("sbatch"));
    higher.args(["--partition=high", "--exclusive", &node, "--chdir=/", "--output=/dev/null", "--wrap=sleep 20"]);
    let answer = higher.output()?;
    ensure!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let gone: Vec<Live> = first.iter().chain(&second).cloned().collect();
    let third = world.all_acting(&mut running, SANDBOXES, STEPS, &gone)?;
    preempted.over(&world, &third)?;

    // The end of its time comes near: Slurm sends the warning, a minute before.
    let soon = Command::new("date").args(["--date=+75 seconds", "+EndTime=%FT%T"]).output()?;
    let limited = Fault::new("time limit (warned within 45 s)", &third);
    let (soon, job) = (String::from_utf8(soon.stdout)?, format!("JobId={}", job(&third)?));
    world.cluster().admin(["scontrol", "update", &job, soon.trim()])?;
    let gone: Vec<Live> = gone.iter().chain(&third).cloned().collect();
    let fourth = world.all_acting(&mut running, SANDBOXES, STEPS, &gone)?;
    limited.over(&world, &fourth)?;

    running.end()?.expect_code(0)?;
    figures::run(&world, "all of these faults", SANDBOXES)?;
    // Each time all sixteen were given back, and their sandboxes gone, within the ten seconds of these tests.
    let (told, late) = (world.logged("told to stop; leases")?, world.logged("the grace is over")?);
    ensure!(told.len() >= 3 && late.is_empty(), "{told:#?} {late:#?}");
    let seen: Vec<Live> = gone.into_iter().chain(fourth).collect();
    world.expect_whole(SANDBOXES, &seen, &["preempted"])?;
    world.expect_nothing(&[])
}

#[test]
fn neither_a_node_that_loses_power_nor_a_killed_coordinator_costs_more_than_attempts() -> Result<()> {
    let world = World::new("lost", &Options::default(), POOL)?;
    let mut serving = world.serve()?;
    let access = world.place().access().display().to_string();
    let clocks = world.clocks(SANDBOXES, WAITS)?;
    let benchmark = world.place().path("clocks").display().to_string();
    let submit = ["run", &*benchmark, "--coordinator", &*access, "--detach"];
    world.longhaul(submit.into_iter().chain(clocks.iter().map(String::as_str))).end()?.expect_code(0)?;

    let first = world.all_acting(&mut serving, SANDBOXES, STEPS, &[])?;
    let lost = Fault::new("power loss of a node", &first);
    let node = number(&first[0].node)?;
    world.cluster().node("node-off", node)?;
    let second = world.all_acting(&mut serving, SANDBOXES, STEPS, &first)?;
    lost.over(&world, &second)?;
    ensure!(second.iter().all(|it| it.node != first[0].node), "{second:?}");
    world.cluster().node("node-on", node)?;

    // Away for longer than a lease lasts, so that everything is parked; and at another port then.
    let killed = Fault::new("coordinator killed, away for 15 s", &second);
    let before = world.jobs()?;
    serving.signal(Signal::SIGKILL)?;
    serving.end()?;
    std::thread::sleep(Duration::from_secs(15));
    let mut serving = world.serve()?;
    ensure!(world.jobs()? == before, "something else was asked for");
    let third = wait_for("steps after the coordinator's restart", Duration::from_secs(300), || {
        ensure!(serving.runs()?, "the coordinator ended");
        let live = world.live()?;
        let on = second.iter().all(|old| live.iter().any(|it| it.attempt == old.attempt && it.steps > old.steps));
        Ok(on.then_some(live))
    })?;
    killed.went_on(&third)?;

    world.longhaul(["watch", "latest", "--coordinator", &*access]).end()?.expect_code(0)?;
    figures::run(&world, "both of these faults", SANDBOXES)?;
    for episode in 0..SANDBOXES {
        ensure!(world.attempts(episode)?.len() == 2, "the coordinator's death cost attempts");
    }
    // With nothing to do, the worker's allocation is ended.
    wait_for("the end of the idle worker", Duration::from_secs(120), || Ok(world.jobs()?.is_empty().then_some(())))?;
    serving.stop()?;
    let seen: Vec<Live> = first.into_iter().chain(second).chain(third).collect();
    world.expect_whole(SANDBOXES, &seen, &["worker_lost", "preempted"])?;
    world.expect_nothing(&[node])
}

/// An administrator wants a node empty.
fn drain(world: &World, node: &str) -> Result<()> {
    let node = format!("NodeName={node}");
    world.cluster().admin(["scontrol", "update", &node, "State=DRAIN", "Reason=a new disk"]).map(drop)
}

/// There is one worker at a time, so that what waits gets its place as soon as it has any.
#[test]
fn a_drained_node_finishes_what_it_has_gets_nothing_new_and_may_be_cleared_at_any_time() -> Result<()> {
    const EPISODES: usize = 2 * SANDBOXES;
    let world = World::new("drained", &Options::default(), &POOL.replace("max_workers = 2", "max_workers = 1"))?;
    let mut running = world.start_clocks(EPISODES, WAITS)?;

    // Slurm lets the job run on; it is our coordinator that takes its worker for one that is to end.
    let first = world.all_acting(&mut running, SANDBOXES, STEPS, &[])?;
    let drained = now();
    drain(&world, &first[0].node)?;
    wait_for("the coordinator to hear of the drain", Duration::from_secs(60), || {
        ensure!(running.runs()?, "the run ended too early");
        let pool = world.pool()?.unwrap_or_default();
        Ok(pool["allocations"].to_string().contains("was drained: a new disk").then_some(()))
    })?;
    let heard = now().saturating_sub(drained);
    let second = world.all_acting(&mut running, SANDBOXES, STEPS, &first)?;
    let moved = now().saturating_sub(drained);
    ensure!(second.iter().all(|it| it.node != first[0].node), "{second:?}");
    for live in &first {
        let (episode, _) = live.place()?;
        let attempts = world.attempts(episode)?;
        let passed = attempts[0]["finish"]["end"]["verdict"]["passed"] == true;
        ensure!(attempts.len() == 1 && passed, "the drain cost episode {episode} something: {attempts:#?}");
    }
    ensure!(!world.jobs()?.iter().any(|it| it.starts_with(&first[0].job)), "the drained node is still held");
    figures::say(&format!(
        "a drained node: heard after {heard} ms; its {SANDBOXES} sandboxes went on to their end, the next \
         {SANDBOXES} act elsewhere after {moved} ms"
    ))?;

    // Whoever cannot wait for that ends the job.
    let cancelled = Fault::new("drain and scancel", &second);
    drain(&world, &second[0].node)?;
    world.cluster().admin(["scancel", job(&second)?])?;
    let gone: Vec<Live> = first.iter().chain(&second).cloned().collect();
    let third = world.all_acting(&mut running, SANDBOXES, STEPS, &gone)?;
    cancelled.over(&world, &third)?;

    // Or sets the node down.
    let down = Fault::new("drain and down", &third);
    drain(&world, &third[0].node)?;
    let node = format!("NodeName={}", third[0].node);
    world.cluster().admin(["scontrol", "update", &node, "State=DOWN", "Reason=a new disk"])?;
    let gone: Vec<Live> = gone.iter().chain(&third).cloned().collect();
    let fourth = world.all_acting(&mut running, SANDBOXES, STEPS, &gone)?;
    down.over(&world, &fourth)?;
    let used = [&first, &second, &third, &fourth].map(|live| live[0].node.as_str());
    ensure!(used.iter().collect::<BTreeSet<_>>().len() == 4, "a drained node was used again: {used:?}");

    running.end()?.expect_code(0)?;
    figures::run(&world, "all drains", EPISODES)?;
    let seen: Vec<Live> = gone.into_iter().chain(fourth).collect();
    world.expect_whole(EPISODES, &seen, &["preempted", "worker_lost"])?;
    world.expect_nothing(&[])
}

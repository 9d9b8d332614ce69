//! What takes long on a real cluster: `make soak`. As `faults.rs`, with what has to be waited for,
//! and how much fits.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use longhaul_core::money::Money;
use longhaul_tests::command::wait_for;
use longhaul_tests::density;
use longhaul_tests::place::Place;
use longhaul_tests::slurm::figures::{self, Fault};
use longhaul_tests::slurm::vendor::{self, Vendor};
use longhaul_tests::slurm::world::{Live, POOL, SANDBOXES, STEPS, WAITS, World, now, number};
use longhaul_tests::slurm::{Host, Options};
use serde_json::{Value, json};

/// With the leases that people have: how soon its episodes run elsewhere is printed.
#[test]
fn a_node_that_hangs_costs_attempts_and_when_it_is_back_nothing_more() -> Result<()> {
    let world = World::new("hang", &Options { usual_leases: true, ..Options::default() }, POOL)?;
    let mut running = world.start_clocks(SANDBOXES, WAITS)?;
    let first = world.all_acting(&mut running, SANDBOXES, STEPS, &[])?;
    let hung = Fault::new("a hung node", &first);
    let node = number(&first[0].node)?;
    world.cluster().node("freeze", node)?;
    let second = world.all_acting(&mut running, SANDBOXES, STEPS, &first)?;
    hung.over(&world, &second)?;
    ensure!(second.iter().all(|it| it.node != first[0].node), "{second:?}");
    world.cluster().node("thaw", node)?;
    running.end()?.expect_code(0)?;
    figures::run(&world, "a hung node", SANDBOXES)?;
    let seen: Vec<Live> = first.into_iter().chain(second).collect();
    world.expect_whole(SANDBOXES, &seen, &["worker_lost", "preempted"])?;
    world.expect_nothing(&[node])
}

/// A model that waits for ever.
fn waits(_: usize) -> Option<Value> {
    Some(vendor::calls("wait", &json!({"seconds": 1})))
}

/// Half of the agents ask a model for each step. Its vendor is on the node itself, so that the cut takes it from
/// nobody, and the lease alone ends its calls. A worker notices the silence before its leases are over, and
/// runs ahead till then.
#[test]
fn on_a_node_that_is_cut_off_no_agent_acts_or_calls_a_model_once_its_lease_is_over() -> Result<()> {
    /// The leases of these tests, and what the coordinator waits beyond them.
    const LEASE_MILLIS: u64 = 10_000;
    const SKEW_MILLIS: u64 = 2_000;
    // Slurm itself notices nothing, so that what happens is our own doing.
    let options = Options { net: true, conf: "SlurmdTimeout=600\n", ..Options::default() };
    let world = World::new("cut", &options, &format!("{POOL}{}", vendor::endpoint("near", "")))?;
    let mut vendors = BTreeMap::new();
    for node in 1..=options.nodes {
        let listener = world.cluster().listen(Host::Node(node), vendor::PORT)?;
        vendors.insert(format!("node{node}"), Vendor::start(listener, waits, Duration::from_millis(200)));
    }
    let (clocks, steps) = (world.clocks(SANDBOXES / 2, WAITS)?, WAITS.to_string());
    let more = ["--agent=near=near:m?max_output=300&keep_images=1", "--steps", &steps, "--run-budget", "50"];
    let arguments = clocks.iter().map(String::as_str).chain(more).chain(["--fail-on-fault"]);
    let mut running = world.run(&world.place().path("clocks"), arguments).start()?;
    let first = world.all_acting(&mut running, SANDBOXES, STEPS, &[])?;
    let cut = Fault::new("a network cut", &first);
    let (at, node) = (now(), number(&first[0].node)?);
    world.cluster().node("cut", node)?;
    let second = world.all_acting(&mut running, SANDBOXES, STEPS, &first)?;
    cut.over(&world, &second)?;
    ensure!(second.iter().all(|it| it.node != first[0].node), "{second:?}");

    // Both copies are there now. The old one finds a newer epoch, and gives up; its worker lives.
    let healed = now();
    world.cluster().node("heal", node)?;
    wait_for("the cut worker to be back", Duration::from_secs(120), || {
        ensure!(running.runs()?, "the run ended too early");
        Ok(world.connected(&first[0].node)?.filter(|attempts| *attempts == 0))
    })?;
    figures::say(&format!("heal: the cut worker was back, with nothing, after {} ms", now().saturating_sub(healed)))?;
    running.end()?.expect_code(0)?;
    figures::run(&world, "a network cut", SANDBOXES)?;

    let (mut late, mut told_late, mut again) = (0, 0, u64::MAX);
    for live in &first {
        let (episode, attempt) = live.place()?;
        for step in world.steps(episode, attempt)? {
            let after = step["at"].as_u64().context("a step without a time")?.saturating_sub(at);
            ensure!(after <= LEASE_MILLIS, "{} acted {after} ms after the cut: {step:#}", live.attempt);
            late += u64::from(after > 0);
        }
        told_late += world.late_calls(episode, attempt)?;
        let next = world.attempts(episode)?.get(attempt).and_then(|next| next["started"].as_u64());
        again = again.min(next.context("it was not started again")?);
    }
    figures::say(&format!("a network cut: {late} steps on the cut side before its leases were over, none after"))?;
    let calls: BTreeMap<&str, Vec<u64>> =
        vendors.iter().map(|(node, vendor)| (node.as_str(), vendor.calls())).collect();
    let here: Vec<u64> = calls[first[0].node.as_str()].iter().copied().filter(|call| *call > at).collect();
    let last = here.iter().max().context("no model was called on the cut side, so nothing is shown")?;
    ensure!(*last < again && last - at <= LEASE_MILLIS + SKEW_MILLIS, "a call came {} ms after the cut", last - at);
    // What was called there came to the coordinator at last, as what it is; and all of it was paid, once.
    ensure!(told_late > 0, "no late call was told");
    let all: usize = calls.values().map(Vec::len).sum();
    let (spent, due) = (world.spent()?, Money::from_nanos(vendor::CALL_NANOS * u64::try_from(all)?));
    ensure!(spent == due, "{all} calls are {due}, and {spent} were counted");
    figures::say(&format!(
        "a network cut: {} model calls on the cut side, the last {} ms after it, and {} ms before any episode was \
         started elsewhere; {all} calls in all, each paid once: {spent}",
        here.len(),
        last - at,
        again - last,
    ))?;
    let seen: Vec<Live> = first.into_iter().chain(second).collect();
    world.expect_whole(SANDBOXES, &seen, &["worker_lost", "preempted"])?;
    world.expect_nothing(&[])
}

#[test]
fn a_controller_that_is_away_for_a_minute_neither_stops_episodes_nor_makes_anything_be_asked_twice() -> Result<()> {
    let world = World::new("controller-away", &Options::default(), POOL)?;
    let mut running = world.start_clocks(SANDBOXES, 90)?;
    let first = world.all_acting(&mut running, SANDBOXES, STEPS, &[])?;
    let before = world.jobs()?;
    let away = Fault::new("slurmctld away for a minute", &first);
    world.cluster().controller("ctld-stop")?;
    std::thread::sleep(Duration::from_secs(60));
    let meanwhile = world.live()?;
    world.cluster().controller("ctld-start")?;
    for old in &first {
        let same = meanwhile.iter().find(|it| it.attempt == old.attempt).context("an attempt is gone")?;
        ensure!(same.steps >= old.steps + 20, "{old:?} became {same:?}");
    }
    away.went_on(&meanwhile)?;
    let after = wait_for("the controller", Duration::from_secs(60), || Ok(world.jobs().ok()))?;
    ensure!(before == after, "{before:?} became {after:?}");
    running.end()?.expect_code(0)?;
    figures::run(&world, "slurmctld away for a minute", SANDBOXES)?;
    for episode in 0..SANDBOXES {
        ensure!(world.attempts(episode)?.len() == 1, "it took more than one attempt");
    }
    world.expect_whole(SANDBOXES, &meanwhile, &[])?;
    world.expect_nothing(&[])
}

#[test]
fn a_hundred_and_twenty_eight_sandboxes_of_one_node_act_at_one_time_and_all_pass() -> Result<()> {
    let place = Place::new("density")?;
    let tried = density::hold(&place, 128, 12)?;
    figures::say(&tried.to_string())?;
    ensure!(tried.acted == 128 && tried.states == [("passed".to_owned(), 128)].into(), "{tried}");
    Ok(())
}

//! Nodes without internet: the vendor of a model is reached from where the coordinator is, and from
//! no node.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::command::wait_for;
use longhaul_tests::slurm::vendor::{self, PORT, Vendor};
use longhaul_tests::slurm::world::World;
use longhaul_tests::slurm::{Host, Options};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// The longest that anything is waited for.
const LIMIT: Duration = Duration::from_secs(180);

/// One worker.
const POOL: &str = "cpus = 4\nmemory = \"4GiB\"\nslots = 2\nmax_workers = 1\n";

/// What the model says to a call, by its number: it types twice and is done; its second answer never comes.
fn says(call: usize) -> Option<Value> {
    match call {
        1 => None,
        call if call < 3 => Some(vendor::calls("type", &json!({"text": "a"}))),
        _ => Some(vendor::calls("done", &json!({"text": "It is done."}))),
    }
}

/// Whether the vendor is reached by a program that is started so.
fn is_reached(mut from: std::process::Command) -> Result<bool> {
    let connects = format!("exec 3<>/dev/tcp/127.0.0.1/{PORT}");
    let status = from.args(["/bin/bash", "-c", &connects]).stderr(std::process::Stdio::null()).status()?;
    Ok(status.success())
}

#[test]
fn nodes_without_internet_call_models_through_the_coordinator_also_when_it_was_killed_meanwhile() -> Result<()> {
    let worker = Some(PathBuf::from(env!("CARGO_BIN_EXE_longhaul-noop-worker")));
    let options = Options { nodes: 1, net: true, worker, ..Options::default() };
    let world = World::new("relayed", &options, &format!("{POOL}{}", vendor::endpoint("away", "relay = true\n")))?;
    let cluster = world.cluster();
    let vendor = Vendor::start(cluster.listen(Host::Login, PORT)?, says, Duration::ZERO);
    let mut on_a_node = cluster.command(Path::new("srun"));
    on_a_node.env("SLURM_CONF", cluster.conf()).args(["--chdir=/", "--quiet"]);
    ensure!(is_reached(cluster.command(Path::new("/usr/bin/env")))?, "the login node does not reach the vendor");
    ensure!(!is_reached(on_a_node)?, "a node reaches the vendor by itself");

    let serving = world.serve()?;
    let (benchmark, access) = (world.place().path("clocks"), world.place().access());
    let (benchmark, access) = (benchmark.display().to_string(), access.display().to_string());
    let run = ["run", &benchmark, "--task", "clock_env/keep_time", "--agent=away:m", "--max-attempts", "1"];
    world.longhaul(run.into_iter().chain(["--coordinator", &access, "--detach"])).end()?.expect_code(0)?;
    wait_for("a call that hangs", LIMIT, || Ok((vendor.calls().len() == 2).then_some(())))?;
    serving.signal(Signal::SIGKILL)?;
    serving.end()?;
    let serving = world.serve()?;
    let settled = || {
        let shown = world.place().show("latest")?;
        Ok((shown["run"]["settled_at"] != Value::Null).then_some(shown))
    };
    let shown = wait_for("the end of the run", LIMIT, settled)?;
    ensure!(shown["run"]["passed"] == 1, "{shown:#}");
    serving.stop()?;

    let store = world.place().store().display().to_string();
    let calls = ["show", "latest/0", "--calls", "--store", &store, "--format", "json"];
    let calls = world.place().longhaul(calls).json()?;
    let calls = calls.as_array().context("no calls")?;
    let certain = |word: &str| {
        calls.iter().map(|call| &call["call"]).filter(|call| call["certainty"] == word).collect::<Vec<_>>()
    };
    ensure!(certain("reported").len() == 3 && vendor.calls().len() == 4, "{calls:#?}");
    // What the coordinator's end broke is settled whole, marked, and made again.
    let broken = certain("unconfirmed");
    ensure!(broken.len() == 1 && broken[0]["error"].to_string().contains("through the coordinator"), "{calls:#?}");
    world.expect_nothing(&[])
}

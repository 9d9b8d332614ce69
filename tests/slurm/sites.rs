//! Nodes without internet: the vendor of a model is reached from where the coordinator is, and from
//! no node.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::command::wait_for;
use longhaul_tests::slurm::world::World;
use longhaul_tests::slurm::{Cluster, Options};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// The vendor's port, in a network that is the test's own.
const PORT: u16 = 8000;

/// The longest that anything is waited for.
const LIMIT: Duration = Duration::from_secs(180);

/// An endpoint that only the login node reaches.
const POOL: &str = "cpus = 4\nmemory = \"4GiB\"\nslots = 2\nmax_workers = 1\n
[endpoint.away]
protocol = \"openai\"
urls = [\"http://127.0.0.1:8000\"]
relay = true
";

/// A vendor on the login node. Its model types twice and is done; its second answer never comes.
#[derive(Clone, Default)]
struct Vendor {
    calls: Arc<AtomicUsize>,
    /// Connections that hang, kept open.
    hanging: Arc<Mutex<Vec<TcpStream>>>,
}

impl Vendor {
    /// Listens in the network of the cluster's head.
    fn start(cluster: &Cluster) -> Result<Self> {
        let mut inside = cluster.command(Path::new("/bin/sleep")).arg("infinity").spawn()?;
        let listener = listen_beside(inside.id());
        inside.kill()?;
        inside.wait()?;
        let (listener, vendor) = (listener?, Self::default());
        let serving = vendor.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let vendor = serving.clone();
                std::thread::spawn(move || vendor.serve(stream));
            }
        });
        Ok(vendor)
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    fn serve(&self, stream: TcpStream) -> Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let (mut first, mut length) = (String::new(), 0);
            if reader.read_line(&mut first)? == 0 {
                return Ok(());
            }
            loop {
                let mut line = String::new();
                reader.read_line(&mut line)?;
                let Some((name, value)) = line.split_once(':') else { break };
                if name.eq_ignore_ascii_case("content-length") {
                    length = value.trim().parse()?;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            let answer = if first.starts_with("POST ") {
                let call = self.calls.fetch_add(1, Ordering::SeqCst);
                if call == 1 {
                    self.hanging.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(stream);
                    return Ok(());
                }
                answer(call)
            } else {
                json!({"object": "list", "data": []})
            }
            .to_string();
            let length = answer.len();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n");
            (&stream).write_all(head.as_bytes())?;
            (&stream).write_all(answer.as_bytes())?;
        }
    }
}

/// What the model says to a call, by its number.
fn answer(call: usize) -> Value {
    let function = if call < 3 {
        json!({"name": "type", "arguments": "{\"text\": \"a\"}"})
    } else {
        json!({"name": "done", "arguments": "{\"text\": \"It is done.\"}"})
    };
    json!({
        "id": "c", "object": "chat.completion", "model": "m",
        "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": null,
            "tool_calls": [{"id": "a", "type": "function", "function": function}]}}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    })
}

/// Listens in the network of another process.
fn listen_beside(pid: u32) -> Result<TcpListener> {
    let network = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/net"));
    let (own, of) = (network("self")?, pid.to_string());
    wait_for("the network of the head", LIMIT, || Ok(network(&of).ok().filter(|found| *found != own)))?;
    let network = std::fs::File::open(format!("/proc/{pid}/ns/net"))?;
    // On a thread of its own: only that changes its network, and a socket stays in its own.
    let listening = std::thread::spawn(move || {
        setns(network, CloneFlags::CLONE_NEWNET)?;
        anyhow::Ok(TcpListener::bind(("127.0.0.1", PORT))?)
    });
    listening.join().ok().context("the thread that listens panicked")?
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
    let world = World::new("relayed", &Options { nodes: 1, net: true, worker, ..Options::default() }, POOL)?;
    let cluster = world.cluster();
    let vendor = Vendor::start(cluster)?;
    let mut on_a_node = cluster.command(Path::new("srun"));
    on_a_node.env("SLURM_CONF", cluster.conf()).args(["--chdir=/", "--quiet"]);
    ensure!(is_reached(cluster.command(Path::new("/usr/bin/env")))?, "the login node does not reach the vendor");
    ensure!(!is_reached(on_a_node)?, "a node reaches the vendor by itself");

    let serving = world.serve()?;
    let (benchmark, access) = (world.place().path("clocks"), world.place().access());
    let (benchmark, access) = (benchmark.display().to_string(), access.display().to_string());
    let run = ["run", &benchmark, "--task", "clock_env/keep_time", "--agent=away:m", "--max-attempts", "1"];
    world.longhaul(run.into_iter().chain(["--coordinator", &access, "--detach"])).end()?.expect_code(0)?;
    wait_for("a call that hangs", LIMIT, || Ok((vendor.calls() == 2).then_some(())))?;
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
    ensure!(certain("reported").len() == 3 && vendor.calls() == 4, "{calls:#?}");
    // What the coordinator's end broke is settled whole, marked, and made again.
    let broken = certain("unconfirmed");
    ensure!(broken.len() == 1 && broken[0]["error"].to_string().contains("through the coordinator"), "{calls:#?}");
    world.expect_nothing(&[])
}

//! The whole promise, as one drill: two agents on forty tasks each in real containers, with a cap for each
//! agent, over a Slurm of four nodes. A node loses its power in the middle, the coordinator is killed, and
//! `longhaul resume` goes on. What is known of the agents then is what is known of them where nothing
//! happened, and their model's own count of dollars is the same, but for answers that were on their way.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::command::wait_for;
use longhaul_tests::place::Place;
use longhaul_tests::slurm::Options;
use longhaul_tests::slurm::figures::say;
use longhaul_tests::slurm::world::{Live, World, number};
use longhaul_tests::tree;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const TASKS: usize = 40;

/// Four small sandboxes in each of four workers.
const POOL: &str = "cpus = 4\nmemory = \"8GiB\"\nexclusive = true\nslots = 4\nmax_workers = 4\nmax_queued = 4\n";

/// What every call costs, in billionths of a dollar: 1,000 tokens in and 100 out.
const CALL_NANOS: u64 = 1_000 * 10 + 100 * 10_000;

const PRICES: &str = "\
date = \"2026-11-01\"

[[price]]
vendor = \"drill\"
model = \"model-*\"
date = \"2026-11-01\"
source = \"its own list\"
input = \"0.01\"
cache_write = \"0.01\"
cache_write_long = \"0.01\"
cache_read = \"0.01\"
output = \"10\"
context = 200000
max_output = 1000
image = { rule = \"fixed\", tokens = 100 }
";

/// Whether a model knows how to do a task.
fn knows(model: &str, task: usize) -> bool {
    if model == "model-deft" { !task.is_multiple_of(5) } else { task.is_multiple_of(2) }
}

/// A model that does what a task asks for, where it knows how, and counts what it bills.
#[derive(Clone)]
struct Model {
    address: SocketAddr,
    calls: Arc<AtomicU64>,
}

impl Model {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let model = Self { address: listener.local_addr()?, calls: Arc::default() };
        let serving = model.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let model = serving.clone();
                // A client that goes away is no news.
                std::thread::spawn(move || model.serve(stream));
            }
        });
        Ok(model)
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
                self.calls.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(300));
                answer(&serde_json::from_slice(&body)?)?
            } else {
                json!({"object": "list", "data": []})
            };
            let body = answer.to_string();
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
            (&stream).write_all((head + &body).as_bytes())?;
        }
    }
}

/// What is answered to a conversation: all of it follows from what was said so far.
fn answer(asked: &Value) -> Result<Value> {
    let model = asked["model"].as_str().context("no model")?;
    let text = asked["messages"].to_string();
    let (_, rest) = text.split_once("Sign number ").context("what task is this?")?;
    let task: usize = rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse()?;
    let messages = asked["messages"].as_array().context("no messages")?;
    let turn = messages.iter().filter(|message| message["role"] == "assistant").count();
    let wait = || ("wait", json!({"seconds": 1}));
    let click = |x: u32, y: u32| ("click", json!({"x": x, "y": y}));
    let save = || ("key", json!({"keys": ["ctrl", "s"]}));
    // The menu, its entry that turns the picture, and the picture saved; time passes between them.
    let right = [wait(), click(158, 32), wait(), click(210, 209), wait(), save(), wait()];
    let wrong = [wait(), wait(), wait(), wait(), wait(), save(), wait()];
    let script = if knows(model, task) { right } else { wrong };
    let (message, reason) = match script.get(turn) {
        Some((name, arguments)) => {
            let function = json!({"name": name, "arguments": arguments.to_string()});
            let calls = json!([{"id": format!("call_{turn}"), "type": "function", "function": function}]);
            (json!({"role": "assistant", "content": null, "tool_calls": calls}), "tool_calls")
        }
        None => (json!({"role": "assistant", "content": "It is done."}), "stop"),
    };
    Ok(json!({
        "id": "c", "object": "chat.completion", "created": 1, "model": model,
        "choices": [{"index": 0, "finish_reason": reason, "message": message}],
        "usage": {"prompt_tokens": 1_000, "completion_tokens": 100, "total_tokens": 1_100},
    }))
}

/// The task of the example, so many times, each with a number of its own.
fn make_tasks(place: &Place) -> Result<()> {
    let tasks = place.benchmark().join("environments/mtpaint_env/tasks");
    for task in 0..TASKS {
        let (name, folder) = (format!("flip_{task:02}"), tasks.join(format!("flip_{task:02}")));
        tree::copy(&tasks.join("flip_sign"), &folder, place.account())?;
        for file in ["task.json", "setup_task.sh"] {
            let text = std::fs::read_to_string(folder.join(file))?;
            let text = text.replace("The picture sign.png", &format!("Sign number {task}: the picture sign.png"));
            let text =
                text.replace("flip_sign@", &format!("{name}@")).replace("tasks/flip_sign/", &format!("tasks/{name}/"));
            std::fs::write(folder.join(file), text)?;
        }
    }
    Ok(())
}

/// What came of it.
struct Outcome {
    /// What is known of the agents, but for what interruptions cost: times, and calls in flight.
    known: Value,
    /// By the model's own count.
    billed: u64,
    /// By the program's.
    settled: u64,
    /// Attempts that lived when something happened.
    cut: usize,
}

fn play(test: &str, disturbed: bool) -> Result<Outcome> {
    let model = Model::start()?;
    let endpoint = format!("\n[endpoint.drill]\nprotocol = \"openai\"\nurls = [\"http://{}\"]\n", model.address);
    let world = World::new(test, &Options::default(), &format!("{POOL}{endpoint}"))?;
    let place = world.place();
    make_tasks(place)?;
    let prices = place.path("prices.toml");
    std::fs::write(&prices, PRICES)?;
    let prices = prices.display().to_string();
    let mut arguments = vec!["--task", "mtpaint_env/flip_[0-9]*", "--prices", &prices, "--resume", "auto"];
    let agents = ["--agent=deft=drill:model-deft?max_output=100", "--agent=other=drill:model-other?max_output=100"];
    arguments.extend(agents);
    arguments.extend(["--agent-budget", "deft=1", "--agent-budget", "other=1", "--fail-on-fault"]);
    let mut running = world.run(&place.benchmark(), &arguments).start()?;
    let mut cut = 0;
    if disturbed {
        // In the middle of all four nodes' first ones.
        let live = world.all_acting(&mut running, 12, 2, &[])?;
        let node = live[0].node.clone();
        world.cluster().node("node-off", number(&node)?)?;
        std::thread::sleep(Duration::from_secs(2));
        let there: BTreeSet<String> = world.live()?.into_iter().map(|live: Live| live.attempt).collect();
        cut = there.len();
        say(&format!("{node} lost its power, and the coordinator is killed; {cut} attempts live"))?;
        running.signal(Signal::SIGKILL)?;
        running.end()?;
        std::thread::sleep(Duration::from_secs(3));
        world.cluster().node("node-on", number(&node)?)?;
        let (store, scratch) = (place.store().display().to_string(), world.scratch().display().to_string());
        let resume = ["resume", "latest", "--slurm", "--store", &store, "--scratch", &scratch, "--format", "json"];
        running = world.longhaul(resume.into_iter().chain(["--fail-on-fault"])).start()?;
    }
    running.end()?.expect_code(0)?;
    wait_for("the end of all jobs", Duration::from_secs(300), || Ok(world.jobs()?.is_empty().then_some(())))?;
    place.expect_sound()?;
    let store = place.store().display().to_string();
    let compared = place.longhaul(["compare", "latest", "--json", "--store", &store]).json()?;
    let budget = place.longhaul(["budget", "show", "latest", "--store", &store, "--format", "json"]).json()?;
    let spent = &budget["scopes"].as_array().context("no scopes")?.iter().find(|scope| scope["scope"] == "run");
    let spent = spent.context("no budget of the run")?["spent_dollars"].to_string();
    let settled: longhaul_core::money::Money = spent.trim_matches('"').parse()?;
    Ok(Outcome {
        known: known(&compared)?,
        billed: model.calls.load(Ordering::SeqCst) * CALL_NANOS,
        settled: settled.nanos(),
        cut,
    })
}

/// What is known of the agents: all that is compared, but for amounts of money and time.
fn known(compared: &Value) -> Result<Value> {
    let pick = |from: &Value, names: &[&str]| -> Value {
        names.iter().map(|name| ((*name).to_owned(), from[*name].clone())).collect::<serde_json::Map<_, _>>().into()
    };
    let sides = compared["sides"].as_array().context("no sides")?;
    let measured = ["tasks", "tally", "pass_rate", "pass_bounds", "score", "samples"];
    let sides: Vec<Value> = sides.iter().map(|side| pick(&side["measures"], &measured)).collect();
    let pairs = compared["comparisons"]["pairs"].as_array().context("no pairs")?;
    let found = ["a", "b", "common_tasks", "pass", "score", "steps", "reach", "adjusted", "conclusion"];
    let pairs: Vec<Value> = pairs.iter().map(|pair| pick(pair, &found)).collect();
    ensure!(sides.len() == 2 && pairs.len() == 1, "{compared:#}");
    Ok(json!({"sides": sides, "pairs": pairs, "coverage": compared["comparisons"]["coverage"]}))
}

#[test]
fn two_agents_on_forty_tasks_compare_as_if_nothing_had_happened_and_cost_the_same() -> Result<()> {
    let calm = play("drill-calm", false)?;
    let rough = play("drill-rough", true)?;
    say(&format!(
        "undisturbed: {} billed, {} settled; disturbed, with {} attempts alive then: {} billed, {} settled",
        dollars(calm.billed),
        dollars(calm.settled),
        rough.cut,
        dollars(rough.billed),
        dollars(rough.settled)
    ))?;
    ensure!(calm.known == rough.known, "{:#}\nbecame\n{:#}", calm.known, rough.known);
    ensure!(calm.billed == calm.settled, "{} were billed, and {} are settled", calm.billed, calm.settled);
    let most = calm.billed + u64::try_from(rough.cut)? * CALL_NANOS;
    ensure!((calm.billed..=most).contains(&rough.billed), "{} were billed, not {}", rough.billed, calm.billed);
    ensure!(rough.settled >= rough.billed, "{} were billed, and {} are settled", rough.billed, rough.settled);
    Ok(())
}

fn dollars(nanos: u64) -> String {
    longhaul_core::money::Money::from_nanos(nanos).to_string()
}

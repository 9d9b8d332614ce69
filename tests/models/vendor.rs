//! The stand-in as tests use it, and what a run needs to be told of it.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use longhaul_tests::command::{Longhaul, Running, wait_for};
use longhaul_tests::place::Place;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::standin::{Seen, Standin, State};

/// The key that the vendor asks for.
pub(crate) const KEY: &str = "the-key-of-the-stand-in-7d1c40";

/// The variable that holds it.
pub(crate) const KEY_NAME: &str = "STANDIN_KEY";

/// The stand-in's price list (`standin::PRICES`), with bounds that hold for it.
const PRICES: &str = "\
date = \"2026-11-01\"

[[price]]
vendor = \"standin\"
model = \"model-*\"
date = \"2026-11-01\"
source = \"its own list\"
input = \"3\"
cache_write = \"3.75\"
cache_write_long = \"6\"
cache_read = \"0.30\"
output = \"15\"
context = 200000
max_output = 1000
image = { rule = \"fixed\", tokens = 800 }
";

/// A vendor that can be out of order. One for each endpoint, so that each has its own script.
#[derive(Debug)]
pub(crate) struct Vendor {
    runtime: Runtime,
    address: SocketAddr,
    standin: Option<Standin>,
    /// What those before it were asked and billed.
    before: (Vec<Seen>, u64),
}

impl Vendor {
    /// One that answers with these members of bodies, one answer each; the last one is given
    /// again and again.
    pub(crate) fn with(answers: Vec<Value>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let standin = runtime.block_on(Standin::start());
        let address = standin.address;
        let this = Self { runtime, address, standin: Some(standin), before: (Vec::new(), 0) };
        this.state(|state| {
            KEY.clone_into(&mut state.key);
            "fp_1".clone_into(&mut state.fingerprint);
            state.answers = answers.into();
        })?;
        Ok(this)
    }

    /// Looks at its state, or changes it.
    pub(crate) fn state<T>(&self, look: impl FnOnce(&mut State) -> T) -> Result<T> {
        let standin = self.standin.as_ref().context("it is out of order")?;
        let mut state = standin.state.lock().map_err(|_| anyhow::anyhow!("the stand-in failed"))?;
        Ok(look(&mut state))
    }

    /// Its base address.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The calls that came.
    pub(crate) fn calls(&self) -> Vec<Seen> {
        let now = self.standin.as_ref().map(Standin::calls).unwrap_or_default();
        self.before.0.iter().cloned().chain(now).collect()
    }

    /// What it billed, in billionths of a dollar.
    pub(crate) fn billed(&self) -> u64 {
        self.before.1 + self.standin.as_ref().map(Standin::billed).unwrap_or_default()
    }

    /// Lets answers wait, or go on.
    pub(crate) fn hold(&self, held: bool) -> Result<()> {
        self.state(|state| state.held = held)
    }

    /// Waits until so many calls came, as long as the run that makes them runs.
    pub(crate) fn wait_for_calls(&self, calls: usize, running: &mut Running) -> Result<()> {
        wait_for("calls", Duration::from_secs(300), || {
            let came = self.calls().len();
            ensure!(came >= calls || running.runs()?, "the run ended with {came} calls");
            Ok((came >= calls).then_some(()))
        })
    }

    /// From now on nobody is there.
    pub(crate) fn close(&mut self) -> Result<Vec<Value>> {
        let left = self.state(|state| state.answers.iter().cloned().collect())?;
        let (calls, billed) = (self.calls(), self.billed());
        self.before = (calls, billed);
        self.standin = None;
        Ok(left)
    }

    /// It is there again.
    pub(crate) fn reopen(&mut self, answers: Vec<Value>) -> Result<()> {
        self.standin = Some(self.runtime.block_on(Standin::at(self.address)));
        self.state(|state| {
            KEY.clone_into(&mut state.key);
            state.answers = answers.into();
        })
    }
}

/// An endpoint of the settings.
pub(crate) fn endpoint(name: &str, protocol: &str, vendor: &Vendor) -> String {
    format!(
        "[endpoint.{name}]\nprotocol = \"{protocol}\"\nvendor = \"standin\"\nurls = [\"{}\"]\n\
         key_env = \"{KEY_NAME}\"\nretries = 1\n",
        vendor.url()
    )
}

/// A settings file with these endpoints, and the stand-in's prices.
pub(crate) fn settings(place: &Place, endpoints: &[String]) -> Result<String> {
    let prices = place.path("prices.toml");
    std::fs::write(&prices, PRICES)?;
    place.settings(&format!("[prices]\nfile = \"{}\"\n\n{}", prices.display(), endpoints.join("\n")))
}

/// `longhaul run` on this machine, with the key in its environment.
pub(crate) fn run(place: &Place, settings: &str, arguments: &[&str]) -> Longhaul {
    let usual = ["--settings", settings, "--fail-on-fault"];
    place.run(usual.iter().chain(arguments)).env(KEY_NAME, KEY)
}

/// What a command says of this place's store, as text.
pub(crate) fn said(place: &Place, arguments: &[&str]) -> Result<String> {
    let store = place.store().display().to_string();
    let ended = place.longhaul(arguments.iter().copied().chain(["--store", &store])).end()?.expect_code(0)?;
    Ok(ended.stdout())
}

/// The records of an episode's calls.
pub(crate) fn calls_of(place: &Place, episode: &str) -> Result<Vec<Value>> {
    let calls: Value = serde_json::from_str(&said(place, &["show", episode, "--calls", "--format", "json"])?)?;
    let calls = calls.as_array().context("a list")?;
    Ok(calls.iter().map(|call| call["call"].clone()).collect())
}

/// Amounts of records, summed.
pub(crate) fn settled(calls: &[Value]) -> u64 {
    calls.iter().filter_map(|call| call["settled"].as_u64()).sum()
}

/// A number of billionths, as the program writes dollars.
pub(crate) fn dollars(nanos: u64) -> String {
    longhaul_core::money::Money::from_nanos(nanos).to_string()
}

/// The episodes of the latest run, as `agent sample: state by what`, sorted.
pub(crate) fn ends(place: &Place) -> Result<Vec<String>> {
    let shown = place.show("latest")?;
    let episodes = shown["episodes"].as_array().context("no episodes")?;
    let mut ends: Vec<String> = episodes
        .iter()
        .map(|episode| {
            let text = |value: &Value| value.as_str().unwrap_or("nothing").to_owned();
            let by = text(&episode["settlement"]["verdict"]["ended_by"]);
            format!("{} {}: {} by {by}", text(&episode["agent"]), episode["sample"], text(&episode["state"]))
        })
        .collect();
    ends.sort();
    Ok(ends)
}

/// The index of an agent's first episode in the latest run.
pub(crate) fn episode_of(place: &Place, agent: &str) -> Result<String> {
    let shown = place.show("latest")?;
    let episodes = shown["episodes"].as_array().context("no episodes")?;
    let index = episodes.iter().position(|episode| episode["agent"] == agent);
    index.map(|index| format!("latest/{index}")).with_context(|| format!("no episode of {agent}: {shown:#}"))
}

/// Fails unless the latest run came to these ends.
pub(crate) fn expect_ends(place: &Place, expected: &[&str]) -> Result<()> {
    let found = ends(place)?;
    if found == expected {
        return Ok(());
    }
    bail!("{found:#?}, not {expected:#?}\n{:#}", place.show("latest")?)
}

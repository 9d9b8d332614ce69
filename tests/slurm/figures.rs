//! What a fault cost, in figures: read from what the program recorded, printed with the test,
//! and never asserted.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::world::{Live, World, now};

/// A fault that was done to attempts at a time.
#[derive(Debug)]
pub struct Fault<'a> {
    name: &'a str,
    at: u64,
    before: Vec<Live>,
}

impl<'a> Fault<'a> {
    /// Now, to these.
    #[must_use]
    pub fn new(name: &'a str, before: &[Live]) -> Self {
        Self { name, at: now(), before: before.to_vec() }
    }

    /// Says what came of it, once all of them act again.
    ///
    /// # Errors
    ///
    /// The program has no record of it.
    pub fn over(&self, world: &World, again: &[Live]) -> Result<()> {
        let acting = now();
        let (mut ended, mut started, mut why) = (Vec::new(), Vec::new(), String::new());
        for live in &self.before {
            let (episode, number) = live.place()?;
            let attempts = world.attempts(episode)?;
            let old = attempts.get(number - 1).context("the attempt is not there")?;
            ended.extend(old["finish"]["at"].as_u64());
            let fault = &old["finish"]["end"]["fault"];
            why = format!("{}: {}", text(&fault["class"]), text(&fault["message"]));
            started.extend(attempts.get(number).and_then(|next| next["started"].as_u64()));
        }
        let steps: u64 = self.before.iter().map(|live| live.steps).sum();
        say(&format!(
            "{}: {} sandboxes on {}, {steps} steps acknowledged; ended after {} ({why}); started again on {} after {}; \
             all act after {}",
            self.name,
            self.before.len(),
            nodes(&self.before),
            self.range(&ended),
            nodes(again),
            self.range(&started),
            self.range(&[acting]),
        ))
    }

    /// Says that attempts went on, and how far they are now.
    ///
    /// # Errors
    ///
    /// Nobody reads it.
    pub fn went_on(&self, later: &[Live]) -> Result<()> {
        let sum = |live: &[Live]| live.iter().map(|it| it.steps).sum::<u64>();
        say(&format!(
            "{}: {} sandboxes went on, from {} to {} acknowledged steps after {}",
            self.name,
            self.before.len(),
            sum(&self.before),
            sum(later),
            self.range(&[now()]),
        ))
    }

    /// From the first to the last, in seconds after the fault.
    fn range(&self, times: &[u64]) -> String {
        let after = |time: u64| i64::try_from(time).unwrap_or(0) - i64::try_from(self.at).unwrap_or(0);
        let seconds = |time: u64| {
            let millis = after(time);
            format!("{}{}.{}", if millis < 0 { "-" } else { "" }, millis.abs() / 1000, millis.abs() % 1000 / 100)
        };
        match (times.iter().min(), times.iter().max()) {
            (Some(first), Some(last)) if first == last => format!("{} s", seconds(*first)),
            (Some(first), Some(last)) => format!("{} to {} s", seconds(*first), seconds(*last)),
            _ => "?".to_owned(),
        }
    }
}

/// Says how a run ended: how long it took in all, and in how many attempts.
///
/// # Errors
///
/// The program has no record of it.
pub fn run(world: &World, name: &str, episodes: usize) -> Result<()> {
    let (mut attempts, mut first, mut last) = (0, u64::MAX, 0);
    for episode in 0..episodes {
        let of = world.attempts(episode)?;
        attempts += of.len();
        first = of.iter().filter_map(|one| one["started"].as_u64()).min().unwrap_or(first).min(first);
        last = of.iter().filter_map(|one| one["finish"]["at"].as_u64()).max().unwrap_or(last).max(last);
    }
    let millis = last.saturating_sub(first);
    say(&format!(
        "{name}: {episodes} episodes settled in {attempts} attempts, {}.{} s from the first start to the last end",
        millis / 1000,
        millis % 1000 / 100
    ))
}

/// Writes a line to stderr.
///
/// # Errors
///
/// Nobody reads it.
pub fn say(line: &str) -> Result<()> {
    writeln!(std::io::stderr(), "figures: {line}").context("stderr is closed")
}

fn nodes(live: &[Live]) -> String {
    let mut nodes: Vec<&str> = live.iter().map(|it| it.node.as_str()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes.join("+")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

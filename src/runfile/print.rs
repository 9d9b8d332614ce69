//! Run files in one form: the same words in the same order, so that files can be compared.

use std::collections::BTreeMap;
use std::fmt::Write;

use clap::ValueEnum;
use longhaul_core::judge::Verify;
use longhaul_core::money::Money;
use longhaul_core::resume::ResumePolicy;
use longhaul_core::time::Millis;
use serde_json::{Map, Value};

use super::{AuditTerms, BudgetTerms, NO_CAP, RunFile, TaskTerms, show_stall};
use crate::benchmark::{AskedAgent, Parameters};

/// One line of a file: where it belongs, its key, its value as TOML.
struct Line {
    table: String,
    key: String,
    value: String,
}

/// A file as text.
#[must_use]
pub fn print(run: &RunFile) -> String {
    let mut text = String::new();
    let mut table = String::new();
    for line in lines(run) {
        if line.table != table {
            // Agents are a list of tables, and what belongs to one of them follows it.
            let header = match agent_part(&line.table) {
                Some("") => "[[agent]]".to_owned(),
                Some(part) => format!("[agent.{part}]"),
                None => format!("[{}]", line.table),
            };
            // A text never refuses to grow.
            let _grown = writeln!(text, "{}{header}", if text.is_empty() { "" } else { "\n" });
            table.clone_from(&line.table);
        }
        let _grown = writeln!(text, "{} = {}", line.key, line.value);
    }
    text
}

/// What differs between two files, a line each; nothing if they mean the same.
#[must_use]
pub fn difference(one: &RunFile, other: &RunFile) -> Vec<String> {
    let flat = |run: &RunFile| -> BTreeMap<String, String> {
        let mut expanded = run.clone();
        // A preset is what it stands for: two files that come to the same do not differ.
        expanded.tasks.split = run.split();
        expanded.budget.episode = run.limits();
        let lines = lines(&expanded).into_iter();
        lines.map(|line| (join(&line.table, &line.key), line.value)).collect()
    };
    let (one, other) = (flat(one), flat(other));
    let mut keys: Vec<&String> = one.keys().chain(other.keys()).collect();
    keys.sort();
    keys.dedup();
    let nothing = "(not said)".to_owned();
    let pair = |key: &String| (one.get(key).unwrap_or(&nothing).clone(), other.get(key).unwrap_or(&nothing).clone());
    keys.into_iter()
        .map(|key| (key, pair(key)))
        .filter(|(_, (before, after))| before != after)
        .map(|(key, (before, after))| format!("{key}: {before} -> {after}"))
        .collect()
}

fn join(table: &str, key: &str) -> String {
    if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") }
}

/// What follows the number of an agent's table: nothing for the agent itself.
fn agent_part(table: &str) -> Option<&str> {
    let rest = table.strip_prefix("agent[")?;
    let (_, part) = rest.split_once(']')?;
    Some(part.strip_prefix('.').unwrap_or(part))
}

fn lines(run: &RunFile) -> Vec<Line> {
    let mut lines = Lines::default();
    lines.text("", "name", run.name.as_deref());
    lines.text("", "benchmark", run.benchmark.as_ref().map(|path| path.to_string_lossy().into_owned()).as_deref());
    lines.text("", "preset", run.preset.map(crate::benchmark::Preset::name));
    lines.number("", "samples", run.samples.map(u64::from));
    lines.number("", "until_success", run.until_success.map(u64::from));
    lines.number("", "max_attempts", run.max_attempts.map(u64::from));
    lines.number("", "max_cut_offs", run.max_cut_offs.map(u64::from));
    lines.text("", "resume", run.resume.map(ResumePolicy::name));
    lines.text("", "snapshots", run.snapshots.map(|policy| policy.to_string()).as_deref());
    let unfit = run.unfit.and_then(|unfit| unfit.to_possible_value());
    lines.text("", "unfit", unfit.as_ref().map(clap::builder::PossibleValue::get_name));
    lines.texts("", "hook_policy", &run.hook_policy);
    lines.text("", "prices", run.prices.as_ref().map(|path| path.to_string_lossy().into_owned()).as_deref());
    lines.text("", "stall", run.stall.map(show_stall).as_deref());
    lines.text("", "audit", run.audit.as_ref().map(show_audit).as_deref());
    lines.text("", "verify", run.verify.map(Verify::name));
    let judge = run.judge.as_ref().map(|judge| judge.as_ref().map_or_else(|| NO_CAP.to_owned(), ToString::to_string));
    lines.text("", "judge", judge.as_deref());
    tasks(&mut lines, &run.tasks);
    budget(&mut lines, &run.budget);
    for (index, agent) in run.agents.iter().enumerate() {
        agent_lines(&mut lines, index, agent);
    }
    lines.0
}

fn show_audit(audit: &AuditTerms) -> String {
    let AuditTerms { endpoint, model, most, max_output, images } = audit;
    format!("{endpoint}:{model}?most={most}&max_output={max_output}&images={images}")
}

fn tasks(lines: &mut Lines, tasks: &TaskTerms) {
    lines.text("tasks", "split", tasks.split.as_deref());
    lines.texts("tasks", "task", &tasks.tasks);
    lines.texts("tasks", "env", &tasks.envs);
    lines.texts("tasks", "difficulty", &tasks.difficulties);
    lines.texts("tasks", "tag", &tasks.tags);
    let quarantine: Vec<String> = tasks.quarantine.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    lines.texts("tasks", "quarantine", &quarantine);
    lines.number("tasks", "shuffle", tasks.shuffle);
    lines.number("tasks", "limit", tasks.limit.map(|limit| limit as u64));
}

fn budget(lines: &mut Lines, budget: &BudgetTerms) {
    let table = "budget";
    lines.number(table, "steps", budget.episode.steps.map(u64::from));
    lines.text(table, "time", budget.episode.time.map(plain_time).as_deref());
    lines.cap(table, "episode", budget.episode.cost);
    match budget.episode.tokens {
        Some(None) => lines.text(table, "tokens", Some(NO_CAP)),
        tokens => lines.number(table, "tokens", tokens.flatten()),
    }
    lines.cap(table, "run", budget.run);
    lines.cap(table, "agent", budget.agent);
    lines.cap(table, "judge", budget.judge);
    if let Some(shorten) = budget.shorten {
        lines.push(table, "shorten", shorten.to_string());
    }
    for (name, amount) in &budget.agents {
        lines.cap("budget.agents", &key(name), Some(*amount));
    }
}

/// A length of time in its largest whole unit.
fn plain_time(Millis(millis): Millis) -> String {
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];
    let whole = units.into_iter().find(|(_, size)| millis > 0 && millis % size == 0);
    let (unit, size) = whole.unwrap_or(("ms", 1));
    format!("{}{unit}", millis / size)
}

fn agent_lines(lines: &mut Lines, index: usize, agent: &AskedAgent) {
    let table = format!("agent[{index}]");
    lines.text(&table, "use", Some(&within(agent)));
    lines.text(&table, "name", agent.name.as_deref());
    let Parameters { harness, image, keep_images, max_output, summarize_above, system, further } = &agent.parameters;
    lines.text(&table, "harness", harness.map(|harness| harness.name()));
    let size = |image: &Option<longhaul_core::agent::ImageSize>| {
        image.map_or_else(|| "screen".to_owned(), |size| format!("{}x{}", size.width, size.height))
    };
    lines.text(&table, "image", image.as_ref().map(size).as_deref());
    lines.number(&table, "keep_images", keep_images.map(u64::from));
    lines.number(&table, "max_output", max_output.map(u64::from));
    lines.number(&table, "summarize_above", *summarize_above);
    lines.text(&table, "system", system.as_deref());
    for (name, value) in further {
        lines.push(&format!("{table}.parameters"), &key(name), json(value));
    }
}

/// The text of an agent, with its path as it is found from here: what is printed is not in the
/// folder of the file that it may come from.
fn within(agent: &AskedAgent) -> String {
    let Some(folder) = &agent.folder else { return agent.text.clone() };
    for kind in ["scripted:", "external:"] {
        let at = agent.text.find(kind).filter(|at| *at == 0 || agent.text.as_bytes()[at - 1] == b'=');
        if let Some(path) = at.map(|at| at + kind.len()) {
            return format!("{}{}", &agent.text[..path], folder.join(&agent.text[path..]).display());
        }
    }
    agent.text.clone()
}

#[derive(Default)]
struct Lines(Vec<Line>);

impl Lines {
    fn push(&mut self, table: &str, key: &str, value: String) {
        self.0.push(Line { table: table.to_owned(), key: key.to_owned(), value });
    }

    fn text(&mut self, table: &str, key: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.push(table, key, quoted(text));
        }
    }

    fn number(&mut self, table: &str, key: &str, number: Option<u64>) {
        if let Some(number) = number {
            self.push(table, key, number.to_string());
        }
    }

    fn texts(&mut self, table: &str, key: &str, texts: &[String]) {
        if !texts.is_empty() {
            let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
            self.push(table, key, format!("[{}]", texts.join(", ")));
        }
    }

    fn cap(&mut self, table: &str, key: &str, cap: Option<Option<Money>>) {
        let text = cap.map(|cap| cap.map_or_else(|| NO_CAP.to_owned(), |cap| cap.to_string()));
        self.text(table, key, text.as_deref());
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// A key as TOML has it: bare where it can be.
fn key(name: &str) -> String {
    let bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if !name.is_empty() && name.bytes().all(bare) { name.to_owned() } else { basic(name) }
}

/// A text in double quotes, with what has to be escaped.
fn basic(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            c if c.is_control() => {
                let _grown = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// A value of a vendor's own field; one that TOML does not have is a text.
fn json(value: &Value) -> String {
    match value {
        Value::Null => quoted("null"),
        Value::Bool(truth) => truth.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(list) => format!("[{}]", list.iter().map(json).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => object(fields),
    }
}

fn object(fields: &Map<String, Value>) -> String {
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{} = {}", key(name), json(value))).collect();
    if fields.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", fields.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::Preset;

    #[test]
    fn files_that_mean_the_same_do_not_differ() {
        let preset = RunFile { preset: Some(Preset::Long500), ..RunFile::default() };
        assert_eq!(difference(&preset, &preset), Vec::<String>::new());
        let mut other = preset.clone();
        other.budget.episode.cost = Some(None);
        other.agents = vec![AskedAgent::of("idle")];
        assert_eq!(
            difference(&preset, &other),
            ["agent[0].use: (not said) -> \"idle\"", "budget.episode: \"$5.00\" -> \"none\""]
        );
        // The preset by its words.
        let mut spelt = RunFile::default();
        spelt.tasks.split = Some("long_horizon".to_owned());
        spelt.budget.episode = Preset::Long500.terms();
        assert_eq!(difference(&preset, &spelt), ["preset: \"cua-world-long-500\" -> (not said)"]);
    }

    #[test]
    fn hostile_names_stay_within_their_quotes() {
        let mut run = RunFile { name: Some("a\"]\n[budget]\nrun = \"9".to_owned()), ..RunFile::default() };
        run.budget.agents.insert("x\" = 1\n[tasks]\ny = \"".to_owned(), None);
        let printed = print(&run);
        let source = crate::strict::Source::of(std::path::Path::new("r.toml"), &printed);
        assert_eq!(super::super::read::file(&source, None).unwrap(), run, "{printed}");
    }
}

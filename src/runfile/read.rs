//! Reading a run file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use longhaul_core::judge::Verify;
use longhaul_core::resume::ResumePolicy;
use longhaul_core::snapshot::SnapshotPolicy;

use super::{AuditTerms, BudgetTerms, RunFile, TaskTerms, cap, judge, stall};
use crate::benchmark::{AskedAgent, LimitTerms, PARAMETER_KEYS, Parameters, Preset};
use crate::cli::Unfit;
use crate::strict::{Fields, Source, StrictError};

/// What a run file may say at its top.
pub(super) const KEYS: [&str; 19] = [
    "name",
    "benchmark",
    "preset",
    "samples",
    "until_success",
    "max_attempts",
    "max_cut_offs",
    "resume",
    "snapshots",
    "unfit",
    "hook_policy",
    "prices",
    "stall",
    "audit",
    "verify",
    "judge",
    "tasks",
    "budget",
    "agent",
];

/// What it may say of tasks.
const TASKS: [&str; 8] = ["split", "task", "env", "difficulty", "tag", "quarantine", "shuffle", "limit"];

/// What it may say of budgets.
const BUDGETS: [&str; 9] = ["steps", "time", "episode", "tokens", "run", "agent", "agents", "judge", "shorten"];

/// Reads a run file.
pub(super) fn file(source: &Source, folder: Option<&Path>) -> Result<RunFile, StrictError> {
    let within = |path: String| folder.map_or_else(|| PathBuf::from(&path), |folder| folder.join(&path));
    source.table(&KEYS, |fields| {
        let agents = fields.tables("agent", &agent_keys())?;
        let agents = agents.iter().map(|fields| agent(fields, folder)).collect::<Result<Vec<_>, _>>()?;
        let audit = fields.read("audit", AuditTerms::parse)?;
        Ok(RunFile {
            name: fields.text("name")?,
            benchmark: fields.text("benchmark")?.map(within),
            preset: fields.read("preset", Preset::parse)?,
            tasks: match fields.table("tasks", &TASKS)? {
                Some(tasks) => task_terms(&tasks, within)?,
                None => TaskTerms::default(),
            },
            agents,
            samples: fields.whole("samples", 1)?,
            until_success: fields.whole("until_success", 1)?,
            budget: match fields.table("budget", &BUDGETS)? {
                Some(budget) => budget_terms(&budget)?,
                None => BudgetTerms::default(),
            },
            audit,
            stall: fields.read("stall", stall)?,
            verify: fields.read("verify", str::parse::<Verify>)?,
            judge: fields.read("judge", judge)?,
            hook_policy: fields.texts("hook_policy")?.unwrap_or_default(),
            max_attempts: fields.whole("max_attempts", 1)?,
            max_cut_offs: fields.whole("max_cut_offs", 1)?,
            resume: fields.read("resume", str::parse::<ResumePolicy>)?,
            snapshots: fields.read("snapshots", str::parse::<SnapshotPolicy>)?,
            unfit: fields.read("unfit", |word| Unfit::from_str(word, false))?,
            prices: fields.text("prices")?.map(within),
        })
    })
}

fn agent_keys() -> Vec<&'static str> {
    ["use", "name"].into_iter().chain(PARAMETER_KEYS).collect()
}

fn agent(fields: &Fields<'_>, folder: Option<&Path>) -> Result<AskedAgent, StrictError> {
    let what = "the agent as `--agent` names it, such as \"anthropic:claude-sonnet-4-6\"";
    let text = fields.text("use")?.ok_or_else(|| fields.missing("use", what))?;
    let name = fields.text("name")?;
    if name.as_ref().is_some_and(|name| name.trim().is_empty()) {
        return Err(fields.refuse_at("name", "an agent without a name is called after its model: leave it out"));
    }
    Ok(AskedAgent { text, name, parameters: Parameters::read(fields)?, folder: folder.map(Path::to_owned) })
}

fn task_terms(fields: &Fields<'_>, within: impl Fn(String) -> PathBuf) -> Result<TaskTerms, StrictError> {
    let texts = |key: &str| -> Result<Vec<String>, StrictError> { Ok(fields.texts(key)?.unwrap_or_default()) };
    Ok(TaskTerms {
        split: fields.text("split")?,
        tasks: texts("task")?,
        envs: texts("env")?,
        difficulties: texts("difficulty")?,
        tags: texts("tag")?,
        quarantine: texts("quarantine")?.into_iter().map(within).collect(),
        shuffle: fields.whole("shuffle", 0)?,
        limit: fields.whole("limit", 1)?,
    })
}

fn budget_terms(fields: &Fields<'_>) -> Result<BudgetTerms, StrictError> {
    let mut agents = BTreeMap::new();
    if let Some(table) = fields.open_table("agents")? {
        for name in table.keys() {
            agents.insert(name.to_owned(), table.dollars(name, cap)?.flatten());
        }
    }
    let tokens = match fields.text("tokens") {
        Ok(Some(word)) if word == super::NO_CAP => Some(None),
        Ok(None) => None,
        _ => fields.whole("tokens", 1)?.map(Some),
    };
    Ok(BudgetTerms {
        episode: LimitTerms {
            steps: fields.whole("steps", 1)?,
            time: fields.duration("time")?,
            cost: fields.dollars("episode", cap)?,
            tokens,
        },
        run: fields.dollars("run", cap)?,
        agent: fields.dollars("agent", cap)?,
        agents,
        judge: fields.dollars("judge", cap)?,
        shorten: fields.truth("shorten")?,
    })
}

#[cfg(test)]
mod tests {
    use longhaul_core::budget::StallPolicy;
    use longhaul_core::money::Money;

    use super::super::print;
    use super::*;

    fn read(text: &str) -> Result<RunFile, StrictError> {
        file(&Source::of(Path::new("run.toml"), text), None)
    }

    const WHOLE: &str = r#"
name = "sonnet against gpt"
benchmark = "clone/benchmarks/cua_world"
preset = "cua-world-long-500"
samples = 4
until_success = 1
max_attempts = 2
max_cut_offs = 5
resume = "replay"
snapshots = "50 steps, $2.00, first"
unfit = "skip"
hook_policy = ["strict", "tolerate:a_*"]
prices = "prices.toml"
stall = "nudge:8"
audit = "gemini:gemini-3-flash-preview?most=3"
verify = "both"
judge = "gemini:gemini-3-flash-preview?judges=3"

[tasks]
split = "long_horizon"
env = "libreoffice_*"
quarantine = ["before/quarantine.txt"]
shuffle = 1
limit = 20

[budget]
episode = "$5"
run = "1,000"
agent = "none"
judge = "$0.50"
tokens = 2000000
steps = 500
time = "4h"
shorten = false

[budget.agents]
sonnet = "$100"

[[agent]]
name = "sonnet"
use = "anthropic:claude-sonnet-4-6"
image = "1280x800"
keep_images = 3
max_output = 4096

[agent.parameters]
temperature = 0.5
thinking = { type = "enabled", budget_tokens = 2048 }

[[agent]]
use = "external:agents/mine/agent.toml"
"#;

    #[test]
    fn a_run_file_says_all_that_a_run_is() {
        let run = read(WHOLE).unwrap();
        assert_eq!((run.samples, run.until_success, run.agents.len()), (Some(4), Some(1), 2));
        assert_eq!(run.budget.run, Some(Some(Money::from_dollars(1000))));
        assert_eq!((run.budget.agent, run.budget.episode.tokens), (Some(None), Some(Some(2_000_000))));
        assert_eq!(run.stall, Some(StallPolicy::Nudge { after: 8 }));
        assert_eq!(run.agents[0].parameters.keep_images, Some(3));
        assert_eq!(run.agents[0].parameters.further["thinking"]["budget_tokens"], 2048);
        let printed = print(&run);
        assert_eq!(read(&printed).unwrap(), run, "what is printed is read back:\n{printed}");
        assert_eq!(print(&read(&printed).unwrap()), printed, "and printed the same");
        assert_eq!(read("").unwrap(), RunFile::default());
    }

    #[test]
    fn what_is_wrong_in_it_is_said_with_line_column_and_what_was_meant() {
        for (text, said) in [
            ("sampels = 3", "run.toml:1:1: there is no key `sampels` here; did you mean `samples`?"),
            ("\n[budgets]\n", "run.toml:2:2: there is no key `budgets` here; did you mean `budget`?"),
            ("[budget]\nepisode = -1", "run.toml:2:11: `episode`: expected dollars as a text"),
            ("[budget]\nepisode = \"-1\"", "run.toml:2:11: `episode`: `-1` is negative"),
            ("[budget]\nepisode = nan", "run.toml:2:11: `episode`: expected dollars as a text"),
            ("[budget]\nrun = \"1e999\"", "run.toml:2:7: `run`: `1e999` is no amount of dollars"),
            ("[budget]\nrun = \"99999999999999999999\"", "is more than can be counted"),
            ("[budget]\ntokens = 0", "run.toml:2:10: `tokens`: 0 is not a whole number of at least 1"),
            ("[budget]\ntokens = \"many\"", "run.toml:2:10: `tokens`: expected a whole number"),
            ("[budget]\nsteps = -3", "run.toml:2:9: `steps`: -3 is not"),
            ("[budget]\ntime = \"1e9h\"", "run.toml:2:8: `time`: `1e9h` is not a length of time"),
            ("[budget.agents]\nx = true", "run.toml:2:5: `x`: expected a text"),
            ("[[agent]]\nname = \"x\"", "run.toml:1:1: `use` is missing"),
            (
                "[[agent]]\nuse = \"idle\"\nkeep_image = 1",
                "run.toml:3:1: there is no key `keep_image` here; did you mean `keep_images`?",
            ),
            ("[agent]\nuse = \"idle\"", "run.toml:1:1: `agent`: expected a list of tables, [[agent]], found table"),
            ("[[agent]]\nuse = \"idle\"\n[agent.parameters]\nx = nan", "run.toml:4:5: `x` cannot be sent as JSON"),
            ("preset = \"cua-world-long\"", "did you mean `cua-world-long-500`?"),
            ("stall = \"nudge\"", "run.toml:1:9: `stall`: `nudge` is no policy"),
            ("audit = \"x\"", "run.toml:1:9: `audit`: `x` names no auditor"),
            ("unfit = \"drop\"", "run.toml:1:9: `unfit`: "),
            ("samples = 1.5", "run.toml:1:11: `samples`: expected a whole number of at least 1, found float"),
            ("samples = 99999999999", "that can be counted"),
            ("samples = 1\nsamples = 2", "run.toml:2:1: duplicate key"),
            ("name = 'x", "run.toml:1:"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(said), "{text:?} gave {error:?}");
        }
    }
}

//! Run files: what a run is to be, in TOML: tasks, agents, samples and budgets, to be checked,
//! compared and kept under version control.
//!
//! A command line is read into the same [`RunFile`], so that what both say is put together in one
//! place, and a command line can be printed as a file.

mod judge;
mod print;
mod read;

use std::collections::BTreeMap;
use std::convert::identity;
use std::path::{Path, PathBuf};

use longhaul_core::budget::StallPolicy;
use longhaul_core::judge::Verify;
use longhaul_core::money::Money;
use longhaul_core::resume::ResumePolicy;
use longhaul_core::snapshot::SnapshotPolicy;

pub use judge::{JudgeTerms, judge};
pub use print::{difference, print};

use crate::benchmark::{AskedAgent, LimitTerms, Preset};
use crate::cli::Unfit;
use crate::strict::{Source, StrictError};

/// The word that lifts a cap.
pub(crate) const NO_CAP: &str = "none";

/// What a run is to be, as far as it is said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunFile {
    /// A name for people.
    pub name: Option<String>,
    /// The benchmark's folder.
    pub benchmark: Option<PathBuf>,
    /// The protocol that it follows.
    pub preset: Option<Preset>,
    /// Which tasks.
    pub tasks: TaskTerms,
    /// The agents.
    pub agents: Vec<AskedAgent>,
    /// How often each task is run by each agent, at most.
    pub samples: Option<u32>,
    /// How many samples of a task have to pass for the others not to be begun.
    pub until_success: Option<u32>,
    /// What may be spent.
    pub budget: BudgetTerms,
    /// Who looks when an agent says that it is done.
    pub audit: Option<AuditTerms>,
    /// What is done about steps without effect.
    pub stall: Option<StallPolicy>,
    /// Which verifier decides.
    pub verify: Option<Verify>,
    /// Who judges; `Some(None)` says nobody.
    pub judge: Option<Option<JudgeTerms>>,
    /// Whether env hooks that fail are faults.
    pub hook_policy: Vec<String>,
    /// The most attempts of an episode that end in a fault of its own.
    pub max_attempts: Option<u32>,
    /// How often an episode may be cut off by the end of an allocation.
    pub max_cut_offs: Option<u32>,
    /// What is done about an attempt that was cut off.
    pub resume: Option<ResumePolicy>,
    /// When the top of a sandbox is saved for that.
    pub snapshots: Option<SnapshotPolicy>,
    /// What becomes of envs that cannot be run here.
    pub unfit: Option<Unfit>,
    /// A file of prices.
    pub prices: Option<PathBuf>,
}

/// Which tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskTerms {
    /// A split of the benchmark.
    pub split: Option<String>,
    /// Patterns `ENV/TASK`.
    pub tasks: Vec<String>,
    /// Patterns of envs.
    pub envs: Vec<String>,
    /// Words of difficulty.
    pub difficulties: Vec<String>,
    /// Tags.
    pub tags: Vec<String>,
    /// Files with tasks that are left out.
    pub quarantine: Vec<PathBuf>,
    /// A number that decides their order.
    pub shuffle: Option<u64>,
    /// At most so many.
    pub limit: Option<usize>,
}

/// What may be spent; `Some(None)` says that there is no cap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BudgetTerms {
    /// Of an episode: steps, time, dollars, tokens.
    pub episode: LimitTerms,
    /// Of the run.
    pub run: Option<Option<Money>>,
    /// Of each agent.
    pub agent: Option<Option<Money>>,
    /// Of one agent, by its name.
    pub agents: BTreeMap<String, Option<Money>>,
    /// Of the judge.
    pub judge: Option<Option<Money>>,
    /// Whether answers are shortened so that they fit.
    pub shorten: Option<bool>,
}

/// Who looks when an agent says that it is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditTerms {
    /// The endpoint.
    pub endpoint: String,
    /// The model.
    pub model: String,
    /// The most audits of an episode.
    pub most: u32,
    /// The most output tokens of one.
    pub max_output: u32,
    /// How many of the last screenshots it sees at most.
    pub images: u32,
}

/// The endpoint, the model and the parameters of `ENDPOINT:MODEL?NAME=VALUE&...`; nothing if either
/// is not named.
fn model_spec(text: &str) -> Option<(&str, &str, &str)> {
    let (endpoint, rest) = text.split_once(':')?;
    let (model, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    let named = !endpoint.is_empty() && !model.is_empty() && !model.contains(char::is_whitespace);
    named.then_some((endpoint, model, parameters))
}

impl AuditTerms {
    /// The most audits of an episode where nobody says.
    const MOST: u32 = 2;

    /// The most output tokens of an audit where nobody says.
    const MAX_OUTPUT: u32 = 4096;

    /// How many screenshots an audit sees where nobody says.
    const IMAGES: u32 = 20;

    /// Reads an audit as a command line has it: `ENDPOINT:MODEL?most=2`.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let usage = || format!("`{text}` names no auditor: write `ENDPOINT:MODEL`, or `ENDPOINT:MODEL?most=2`");
        let (endpoint, model, query) = model_spec(text).ok_or_else(usage)?;
        let (endpoint, model) = (endpoint.to_owned(), model.to_owned());
        let mut audit = Self { endpoint, model, most: Self::MOST, max_output: Self::MAX_OUTPUT, images: Self::IMAGES };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let number = value.parse::<u32>().ok().filter(|number| *number > 0);
            let number = number.ok_or_else(|| format!("`{pair}` is no whole number of at least 1"))?;
            match name {
                "most" => audit.most = number,
                "max_output" => audit.max_output = number,
                "images" => audit.images = number,
                other => {
                    let known = ["most", "max_output", "images"];
                    let hint = crate::nearest::hint(other, &known, identity);
                    return Err(format!("an audit has no parameter `{other}`: {hint}"));
                }
            }
        }
        Ok(audit)
    }
}

/// Reads a policy on steps without effect: `report`, `nudge:8`, `stop:20`.
///
/// # Errors
///
/// What is wrong with it.
pub fn stall(text: &str) -> Result<StallPolicy, String> {
    let wrong = || format!("`{text}` is no policy on stalls: write `report`, `nudge:8` or `stop:20`");
    if text == "report" {
        return Ok(StallPolicy::Report);
    }
    let (word, after) = text.split_once(':').ok_or_else(wrong)?;
    // One step alone repeats nothing.
    let after = after.parse::<u32>().ok().filter(|after| *after >= 2).ok_or_else(wrong)?;
    match word {
        "nudge" => Ok(StallPolicy::Nudge { after }),
        "stop" => Ok(StallPolicy::Stop { after }),
        _ => Err(wrong()),
    }
}

/// A policy on steps without effect as it is written.
#[must_use]
pub fn show_stall(policy: StallPolicy) -> String {
    match policy {
        StallPolicy::Report => "report".to_owned(),
        StallPolicy::Nudge { after } => format!("nudge:{after}"),
        StallPolicy::Stop { after } => format!("stop:{after}"),
    }
}

/// Reads a cap: dollars, or `none`.
///
/// # Errors
///
/// It is neither.
pub fn cap(text: &str) -> Result<Option<Money>, String> {
    if text == NO_CAP {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error: longhaul_core::money::MoneyError| error.to_string())
}

/// Reads a cap on tokens: a whole number, or `none`.
///
/// # Errors
///
/// It is neither.
pub fn token_cap(text: &str) -> Result<Option<u64>, String> {
    if text == NO_CAP {
        return Ok(None);
    }
    let number = text.parse::<u64>().ok().filter(|number| *number > 0);
    number.map(Some).ok_or_else(|| format!("`{text}` is no whole number of tokens of at least 1"))
}

impl RunFile {
    /// Reads a run file; paths in it are relative to its folder.
    ///
    /// # Errors
    ///
    /// It cannot be read, or something in it makes no sense; the message names line and column.
    pub fn read(path: &Path) -> Result<Self, StrictError> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        read::file(&Source::read(path)?, folder)
    }

    /// What this says, and of the other what this does not say: the command line over a file.
    /// Lists are replaced whole, but for those where later words win over earlier ones.
    #[must_use]
    pub fn over(self, other: Self) -> Self {
        let mut agents = other.budget.agents;
        // Each agent, said nearer, wins over one of them, said farther off.
        if self.budget.agent.is_some() {
            agents.clear();
        }
        agents.extend(self.budget.agents);
        Self {
            name: self.name.or(other.name),
            benchmark: self.benchmark.or(other.benchmark),
            preset: self.preset.or(other.preset),
            tasks: self.tasks.over(other.tasks),
            agents: if self.agents.is_empty() { other.agents } else { self.agents },
            samples: self.samples.or(other.samples),
            until_success: self.until_success.or(other.until_success),
            budget: BudgetTerms {
                episode: self.budget.episode.over(other.budget.episode),
                run: self.budget.run.or(other.budget.run),
                agent: self.budget.agent.or(other.budget.agent),
                agents,
                judge: self.budget.judge.or(other.budget.judge),
                shorten: self.budget.shorten.or(other.budget.shorten),
            },
            audit: self.audit.or(other.audit),
            stall: self.stall.or(other.stall),
            verify: self.verify.or(other.verify),
            judge: self.judge.or(other.judge),
            hook_policy: other.hook_policy.into_iter().chain(self.hook_policy).collect(),
            max_attempts: self.max_attempts.or(other.max_attempts),
            max_cut_offs: self.max_cut_offs.or(other.max_cut_offs),
            resume: self.resume.or(other.resume),
            snapshots: self.snapshots.or(other.snapshots),
            unfit: self.unfit.or(other.unfit),
            prices: self.prices.or(other.prices),
        }
    }

    /// The split whose tasks are run: what is said, else the preset's, unless tasks are named.
    #[must_use]
    pub fn split(&self) -> Option<String> {
        let usual = self.preset.filter(|_| self.tasks.tasks.is_empty()).map(|preset| preset.split().to_owned());
        self.tasks.split.clone().or(usual)
    }

    /// What an episode may use, the preset's words behind this file's.
    #[must_use]
    pub fn limits(&self) -> LimitTerms {
        self.budget.episode.over(self.preset.map(Preset::terms).unwrap_or_default())
    }
}

impl TaskTerms {
    fn over(self, other: Self) -> Self {
        let list = |own: Vec<String>, others: Vec<String>| if own.is_empty() { others } else { own };
        // Tasks that are named nearer are meant, whatever split is named farther off.
        let others_split = other.split.filter(|_| self.tasks.is_empty());
        Self {
            split: self.split.or(others_split),
            tasks: list(self.tasks, other.tasks),
            envs: list(self.envs, other.envs),
            difficulties: list(self.difficulties, other.difficulties),
            tags: list(self.tags, other.tags),
            quarantine: other.quarantine.into_iter().chain(self.quarantine).collect(),
            shuffle: self.shuffle.or(other.shuffle),
            limit: self.limit.or(other.limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audits_and_stalls_are_read_as_they_are_written() {
        let audit = AuditTerms::parse("gemini:gemini-3-flash-preview?most=3").unwrap();
        assert_eq!((audit.endpoint.as_str(), audit.most, audit.images), ("gemini", 3, AuditTerms::IMAGES));
        for (text, said) in [
            ("gemini", "names no auditor"),
            (":m", "names no auditor"),
            ("gemini:m?most=0", "`most=0` is no whole number"),
            ("gemini:m?mots=2", "did you mean `most`?"),
        ] {
            assert!(AuditTerms::parse(text).unwrap_err().contains(said), "{text}");
        }
        for text in ["report", "nudge:8", "stop:20"] {
            assert_eq!(show_stall(stall(text).unwrap()), text);
        }
        for text in ["", "nudge", "nudge:0", "nudge:1", "stop:-2", "halt:3", "stop:99999999999"] {
            assert!(stall(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_said_nearer_wins() {
        let far = RunFile {
            preset: Some(Preset::Test),
            samples: Some(4),
            agents: vec![AskedAgent::of("idle")],
            hook_policy: vec!["tolerate".to_owned()],
            ..RunFile::default()
        };
        let near = RunFile {
            samples: Some(1),
            hook_policy: vec!["strict:a".to_owned()],
            tasks: TaskTerms { tasks: vec!["a/b".to_owned()], ..TaskTerms::default() },
            ..RunFile::default()
        };
        let both = near.over(far.clone());
        assert_eq!((both.samples, both.preset), (Some(1), Some(Preset::Test)));
        assert_eq!(both.hook_policy, ["tolerate", "strict:a"]);
        assert_eq!(both.agents, far.agents);
        assert_eq!((far.split().as_deref(), both.split()), (Some("test"), None), "tasks that are named are meant");
    }
}

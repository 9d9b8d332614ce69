//! What `longhaul run` can be asked, and what else is about what a run is to be.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use longhaul_core::budget::StallPolicy;
use longhaul_core::judge::Verify;
use longhaul_core::money::Money;
use longhaul_core::resume::ResumePolicy;
use longhaul_core::snapshot::SnapshotPolicy;

use super::common::{PickArgs, Unfit, VenueArgs};
use crate::benchmark::Preset;
use crate::output::Format;
use crate::runfile::{self, AuditTerms, JudgeTerms};

/// `longhaul run`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul run examples/benchmark --agent idle
  longhaul run CLONE/benchmarks/cua_world --task gpredict_env/add_ground_station \\
      --agent scripted:actions.jsonl
  longhaul run CLONE/benchmarks/cua_world --preset cua-world-long-500 \\
      --agent anthropic:claude-sonnet-4-6 --agent openai:gpt-5.4 --run-budget 500 --dry-run
  longhaul run BENCHMARK --split test --agent 'small=tools@my-vllm:Qwen/Qwen3-VL-4B?keep_images=3'
  longhaul run run:0abc --agent openai:gpt-5.4      one more agent for the tasks of that run
  longhaul run FILE.toml --check
  longhaul run BENCHMARK --split test --agent gemini:gemini-3-flash-preview --print-run-file > FILE.toml

A run file that was run before on the same store is the same run: it goes on where it was, or is
shown if it is over. Where something that it freezes has changed since (tasks, agents, budgets,
settings, files), that is said, and --new starts another run.
Without --coordinator, the run has a coordinator of its own over the store folder and one
worker on this machine. The first Ctrl-C stops in order, the second at once; what was stored
stays. Episodes that fail are data: the command then still succeeds (but see --fail-on-fault).
`run:RUN` in place of a benchmark means the tasks of an earlier run of the same store, as that run
froze them, with its limits and its scoring; no clone is read. Then `longhaul compare RUN NEW`.
Of what limits an episode, the command line wins over a run file, that over --preset, that over
the task's own max_steps, and that over the settings (docs/budgets.md).")]
pub struct RunArgs {
    /// Which tasks.
    #[command(flatten)]
    pub pick: PickArgs,
    /// The benchmark, in place of the one that the run file names.
    #[arg(long = "benchmark", value_name = "DIR", help_heading = "Which tasks")]
    pub other_benchmark: Option<PathBuf>,
    /// An agent: `ENDPOINT:MODEL` (`anthropic:claude-sonnet-4-6`, `openai:gpt-5.4`; `?NAME=VALUE&...`
    /// sets parameters, `HARNESS@` before it names the loop), `external:FILE.toml`,
    /// `scripted:FILE.jsonl`, `scripted:FOLDER` (with ENV/TASK.jsonl), or `idle`; `NAME=` before it
    /// names it. Each one runs every task. May be repeated.
    #[arg(long = "agent", value_name = "SPEC", help_heading = "How")]
    pub agents: Vec<String>,
    /// The paper's protocol: `cua-world-test` (200 steps, the split `test`), `cua-world-long-500`
    /// (500 steps or $5, the split `long_horizon`), or `cua-world-long-2000` (2,000 steps, no cap).
    #[arg(long, value_name = "NAME", value_parser = Preset::parse, help_heading = "How")]
    pub preset: Option<Preset>,
    /// How often each task is run by each agent; 1 if nobody says.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "How")]
    pub samples: Option<u32>,
    /// Begins samples of a task, for each agent, only while fewer than so many have passed.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "How")]
    pub until_success: Option<u32>,
    /// The most samples of a task, with --until-success.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "samples", requires = "until_success", help_heading = "How")]
    pub max_samples: Option<u32>,
    /// Another model that looks when an agent says that it is done, and names what is missing:
    /// `ENDPOINT:MODEL?most=2`. It sees the task and the screenshots; its cost is the episode's.
    #[arg(long, value_name = "SPEC", value_parser = AuditTerms::parse, help_heading = "How")]
    pub audit: Option<AuditTerms>,
    /// Which verifier decides: `program` (the task's own), `checklist` (a judge looks at the
    /// screenshots), `both` (the judge decides, and the program's result is kept beside it), or
    /// `auto`: the checklist where there is one and a judge, else the program.
    #[arg(long, value_name = "HOW", help_heading = "How")]
    pub verify: Option<Verify>,
    /// The model that judges by the task's checklist, and that answers verifiers that ask one:
    /// `ENDPOINT:MODEL?judges=3&frames=changed` (docs/verification.md); `none` for nobody.
    #[arg(long, value_name = "SPEC", value_parser = judge_arg, help_heading = "How")]
    pub judge: Option<JudgeArg>,
    /// What is done about steps that repeat without effect: `report`, `nudge:8` (tell the agent
    /// after 8 in a row), `stop:20` (end the episode after 20).
    #[arg(long, value_name = "POLICY", value_parser = runfile::stall, help_heading = "How")]
    pub stall: Option<StallPolicy>,
    /// The most attempts of an episode that end in a fault of its own.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "How")]
    pub max_attempts: Option<u32>,
    /// How often an episode may be cut off by the end of an allocation, having had half of the
    /// longest walltime or more each time, before it is set aside.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "How")]
    pub max_cut_offs: Option<u32>,
    /// What is done about an episode whose attempt was cut off: `auto` goes on where it was, and starts
    /// again where that cannot be done, `replay` goes on or gives it up, `restart` starts again.
    #[arg(long, value_name = "HOW", help_heading = "How")]
    pub resume: Option<ResumePolicy>,
    /// When the top of a sandbox is saved for that, of tasks with a hook `restart`: `off`, or after so many
    /// steps or dollars, as `"50 steps, $2"`; with `first` it is used before a replay is tried.
    #[arg(long, value_name = "WHEN", help_heading = "How")]
    pub snapshots: Option<SnapshotPolicy>,
    /// Runs of one coordinator share its workers fairly; one of a higher priority gets them first.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, help_heading = "How")]
    pub priority: i32,
    /// Whether an env hook that fails is a fault: `strict`, `tolerate`, or `tolerate:ENV`
    /// for one env (globs are fine). May be repeated; later ones win.
    #[arg(long, value_name = "POLICY", help_heading = "How")]
    pub hook_policy: Vec<String>,
    /// What becomes of envs that need what a container cannot give (systemd, docker, Windows);
    /// `refuse` if nobody says.
    #[arg(long, value_enum, value_name = "HOW", help_heading = "How")]
    pub unfit: Option<Unfit>,
    /// Stands on exactly the layers that an earlier run in the same store stood on, and on none
    /// that is built again: an id, the unambiguous start or end of one, or `latest`.
    #[arg(long, value_name = "RUN", help_heading = "How")]
    pub layers_from: Option<String>,
    /// A name for the run, for people.
    #[arg(long, value_name = "TEXT", help_heading = "How")]
    pub name: Option<String>,
    /// Says what would run, what it needs and what it may cost, and starts nothing.
    #[arg(long, help_heading = "How")]
    pub dry_run: bool,
    /// Checks everything that is checked before a run starts, says so, and starts nothing.
    #[arg(long, conflicts_with_all = ["dry_run", "print_run_file"], help_heading = "How")]
    pub check: bool,
    /// Starts a new run of a run file, though one was made of it before.
    #[arg(long, help_heading = "How")]
    pub new: bool,
    /// Prints what is asked for as a run file, and starts nothing. Paths in it are as seen from
    /// this folder.
    #[arg(long, conflicts_with = "dry_run", help_heading = "How")]
    pub print_run_file: bool,
    /// Ends with code 7 if episodes of the run are faulted.
    #[arg(long, help_heading = "How")]
    pub fail_on_fault: bool,
    /// The form of the result on stdout.
    #[arg(long, value_enum, default_value_t, help_heading = "How")]
    pub format: Format,
    /// What may be spent.
    #[command(flatten)]
    pub budget: SpendingArgs,
    /// Where.
    #[command(flatten)]
    pub venue: VenueArgs,
    /// Submits, prints the run's id and ends, in place of following it.
    #[arg(long, requires = "coordinator", help_heading = "Where")]
    pub detach: bool,
}

/// What a run may spend.
#[derive(Debug, Args)]
#[command(next_help_heading = "Budgets")]
pub struct SpendingArgs {
    /// The most steps (answers of the agent) of an episode, whatever its task says.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: Option<u32>,
    /// The longest that an agent may act in an episode, in place of `run.time`.
    #[arg(long, value_name = "DURATION", value_parser = crate::units::duration)]
    pub time: Option<longhaul_core::time::Millis>,
    /// The most dollars that an episode may spend (`5`, `$0.50`); `none` lifts a preset's cap.
    #[arg(long = "budget", value_name = "DOLLARS", value_parser = cap)]
    pub episode: Option<Cap>,
    /// The most dollars that all episodes of the run may spend.
    #[arg(long, value_name = "DOLLARS", value_parser = cap)]
    pub run_budget: Option<Cap>,
    /// The most dollars that all episodes of each agent may spend, or with `NAME=` before it those
    /// of one agent. May be repeated.
    #[arg(long, value_name = "DOLLARS", value_parser = agent_cap)]
    pub agent_budget: Vec<AgentCap>,
    /// The most dollars that judging may spend.
    #[arg(long, value_name = "DOLLARS", value_parser = cap)]
    pub judge_budget: Option<Cap>,
    /// The most tokens of all model calls of an attempt, input and output.
    #[arg(long, value_name = "N", value_parser = token_cap)]
    pub max_tokens: Option<TokenCap>,
    /// Gives an answer less room than it asks for, if only that fits the budget; the
    /// record of the call says so.
    #[arg(long)]
    pub shorten: bool,
    /// A file of prices, whose rows come before those of `longhaul prices`, in place of the
    /// setting `prices.file`.
    #[arg(long, value_name = "FILE")]
    pub prices: Option<PathBuf>,
}

/// A cap on dollars; none lifts what is said elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap(pub Option<Money>);

/// A judge; none lifts what is said elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgeArg(pub Option<JudgeTerms>);

/// A cap on tokens; none lifts what is said elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenCap(pub Option<u64>);

/// A cap for one agent, or for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentCap {
    /// The agent's name; each if absent.
    pub agent: Option<String>,
    /// The cap.
    pub cap: Option<Money>,
}

pub(crate) fn cap(text: &str) -> Result<Cap, String> {
    runfile::cap(text).map(Cap)
}

pub(crate) fn judge_arg(text: &str) -> Result<JudgeArg, String> {
    runfile::judge(text).map(JudgeArg)
}

fn token_cap(text: &str) -> Result<TokenCap, String> {
    runfile::token_cap(text).map(TokenCap)
}

fn agent_cap(text: &str) -> Result<AgentCap, String> {
    let (agent, amount) = match text.rsplit_once('=') {
        Some((name, amount)) => (Some(name.to_owned()), amount),
        None => (None, text),
    };
    Ok(AgentCap { agent, cap: runfile::cap(amount)? })
}

/// `longhaul prices`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul prices
  longhaul prices claude-sonnet-4-6
  longhaul prices --prices mine.toml --format json

Dollars for a million tokens, by the length of the context, and by tier of service where that has
prices of its own; the first row that fits a model counts. `not verified` was read in another
project's table, and not where the vendor publishes it.
docs/budgets.md says how a file of yours is written.")]
pub struct PricesArgs {
    /// Only rows that fit this model, or have it in their name; `VENDOR:` before it narrows them.
    #[arg(value_name = "MODEL")]
    pub model: Option<String>,
    /// A file whose rows come before those that are compiled in, in place of the setting
    /// `prices.file`.
    #[arg(long, value_name = "FILE")]
    pub prices: Option<PathBuf>,
    /// The form of the answer.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `longhaul plan`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul plan diff monday.toml tuesday.toml
  longhaul plan print monday.toml

A run file is checked with `longhaul run FILE.toml --check`, and made of a command line with
`longhaul run ... --print-run-file`.")]
pub struct PlanArgs {
    /// What to do with run files.
    #[command(subcommand)]
    pub command: PlanCommand,
}

/// `longhaul plan ...`
#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Say what differs between two run files, by what they mean.
    Diff {
        /// A run file.
        #[arg(value_name = "FILE")]
        one: PathBuf,
        /// Another run file.
        #[arg(value_name = "OTHER")]
        other: PathBuf,
        /// The form of the answer.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Print a run file in its one form: the same words in the same order.
    Print {
        /// The run file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

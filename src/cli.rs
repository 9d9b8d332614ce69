//! The command line: what can be asked, and the help that explains it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::output::Format;

/// Runs computer-use agents on real software, and remembers every step.
#[derive(Debug, Parser)]
#[command(name = "longhaul", version, after_long_help = crate::exit::HELP, max_term_width = 100)]
pub struct Cli {
    /// The settings file; `longhaul settings` prints one with every default.
    #[arg(long, global = true, value_name = "PATH", env = "LONGHAUL_SETTINGS", help_heading = "Everywhere")]
    pub settings: Option<PathBuf>,
    /// Says more on stderr; twice says most. RUST_LOG has the last word.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Everywhere")]
    pub verbose: u8,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What can be asked.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run tasks of a benchmark with agents, to verdicts.
    Run(Box<RunArgs>),
    /// Run a coordinator by itself, for workers and clients of this and other machines.
    Serve(ServeArgs),
    /// Run a worker: it takes episodes from a coordinator and runs them in sandboxes.
    Worker(WorkerArgs),
    /// Show workers, runs and what is live.
    Status(StatusArgs),
    /// Follow a run until it has settled.
    Watch(WatchArgs),
    /// Show a run, an episode, its steps, logs and screenshots.
    Show(ShowArgs),
    /// Write trajectories as files.
    Export(crate::commands::export::ExportArgs),
    /// Stop a run: what is live is ended, what waits is settled as cancelled.
    Cancel(CancelArgs),
    /// List, build, check, remove and explain layers.
    Layers(LayersArgs),
    /// Read a benchmark and report every oddity in it.
    Lint(crate::commands::lint::LintArgs),
    /// Check what this machine offers, and say how to mend what is missing.
    Doctor(DoctorArgs),
    /// Print the settings file with every default, or check one.
    Settings(SettingsArgs),
}

/// Which benchmark, and which of its tasks.
#[derive(Debug, Args)]
pub struct PickArgs {
    /// The benchmark: a folder with `environments/*/env.json` and `splits/`.
    #[arg(value_name = "BENCHMARK")]
    pub benchmark: PathBuf,
    /// A task, as ENV/TASK; globs are fine (`calc_*/sum*`). May be repeated.
    #[arg(long = "task", value_name = "ENV/TASK", help_heading = "Which tasks")]
    pub tasks: Vec<String>,
    /// The tasks of this split of the benchmark (`test`, `long_horizon`, ...).
    #[arg(long, value_name = "NAME", help_heading = "Which tasks")]
    pub split: Option<String>,
    /// Only tasks of envs that match this glob. May be repeated.
    #[arg(long = "env", value_name = "GLOB", help_heading = "Which tasks")]
    pub envs: Vec<String>,
    /// Only tasks of this difficulty. May be repeated.
    #[arg(long = "difficulty", value_name = "WORD", help_heading = "Which tasks")]
    pub difficulties: Vec<String>,
    /// Only tasks of envs or tasks with this tag. May be repeated.
    #[arg(long = "tag", value_name = "WORD", help_heading = "Which tasks")]
    pub tags: Vec<String>,
    /// Puts the tasks into an order that this number decides.
    #[arg(long, value_name = "SEED", help_heading = "Which tasks")]
    pub shuffle: Option<u64>,
    /// At most so many tasks, after everything else.
    #[arg(long, value_name = "N", help_heading = "Which tasks")]
    pub limit: Option<usize>,
}

/// What every env stands on, and where layers are.
#[derive(Debug, Args)]
pub struct LayerPlaceArgs {
    /// The folder of layers; it may be shared between machines.
    #[arg(long, value_name = "DIR", help_heading = "Where")]
    pub layers: Option<PathBuf>,
    /// The image that every env stands on: `debian`, a .sif file, or `docker://...`.
    #[arg(long, value_name = "IMAGE", help_heading = "Where")]
    pub base: Option<String>,
    /// A folder on this node's own disk for sandboxes, caches and spools.
    #[arg(long, value_name = "DIR", help_heading = "Where")]
    pub scratch: Option<PathBuf>,
}

/// What becomes of envs that cannot be run here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Unfit {
    /// Nothing is run.
    #[default]
    Refuse,
    /// They are left out, and named.
    Skip,
    /// They are run all the same; what their scripts show may be wrong.
    Run,
}

/// `longhaul run`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul run examples/benchmark --agent idle
  longhaul run CLONE/benchmarks/cua_world --task gpredict_env/add_ground_station \\
      --agent scripted:actions.jsonl
  longhaul run BENCHMARK --split test --difficulty easy --shuffle 1 --limit 20 \\
      --agent scripted:answers/ --samples 3 --dry-run

Without --coordinator, the run has a coordinator of its own over the store folder and one
worker on this machine. The first Ctrl-C stops in order, the second at once; what was stored
stays. Episodes that fail are data: the command then still succeeds (but see --fail-on-fault).")]
pub struct RunArgs {
    /// Which tasks.
    #[command(flatten)]
    pub pick: PickArgs,
    /// An agent: `scripted:FILE.jsonl`, `scripted:FOLDER` (with ENV/TASK.jsonl), or `idle`;
    /// `NAME=` before it names it. Each one runs every task. May be repeated.
    #[arg(long = "agent", value_name = "SPEC", required = true, help_heading = "How")]
    pub agents: Vec<String>,
    /// How often each task is run by each agent.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), help_heading = "How")]
    pub samples: u32,
    /// The most steps of an episode, whatever its task says.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "How")]
    pub steps: Option<u32>,
    /// The longest that an agent may act in an episode, in place of `run.time`.
    #[arg(long, value_name = "DURATION", value_parser = crate::units::duration, help_heading = "How")]
    pub time: Option<longhaul_core::time::Millis>,
    /// The most attempts of an episode that end in a fault of its own.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "How")]
    pub max_attempts: Option<u32>,
    /// Whether an env hook that fails is a fault: `strict`, `tolerate`, or `tolerate:ENV`
    /// for one env (globs are fine). May be repeated; later ones win.
    #[arg(long, value_name = "POLICY", help_heading = "How")]
    pub hook_policy: Vec<String>,
    /// What becomes of envs that need what a container cannot give (systemd, docker, Windows).
    #[arg(long, value_enum, value_name = "HOW", default_value_t, help_heading = "How")]
    pub unfit: Unfit,
    /// A name for the run, for people.
    #[arg(long, value_name = "TEXT", help_heading = "How")]
    pub name: Option<String>,
    /// Says what would run and what it needs, and starts nothing.
    #[arg(long, help_heading = "How")]
    pub dry_run: bool,
    /// Ends with code 7 if episodes of the run are faulted.
    #[arg(long, help_heading = "How")]
    pub fail_on_fault: bool,
    /// The form of the result on stdout.
    #[arg(long, value_enum, default_value_t, help_heading = "How")]
    pub format: Format,
    /// The folder of the store (made if it is not there).
    #[arg(long, value_name = "DIR", conflicts_with = "coordinator", help_heading = "Where")]
    pub store: Option<PathBuf>,
    /// Submits to a coordinator that runs already, named by its access file.
    #[arg(long, value_name = "ACCESS", help_heading = "Where")]
    pub coordinator: Option<PathBuf>,
    /// Submits, prints the run's id and ends, in place of following it.
    #[arg(long, requires = "coordinator", help_heading = "Where")]
    pub detach: bool,
    /// The most attempts at once on this machine.
    #[arg(long, value_name = "N", conflicts_with = "coordinator", help_heading = "Where")]
    pub slots: Option<u32>,
    /// Where layers and scratch are.
    #[command(flatten)]
    pub place: LayerPlaceArgs,
}

/// `longhaul serve`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul serve --store results
  longhaul serve --store results --listen 0.0.0.0:7420 --host login1.cluster

Programs of the same user on this machine reach it through the store folder. For other
machines, --listen opens TCP with TLS; the file `access/access.json` in the store folder
(mode 0600) holds the address, the certificate and the token: give it to
`--coordinator`.")]
pub struct ServeArgs {
    /// The folder of the store (made if it is not there).
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Also listens here, with TLS; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<std::net::SocketAddr>,
    /// The name or address under which other machines reach this one; its host name if
    /// not given.
    #[arg(long, value_name = "HOST", requires = "listen")]
    pub host: Option<String>,
}

/// `longhaul worker`
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  longhaul worker --coordinator results/access/access.json
  longhaul worker --coordinator results/access/access.json --slots 4
  longhaul worker clean

In a Slurm allocation the worker stays within its processors and memory by itself. The first
TERM or INT delivers what was recorded and gives back what runs; the second ends it at once."
)]
pub struct WorkerArgs {
    /// The access file of the coordinator.
    #[arg(long, value_name = "ACCESS", required = true)]
    pub coordinator: Option<PathBuf>,
    /// The most attempts at once, whatever the resources.
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
    /// Ends when its stdin is closed: how the worker of `run` ends with it, however that ends.
    #[arg(long, hide = true)]
    pub tethered: bool,
    /// Where layers and scratch are.
    #[command(flatten)]
    pub place: LayerPlaceArgs,
    /// Something else than to work.
    #[command(subcommand)]
    pub command: Option<WorkerCommand>,
}

/// `longhaul worker ...`
#[derive(Debug, Subcommand)]
pub enum WorkerCommand {
    /// Remove what dead workers left on this machine: sandboxes, mounts, files.
    Clean {
        /// Where layers and scratch are.
        #[command(flatten)]
        place: LayerPlaceArgs,
    },
}

/// Where results are read: a coordinator, or a store folder.
#[derive(Debug, Args)]
pub struct SourceArgs {
    /// A coordinator, named by its access file.
    #[arg(long, value_name = "ACCESS", conflicts_with = "store", help_heading = "Where")]
    pub coordinator: Option<PathBuf>,
    /// The folder of a store; read through its coordinator if one is alive, else directly.
    #[arg(long, value_name = "DIR", help_heading = "Where")]
    pub store: Option<PathBuf>,
}

/// `longhaul status`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul status
  longhaul status --store results --format json")]
pub struct StatusArgs {
    /// Where from.
    #[command(flatten)]
    pub source: SourceArgs,
    /// The form of the answer.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `longhaul watch`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul watch
  longhaul watch 0abc --coordinator access.json

Ctrl-C ends the watching, not the run.")]
pub struct WatchArgs {
    /// The run: its id, the unambiguous start or end of it, or `latest`.
    #[arg(value_name = "RUN", default_value = "latest")]
    pub run: String,
    /// Where from.
    #[command(flatten)]
    pub source: SourceArgs,
}

/// `longhaul show`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul show                              the latest run, as a table
  longhaul show latest/3                     an episode: settlement, attempts, logs
  longhaul show latest/3 --steps             its steps, a line each
  longhaul show latest/3 --log post_start    one of its logs
  longhaul show latest/3 --screenshot 0 -o first.png")]
pub struct ShowArgs {
    /// RUN or RUN/INDEX; RUN is an id, the unambiguous start or end of one, or `latest`.
    #[arg(value_name = "RUN[/INDEX]", default_value = "latest")]
    pub what: String,
    /// The steps of the episode.
    #[arg(long, conflicts_with_all = ["log", "screenshot"])]
    pub steps: bool,
    /// A log of the episode, by name.
    #[arg(long, value_name = "NAME", conflicts_with = "screenshot")]
    pub log: Option<String>,
    /// The screenshot of a step, as PNG.
    #[arg(long, value_name = "STEP")]
    pub screenshot: Option<u32>,
    /// The attempt, if not the one that settled the episode or the last.
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
    /// Where the screenshot or the log is written; stdout if not given and no terminal.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Where from.
    #[command(flatten)]
    pub source: SourceArgs,
    /// The form of the answer.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `longhaul cancel`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul cancel 0abc --coordinator access.json
  longhaul cancel latest --store results

Verdicts that are in stay. Repeating it changes nothing. It works on a store that no
coordinator has open, too.")]
pub struct CancelArgs {
    /// The run: its id, the unambiguous start or end of it, or `latest`.
    #[arg(value_name = "RUN")]
    pub run: String,
    /// Where from.
    #[command(flatten)]
    pub source: SourceArgs,
}

/// `longhaul layers`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul layers ls
  longhaul layers build BENCHMARK --env calc_env     on a login node, for nodes without network
  longhaul layers why BENCHMARK --env calc_env       the keys of its layers and what is there
  longhaul layers verify
  longhaul layers prune --to 50GiB")]
pub struct LayersArgs {
    /// What to do with layers.
    #[command(subcommand)]
    pub command: LayersCommand,
}

/// `longhaul layers ...`
#[derive(Debug, Subcommand)]
pub enum LayersCommand {
    /// List the layers that are there.
    Ls {
        /// The folder of layers.
        #[arg(long, value_name = "DIR")]
        layers: Option<PathBuf>,
        /// The form of the answer.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Build the layers of the picked envs, without running a task.
    Build {
        /// Which envs: those of the picked tasks.
        #[command(flatten)]
        pick: PickArgs,
        /// Whether an env hook that fails is a fault: `strict`, `tolerate`, `tolerate:ENV`.
        #[arg(long, value_name = "POLICY")]
        hook_policy: Vec<String>,
        /// Where layers and scratch are.
        #[command(flatten)]
        place: LayerPlaceArgs,
    },
    /// Read every layer and compare it with its digest.
    Verify {
        /// The folder of layers.
        #[arg(long, value_name = "DIR")]
        layers: Option<PathBuf>,
        /// The form of the answer.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Remove the least recently used layers; never one that is in use.
    Prune {
        /// The folder of layers.
        #[arg(long, value_name = "DIR")]
        layers: Option<PathBuf>,
        /// What may stay, in place of the setting `layers.size_limit`.
        #[arg(long, value_name = "SIZE", value_parser = crate::units::size)]
        to: Option<u64>,
    },
    /// Say which layers envs need, what their keys rest on, and whether they are there.
    Why {
        /// Which envs: those of the picked tasks.
        #[command(flatten)]
        pick: PickArgs,
        /// Whether an env hook that fails is a fault: it is part of the keys.
        #[arg(long, value_name = "POLICY")]
        hook_policy: Vec<String>,
        /// Where layers and scratch are.
        #[command(flatten)]
        place: LayerPlaceArgs,
        /// The form of the answer.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
}

/// `longhaul doctor`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul doctor
  longhaul doctor --format json")]
pub struct DoctorArgs {
    /// The folder of the store.
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Where layers and scratch are.
    #[command(flatten)]
    pub place: LayerPlaceArgs,
    /// The form of the answer.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `longhaul settings`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul settings > ~/.config/longhaul/settings.toml
  longhaul settings --check settings.toml")]
pub struct SettingsArgs {
    /// Checks this file in place of printing the defaults.
    #[arg(long, value_name = "FILE")]
    pub check: Option<PathBuf>,
}

//! The command line: what can be asked, and the help that explains it.

mod common;
mod run;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub use common::{PickArgs, SourceArgs, Unfit, VenueArgs};
pub use longhaul_node::cli::{DoctorArgs, Everywhere, FolderCommand, LayerPlaceArgs, WorkerArgs, WorkerCommand};
pub use run::{AgentCap, Cap, JudgeArg, PlanArgs, PlanCommand, PricesArgs, RunArgs, SpendingArgs, TokenCap};
pub(crate) use run::{cap, judge_arg};

use crate::output::Format;

/// Runs computer-use agents on real software, and remembers every step.
#[derive(Debug, Parser)]
#[command(name = "longhaul", version, after_long_help = crate::exit::HELP, max_term_width = 100)]
pub struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub everywhere: Everywhere,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What can be asked.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run tasks of a benchmark with agents, to verdicts.
    Run(Box<RunArgs>),
    /// Try the setup of tasks without an agent, and list those that do not start.
    Preflight(Box<crate::commands::preflight::PreflightArgs>),
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
    /// Compare agents, and say what is known of their difference.
    Compare(crate::commands::compare::CompareArgs),
    /// Write runs as a page, a document or a table.
    Report(crate::commands::report::ReportArgs),
    /// Write trajectories as files.
    Export(crate::commands::export::ExportArgs),
    /// Read results of Gym-Anything's own runners into a store, to compare runs with them.
    Import(crate::commands::import::ImportArgs),
    /// Judge the stored trajectories of a run again, with another judge or checklist.
    Rejudge(Box<crate::commands::rejudge::RejudgeArgs>),
    /// Show what a run may spend and has spent, or raise its budgets.
    Budget(crate::commands::budget::BudgetArgs),
    /// Give a key of a model vendor to a coordinator.
    Secrets(crate::commands::secrets::SecretsArgs),
    /// Stop a run: what is live is ended, what waits is settled as cancelled.
    Cancel(CancelArgs),
    /// Go on with a run, whatever had stopped it.
    Resume(Box<ResumeArgs>),
    /// List, build, check, remove and explain layers.
    Layers(LayersArgs),
    /// Make the image that envs stand on, and say where it is.
    Base(crate::commands::base::BaseArgs),
    /// Check a store, copy and restore it, drop old pictures from it, or merge others into it.
    Store(StoreArgs),
    /// Print what models cost, as runs are priced.
    Prices(PricesArgs),
    /// Compare run files.
    Plan(PlanArgs),
    /// Look at what is asked of Slurm, and why nothing starts.
    Slurm(crate::commands::slurm::SlurmArgs),
    /// Read a benchmark and report every oddity in it.
    Lint(crate::commands::lint::LintArgs),
    /// Check what this machine offers, and say how to mend what is missing.
    Doctor(DoctorArgs),
    /// Print the settings file with every default, or check one.
    Settings(SettingsArgs),
}

/// `longhaul serve`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul serve --store results
  longhaul serve --store results --listen 0.0.0.0:7420 --host login1.cluster
  longhaul serve --store /shared/results --slurm --as-allocation     where login nodes end daemons

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
    /// Asks Slurm for workers, by the pools of the settings.
    #[arg(long)]
    pub slurm: bool,
    /// Runs the coordinator in a Slurm allocation of its own (`[slurm.coordinator]` in the
    /// settings), which the next one follows before its time is over, until no run is open any more.
    #[arg(long, requires = "slurm", conflicts_with = "listen")]
    pub as_allocation: bool,
    /// What a coordinator in such an allocation is started with.
    #[arg(long, value_name = "N", hide = true, requires = "slurm", conflicts_with_all = ["as_allocation", "listen"])]
    pub generation: Option<u64>,
    /// Where layers and scratch of those workers are.
    #[command(flatten)]
    pub place: LayerPlaceArgs,
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
  longhaul show latest/3 --calls             its model calls, a line each
  longhaul show latest/3 --request 7         what was sent to the model in call 7
  longhaul show latest/3 --provenance        what its verdict rests on, by digest
  longhaul show latest/3 --log post_start    one of its logs
  longhaul show latest/3 --screenshot 0 -o first.png")]
pub struct ShowArgs {
    /// RUN or RUN/INDEX; RUN is an id, the unambiguous start or end of one, or `latest`.
    #[arg(value_name = "RUN[/INDEX]", default_value = "latest")]
    pub what: String,
    /// The steps of the episode.
    #[arg(long, group = "part")]
    pub steps: bool,
    /// The model calls of the episode, with what they cost.
    #[arg(long, group = "part")]
    pub calls: bool,
    /// What the episode's verdict rests on: digests of task, env, verifier and layers, settings,
    /// prices, versions. Of the attempt that settled it.
    #[arg(long, group = "part", conflicts_with = "attempt")]
    pub provenance: bool,
    /// The body of a model call's request, byte by byte as it was sent.
    #[arg(long, value_name = "CALL", group = "part")]
    pub request: Option<u32>,
    /// The body of a model call's answer, as far as it came.
    #[arg(long, value_name = "CALL", group = "part")]
    pub response: Option<u32>,
    /// A log of the episode, by name.
    #[arg(long, value_name = "NAME", group = "part")]
    pub log: Option<String>,
    /// The screenshot of a step, as PNG.
    #[arg(long, value_name = "STEP", group = "part")]
    pub screenshot: Option<u32>,
    /// The attempt, if not the one that settled the episode or the last.
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
    /// Where the screenshot, the log or the body is written, in place of stdout.
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

/// `longhaul resume`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul resume latest --store results
  longhaul resume 0abc --store results --only faulted,not-started
  longhaul resume latest --coordinator access.json --detach

What is not settled is brought to its end, and so is what was cancelled. Verdicts that are in stay,
and attempts that were made count in costs and time. Episodes that were cut off go on where they
were (docs/resuming.md). `--only unverified` verifies again alone: what was recorded is gone through
once more, and no model is asked.")]
pub struct ResumeArgs {
    /// The run: its id, the unambiguous start or end of it, or `latest`.
    #[arg(value_name = "RUN", default_value = "latest")]
    pub run: String,
    /// Of what is settled, which is done again: `cancelled` (if nobody says), `faulted`,
    /// `unverified`, `not-started`; more with commas between.
    #[arg(long, value_name = "STATES", value_delimiter = ',', value_parser = crate::commands::resume::kind)]
    pub only: Vec<longhaul_core::outcome::SettlementKind>,
    /// How the result is written.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Ends with code 7 if episodes of the run are faulted.
    #[arg(long)]
    pub fail_on_fault: bool,
    /// Where.
    #[command(flatten)]
    pub venue: VenueArgs,
    /// Orders it and ends, in place of following it.
    #[arg(long, requires = "coordinator", help_heading = "Where")]
    pub detach: bool,
}

/// `longhaul layers`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul layers ls
  longhaul layers build BENCHMARK --env calc_env     on a login node, for nodes without network
  longhaul layers why BENCHMARK --env calc_env       the keys of its layers and what is there
  longhaul layers verify
  longhaul layers prune --to 50GiB
  longhaul layers export BENCHMARK --env calc_env -o calc.layers
  longhaul layers import calc.layers                 on a cluster without network")]
pub struct LayersArgs {
    /// What to do with layers.
    #[command(subcommand)]
    pub command: LayersCommand,
}

/// `longhaul layers ...`
#[derive(Debug, Subcommand)]
pub enum LayersCommand {
    /// What needs the folder alone.
    #[command(flatten)]
    Folder(FolderCommand),
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
    /// Remove the least recently used layers; never one that is in use, or that a run rests on.
    #[command(after_help = "\
Example:
  longhaul layers prune --to 50GiB --store results --store /backup/results

What a run of the named stores stood on is kept, so that --layers-from can use it again. Stores
that are not named are not known: name all whose runs matter.")]
    Prune {
        /// The folder of layers.
        #[arg(long, value_name = "DIR")]
        layers: Option<PathBuf>,
        /// A store whose runs keep their layers, in place of the setting `paths.store`. May be
        /// repeated.
        #[arg(long = "store", value_name = "DIR")]
        stores: Vec<PathBuf>,
        /// Removes also what runs rest on; --layers-from cannot use it again then.
        #[arg(long, conflicts_with = "stores")]
        cited: bool,
        /// What may stay, in place of the setting `layers.size_limit`.
        #[arg(long, value_name = "SIZE", value_parser = crate::units::size)]
        to: Option<u64>,
    },
    /// Write layers and their base image into one file, for a cluster without a network.
    Export(Box<LayersExportArgs>),
    /// Say which layers envs need, what their keys rest on, and whether they are there.
    Why {
        /// Which envs: those of the picked tasks.
        #[command(flatten)]
        pick: PickArgs,
        /// Whether an env hook that fails is a fault: it is part of the keys.
        #[arg(long, value_name = "POLICY")]
        hook_policy: Vec<String>,
        /// The store whose runs are looked through for these layers, in place of the setting
        /// `paths.store`.
        #[arg(long, value_name = "DIR")]
        store: Option<PathBuf>,
        /// Where layers and scratch are.
        #[command(flatten)]
        place: LayerPlaceArgs,
        /// The form of the answer.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
}

/// `longhaul layers export`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul layers export BENCHMARK --env calc_env -o calc.layers
  longhaul layers export --run latest --store results -o results.layers

On the other cluster: longhaul layers import calc.layers. The layers have to be there: build
them first with `longhaul layers build`.")]
pub struct LayersExportArgs {
    /// The benchmark whose envs' layers are written: those of the picked tasks.
    #[arg(value_name = "BENCHMARK", required_unless_present = "run", conflicts_with = "run")]
    pub benchmark: Option<PathBuf>,
    /// The layers that this run stood on, in place of those of a benchmark.
    #[arg(long, value_name = "RUN", conflicts_with_all = ["tasks", "split", "envs", "hook_policy"])]
    pub run: Option<String>,
    /// The file to be written.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Leaves out the base image, for a cluster that has the same one.
    #[arg(long)]
    pub without_base: bool,
    /// The form of the answer.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// A task, as ENV/TASK; globs are fine (`calc_*/sum*`). May be repeated.
    #[arg(long = "task", value_name = "ENV/TASK", help_heading = "Which tasks")]
    pub tasks: Vec<String>,
    /// The tasks of this split of the benchmark (`test`, `long_horizon`, ...).
    #[arg(long, value_name = "NAME", help_heading = "Which tasks")]
    pub split: Option<String>,
    /// Only tasks of envs that match this glob. May be repeated.
    #[arg(long = "env", value_name = "GLOB", help_heading = "Which tasks")]
    pub envs: Vec<String>,
    /// Whether an env hook that fails is a fault: it is part of the keys.
    #[arg(long, value_name = "POLICY", help_heading = "Which tasks")]
    pub hook_policy: Vec<String>,
    /// Where the run is.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Where layers and scratch are.
    #[command(flatten)]
    pub place: LayerPlaceArgs,
}

/// `longhaul store`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul store verify results
  longhaul store verify results --format json
  longhaul store backup results /backup/results-monday
  longhaul store restore /backup/results-monday results
  longhaul store prune results --older-than 90d
  longhaul store merge cluster-a cluster-b results

`verify`, `prune` and `merge` need the store for themselves: while a coordinator has it open they
refuse, and say which process that is. Stop it first (TERM; `longhaul serve` and `run` end in order):
workers go on meanwhile, and deliver what they recorded when it is back. A check reads everything and
changes nothing; what it finds ends it with code 5.")]
pub struct StoreArgs {
    /// What to do with a store.
    #[command(subcommand)]
    pub command: StoreCommand,
}

/// `longhaul store ...`
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Read every record and blob, and report what is damaged or missing.
    Verify {
        /// The folder of the store, in place of the setting `paths.store`.
        #[arg(value_name = "FOLDER")]
        store: Option<PathBuf>,
        /// The form of the answer.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Copy a store into a new folder, also while it is in use; files that never change are linked
    /// within one filesystem.
    #[command(after_help = "\
Examples:
  longhaul store backup results /backup/results-monday

Where a coordinator has the store open, it makes the copy itself, and goes on meanwhile.")]
    Backup {
        /// The folder of the store.
        #[arg(value_name = "FOLDER")]
        store: PathBuf,
        /// The folder of the copy, which is not there yet.
        #[arg(value_name = "DEST")]
        copy: PathBuf,
        /// The form of the answer.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Put a backup in the place of a store that was lost.
    #[command(after_help = "\
Examples:
  longhaul store restore /backup/results-monday results
  longhaul serve --store results            workers that live come back and deliver what they have
  longhaul store accept results             says what the backup knew, and what was heard since
  longhaul store accept results --yes
  longhaul resume latest --store results

Restore it to where the lost store was, so that its workers find it. It begins no episode and spends
nothing until what it does not know was accepted (docs/store.md). The backup stays as it is.")]
    Restore {
        /// The folder of the backup.
        #[arg(value_name = "BACKUP")]
        backup: PathBuf,
        /// The folder of the store, which is not there yet.
        #[arg(value_name = "FOLDER")]
        store: PathBuf,
        /// The form of the answer.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Say what a restored store knows and what it heard since; with --yes, open it.
    #[command(after_help = "\
Examples:
  longhaul store accept results
  longhaul store accept results --yes
  longhaul store accept results --yes --without-spools     workers of the backup will not come back

What was spent by attempts that both began and ended between the backup and the loss is known to
nobody here: compare with the vendors' bills.")]
    Accept {
        /// The folder of the store, in place of the setting `paths.store`.
        #[arg(value_name = "FOLDER")]
        store: Option<PathBuf>,
        /// Accepts it: from now on episodes are begun and money is granted.
        #[arg(long)]
        yes: bool,
        /// Also where workers that held something in the backup were not heard.
        #[arg(long, requires = "yes")]
        without_spools: bool,
        /// The form of the answer.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Drop the pictures of runs that are over, and keep what they came to.
    #[command(after_help = "\
Examples:
  longhaul store prune results --older-than 90d --dry-run
  longhaul store prune results --older-than 90d
  longhaul store prune results --run 6h2txy09fzenp

Dropped are screenshots, the large parts of model calls (what models were shown, most of all),
logs that are pictures, and what snapshots saved, unless another run has the same. Scores,
verdicts, steps, texts, costs and what a verdict rests on stay. `show` and `export` say that
pictures were dropped; such a run can be neither replayed nor judged again by its pictures.
Nobody may have the store open.")]
    Prune {
        /// The folder of the store.
        #[arg(value_name = "FOLDER")]
        store: PathBuf,
        /// This run, by its whole id. May be repeated.
        #[arg(long = "run", value_name = "RUN", required_unless_present = "older_than")]
        runs: Vec<longhaul_core::ids::RunId>,
        /// Every run that was over so long ago.
        #[arg(long, value_name = "AGE", value_parser = crate::units::duration)]
        older_than: Option<longhaul_core::time::Millis>,
        /// Says what would be dropped, and drops nothing.
        #[arg(long)]
        dry_run: bool,
        /// The form of the answer.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Copy the runs of stores that are over into another one, with all that they name.
    #[command(after_help = "\
Examples:
  longhaul store merge cluster-a cluster-b results
  longhaul store merge cluster-a results --run 0abc

A run is there whole or not at all, under its own id; one that is there already and the same is left
as it is, and another one of the same id is refused. After a merge that was cut short, the same
command goes on. Nobody may have any of the stores open.")]
    Merge {
        /// The folders of the stores that runs come from.
        #[arg(value_name = "FROM", required = true, num_args = 1..)]
        from: Vec<PathBuf>,
        /// The folder of the store that they go to; made if it is not there.
        #[arg(value_name = "INTO", required = true)]
        into: PathBuf,
        /// Only this run, by its whole id. May be repeated.
        #[arg(long = "run", value_name = "RUN")]
        runs: Vec<longhaul_core::ids::RunId>,
        /// The form of the answer.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
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

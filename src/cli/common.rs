//! What several commands ask: which tasks, on what they stand, where they run, where results are.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use longhaul_node::cli::LayerPlaceArgs;

/// Which benchmark, and which of its tasks.
#[derive(Debug, Args)]
pub struct PickArgs {
    /// The benchmark: a folder with `environments/*/env.json` and `splits/`; `run` also takes a
    /// run file (`FILE.toml`), which names it, and `run:RUN`, the tasks of an earlier run.
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
    /// Leaves out the tasks that this file lists, as `longhaul preflight` writes it. May be repeated.
    #[arg(long = "quarantine", value_name = "FILE", help_heading = "Which tasks")]
    pub quarantine: Vec<PathBuf>,
    /// Puts the tasks into an order that this number decides.
    #[arg(long, value_name = "SEED", help_heading = "Which tasks")]
    pub shuffle: Option<u64>,
    /// At most so many tasks, after everything else.
    #[arg(long, value_name = "N", help_heading = "Which tasks")]
    pub limit: Option<usize>,
}

/// Where episodes run: by a coordinator of the command's own, or by another one.
#[derive(Debug, Args)]
pub struct VenueArgs {
    /// The folder of the store (made if it is not there).
    #[arg(long, value_name = "DIR", conflicts_with = "coordinator", help_heading = "Where")]
    pub store: Option<PathBuf>,
    /// Submits to a coordinator that runs already, named by its access file.
    #[arg(long, value_name = "ACCESS", help_heading = "Where")]
    pub coordinator: Option<PathBuf>,
    /// The most attempts at once on this machine.
    #[arg(long, value_name = "N", conflicts_with = "coordinator", help_heading = "Where")]
    pub slots: Option<u32>,
    /// Asks Slurm for workers, by the pools of the settings, in place of one on this machine.
    /// The store's `access` folder, the layers and this program have to be on disks that the
    /// nodes share.
    #[arg(long, conflicts_with_all = ["coordinator", "slots"], help_heading = "Where")]
    pub slurm: bool,
    /// Where layers and scratch are.
    #[command(flatten)]
    pub place: LayerPlaceArgs,
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

/// Where results are read: a coordinator, or a store folder.
#[derive(Clone, Debug, Args)]
pub struct SourceArgs {
    /// A coordinator, named by its access file.
    #[arg(long, value_name = "ACCESS", conflicts_with = "store", help_heading = "Where")]
    pub coordinator: Option<PathBuf>,
    /// The folder of a store; read through its coordinator if one is alive, else directly.
    #[arg(long, value_name = "DIR", help_heading = "Where")]
    pub store: Option<PathBuf>,
}

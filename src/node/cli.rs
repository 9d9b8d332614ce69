//! The command line of the node's program; the parts are those of the whole one too.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::output::Format;

/// The part of longhaul that runs on nodes: workers, and the helpers of their sandboxes.
///
/// It holds no coordinator and no store. Everything else is done with `longhaul`, whose batch
/// scripts start this program where it lies beside it.
#[derive(Debug, Parser)]
#[command(name = crate::PROGRAM, version, after_long_help = crate::exit::HELP, max_term_width = 100)]
pub struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub everywhere: Everywhere,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What every command takes, of both programs.
#[derive(Debug, Args)]
pub struct Everywhere {
    /// The settings file; `longhaul settings` prints one with every default.
    #[arg(long, global = true, value_name = "PATH", env = "LONGHAUL_SETTINGS", help_heading = "Everywhere")]
    pub settings: Option<PathBuf>,
    /// Says more on stderr; twice says most. RUST_LOG has the last word.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Everywhere")]
    pub verbose: u8,
}

/// What can be asked of the node's program.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a worker: it takes episodes from a coordinator and runs them in sandboxes.
    Worker(WorkerArgs),
    /// List, check and take layers.
    Layers(NodeLayersArgs),
    /// Check what this machine offers, and say how to mend what is missing.
    Doctor(DoctorArgs),
    /// What only the whole program does.
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

/// `longhaul-node layers`
#[derive(Debug, Args)]
pub struct NodeLayersArgs {
    /// What to do with layers.
    #[command(subcommand)]
    pub command: NodeLayersCommand,
}

/// `longhaul-node layers ...`
#[derive(Debug, Subcommand)]
pub enum NodeLayersCommand {
    /// What needs the folder alone.
    #[command(flatten)]
    Folder(FolderCommand),
    /// What only the whole program does.
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

/// What is done with the layer folder alone: no benchmark, no store, no coordinator.
#[derive(Debug, Subcommand)]
pub enum FolderCommand {
    /// List the layers that are there.
    Ls {
        /// The folder of layers.
        #[arg(long, value_name = "DIR")]
        layers: Option<PathBuf>,
        /// The form of the answer.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
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
    /// Take the layers and the base image of a file; what is there already is kept.
    #[command(after_help = "\
Example:
  longhaul layers import calc.layers --layers /shared/layers

Every part is checked by its digest before it gets its name, so nothing is ever half there: an
import that was stopped is simply repeated. Take files only from people from whom you would take
a program: what is in layers runs.")]
    Import {
        /// The file, as `longhaul layers export` writes it.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The folder of layers.
        #[arg(long, value_name = "DIR")]
        layers: Option<PathBuf>,
        /// The form of the answer.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
}

/// What envs stand on, and where layers are.
#[derive(Debug, Args)]
pub struct LayerPlaceArgs {
    /// The folder of layers; it may be shared between machines.
    #[arg(long, value_name = "DIR", help_heading = "Where")]
    pub layers: Option<PathBuf>,
    /// The image that envs stand on: `debian-12`, `ubuntu-22.04`, a .sif file, or `docker://...`;
    /// with `ENV=` before it, the one that this env stands on. May be repeated.
    #[arg(long = "base", value_name = "IMAGE", help_heading = "Where")]
    pub bases: Vec<String>,
    /// A folder on this node's own disk for sandboxes, caches and spools.
    #[arg(long, value_name = "DIR", help_heading = "Where")]
    pub scratch: Option<PathBuf>,
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
    /// Graphics processors that envs may ask for, in place of `worker.gpus`.
    #[arg(long, value_name = "N")]
    pub gpus: Option<u32>,
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
    #[command(after_help = "\
Examples:
  longhaul worker clean
  longhaul worker clean --scratch /local/longhaul --undelivered

What dead workers recorded and did not deliver is kept: the next worker that starts here over the
same folder delivers it. What no coordinator takes any more stays until it is removed with --undelivered.")]
    Clean {
        /// Where layers and scratch are.
        #[command(flatten)]
        place: LayerPlaceArgs,
        /// Removes too what was recorded and not delivered: then it is lost.
        #[arg(long)]
        undelivered: bool,
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

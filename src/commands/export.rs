//! `longhaul export`: a run as files, for programs that know nothing of the store.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use longhaul_core::ids::RunId;
use longhaul_node::error::Explained as _;
use longhaul_proto::convert;
use longhaul_report::{Attempts, ExportError, Format};

use crate::cli::SourceArgs;
use crate::client::Source;
use crate::error::CliError;
use crate::settings::Settings;
use crate::{output, reading};

/// `longhaul export`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul export latest -o trajectories
  longhaul export 0abc --store results --format gym-anything -o episodes
  longhaul export latest --all-attempts -o everything

`jsonl` is run.json, episodes.jsonl, steps.jsonl and calls.jsonl (model calls; a line each), with
screenshots/ and logs/ beside them. `gym-anything` is a folder ENV/TASK/AGENT/run_SAMPLE for each episode, with
traj.jsonl, frame_00000.png (the first observation) and the following, final.png and
summary.json. The folder is made whole or not at all, and nothing is overwritten.")]
pub struct ExportArgs {
    /// The run: its id, the unambiguous start or end of it, or `latest`.
    #[arg(value_name = "RUN", default_value = "latest")]
    pub run: String,
    /// The folder to write, new or empty.
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// The form of the files.
    #[arg(long, value_enum, default_value_t)]
    pub format: ExportFormat,
    /// The steps of every attempt, those that ended in a fault too, in place of those of
    /// the attempt that settled the episode.
    #[arg(long)]
    pub all_attempts: bool,
    /// Where from.
    #[command(flatten)]
    pub source: SourceArgs,
}

/// The form of exported files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// JSON lines, a step a line, with screenshots beside them.
    #[default]
    Jsonl,
    /// Gym-Anything's own layout of episodes.
    GymAnything,
}

/// Writes the run that is meant.
///
/// # Errors
///
/// It is not there or cannot be read, the folder is not empty, or it cannot be written.
pub async fn export(args: ExportArgs, settings: &Settings) -> Result<(), CliError> {
    let source = Source::open(&args.source, settings).await?;
    let summary = source.run(&args.run).await?;
    let run: RunId = convert::parsed("run_id", &summary.run_id).map_err(CliError::Answer)?;
    let format = match args.format {
        ExportFormat::Jsonl => Format::Jsonl,
        ExportFormat::GymAnything => Format::GymAnything,
    };
    let attempts = if args.all_attempts { Attempts::All } else { Attempts::Settling };
    let out = args.output.clone();
    // Files are written and blobs read for as long as it takes: not on the runtime's threads.
    let exported =
        reading::blocking(source, move |source| longhaul_report::export(source, run, format, attempts, &out))
            .await?
            .map_err(CliError::Export)?;
    output::note(&format!(
        "run {run}: {} episodes, {} steps and {} screenshots are in {}",
        exported.episodes,
        exported.steps,
        exported.screenshots,
        args.output.display()
    ));
    Ok(())
}

/// How the command ends for such an error.
#[must_use]
pub fn exit(error: &ExportError) -> crate::exit::Exit {
    use crate::exit::Exit;
    match error {
        ExportError::NoRun { .. } | ExportError::NotEmpty { .. } => Exit::Input,
        ExportError::Write { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => Exit::Machine,
        ExportError::Write { .. } => Exit::Input,
        ExportError::MissingBlob { .. } | ExportError::Encode { .. } => Exit::Store,
        ExportError::Read { source, .. } => source.downcast_ref::<CliError>().map_or(Exit::Store, CliError::exit),
    }
}

//! `longhaul export`: a run as files, for programs that know nothing of the store.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use longhaul_core::call::CallRecord;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, RunId};
use longhaul_core::step::StepRecord;
use longhaul_core::time::Timestamp;
use longhaul_proto::{convert, v1};
use longhaul_report::{Attempts, EpisodeView, ExportError, Format, RunView, Trajectories};
use tokio::runtime::Handle;

use crate::cli::SourceArgs;
use crate::client::Source;
use crate::error::CliError;
use crate::output;
use crate::settings::Settings;
use crate::show;

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
    let handle = Handle::current();
    // Files are written and blobs read for as long as it takes: not on the runtime's threads.
    let exported = tokio::task::spawn_blocking(move || match &source {
        Source::Stored(reader) => longhaul_report::export(reader, run, format, attempts, &out),
        Source::Live(_) => {
            let live = Live { source: &source, summary: &summary, handle };
            longhaul_report::export(&live, run, format, attempts, &out)
        }
    })
    .await
    .map_err(|error| CliError::Machine(Box::new(error)))?
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

/// A live coordinator, asked from a thread that may block.
struct Live<'a> {
    source: &'a Source,
    summary: &'a v1::RunSummary,
    handle: Handle,
}

impl Trajectories for Live<'_> {
    type Error = CliError;

    fn run(&self, id: RunId) -> Result<Option<RunView>, CliError> {
        let millis = |millis| Some(Timestamp(millis)).filter(|at| at.0 > 0);
        Ok(Some(RunView {
            id,
            name: self.summary.name.clone(),
            benchmark: self.summary.benchmark.clone(),
            submitted_at: Timestamp(self.summary.submitted_at_millis),
            settled_at: millis(self.summary.settled_at_millis),
        }))
    }

    fn episodes(&self, run: RunId) -> Result<Vec<EpisodeView>, CliError> {
        let rows = self.handle.block_on(self.source.episodes(run))?;
        rows.iter()
            .map(|row| {
                let id: EpisodeId = convert::parsed("episode_id", &row.episode_id).map_err(CliError::Answer)?;
                view(id, &self.handle.block_on(self.source.episode(id))?)
            })
            .collect()
    }

    fn steps(&self, attempt: AttemptId) -> Result<Vec<StepRecord>, CliError> {
        let rows = self.handle.block_on(self.source.steps(attempt))?;
        rows.iter()
            .map(|row| serde_json::from_slice(&row.record_json))
            .collect::<Result<_, _>>()
            .map_err(|source| CliError::Record { what: format!("a step of attempt {attempt}"), source })
    }

    fn calls(&self, attempt: AttemptId) -> Result<Vec<(CallRecord, bool)>, CliError> {
        let rows = self.handle.block_on(self.source.calls(attempt))?;
        rows.iter()
            .map(|row| serde_json::from_slice(&row.record_json).map(|call| (call, row.late)))
            .collect::<Result<_, _>>()
            .map_err(|source| CliError::Record { what: format!("a model call of attempt {attempt}"), source })
    }

    fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, CliError> {
        self.handle.block_on(self.source.blob(digest))
    }
}

fn view(id: EpisodeId, answer: &v1::GetEpisodeResponse) -> Result<EpisodeView, CliError> {
    let row = convert::required("row", answer.row.as_ref()).map_err(CliError::Answer)?;
    let mut logs: BTreeMap<AttemptId, BTreeMap<String, Digest>> = BTreeMap::new();
    for log in &answer.logs {
        let attempt = convert::parsed("attempt", &log.attempt).map_err(CliError::Answer)?;
        let blob = convert::digest("blob", &log.blob).map_err(CliError::Answer)?;
        logs.entry(attempt).or_default().insert(log.name.clone(), blob);
    }
    let attempt = (!row.attempt.is_empty())
        .then(|| convert::parsed("attempt", &row.attempt))
        .transpose()
        .map_err(CliError::Answer)?;
    Ok(EpisodeView {
        id,
        task: convert::parsed("task", &row.task).map_err(CliError::Answer)?,
        agent: row.agent.clone(),
        sample: row.sample,
        plan: convert::digest("plan", &row.plan).map_err(CliError::Answer)?,
        settlement: show::settlement(row)?,
        settled_at: Some(Timestamp(row.settled_at_millis)).filter(|at| at.0 > 0),
        attempt,
        attempts: answer
            .attempts_json
            .iter()
            .map(|json| serde_json::from_slice(json))
            .collect::<Result<_, _>>()
            .map_err(|source| CliError::Record { what: format!("an attempt of episode {id}"), source })?,
        logs,
    })
}

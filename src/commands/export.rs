//! `longhaul export`: runs as files, for programs that know nothing of the store.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use longhaul_core::ids::RunId;
use longhaul_node::error::Explained as _;
use longhaul_proto::convert;
use longhaul_report::{Attempts, ChatOptions, Chosen, Coordinates, ExportError, Exported, Format, Rows};

use crate::cli::SourceArgs;
use crate::client::Source;
use crate::error::CliError;
use crate::settings::Settings;
use crate::sides::{self, Named};
use crate::{output, reading, show};

/// `longhaul export`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul export latest -o trajectories
  longhaul export 0abc --store results --format gym-anything -o episodes
  longhaul export latest --all-attempts -o everything
  longhaul export 0abc old-results#latest --format parquet -o tables
  longhaul export latest --format harbor -o jobs
  longhaul export latest:teacher --format chat --first-success --max-steps 50 -o stage1
  longhaul export latest:teacher --format chat --first-success --max-steps 200 -o stage2

`jsonl` is run.json, episodes.jsonl, steps.jsonl and calls.jsonl (model calls; a line each), with
screenshots/ and logs/ beside them. `gym-anything` is a folder ENV/TASK/AGENT/run_SAMPLE for each
episode, with traj.jsonl, frame_00000.png (the first observation) and the following, final.png and
summary.json. `parquet` is runs, episodes, attempts, steps and calls as tables. `atif` is a
trajectory.json for each episode, `harbor` the folders of Harbor's jobs and trials around it.
`chat` is a training set: train.jsonl with images/. docs/exporting.md has every field.

The folder is made whole or not at all, and nothing is overwritten.")]
pub struct ExportArgs {
    /// What is exported: RUN (its id, the unambiguous start or end of it, or `latest`), RUN:AGENT,
    /// or STORE#RUN[:AGENT] for a run of another store (STORE is its folder, or the access file of
    /// its coordinator). Several, but for `jsonl` and `gym-anything`.
    #[arg(value_name = "RUN[:AGENT]", default_value = "latest")]
    pub runs: Vec<Named>,
    /// The folder to write, new or empty.
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// The form of the files.
    #[arg(long, value_enum, default_value_t)]
    pub format: ExportFormat,
    /// The steps of every attempt, those that ended in a fault too, in place of those of
    /// the attempt that settled the episode (`jsonl`, `gym-anything`, `parquet`).
    #[arg(long)]
    pub all_attempts: bool,
    /// Writes the screenshots beside the tables (`parquet`; the other forms always do).
    #[arg(long)]
    pub screenshots: bool,
    /// What goes into a training set.
    #[command(flatten)]
    pub chat: ChatArgs,
    /// Where from.
    #[command(flatten)]
    pub source: SourceArgs,
}

const TRAINING: &str = "Training sets (--format chat)";

/// What goes into a training set.
#[derive(Clone, Debug, Args)]
pub struct ChatArgs {
    /// Only episodes of at most so many steps.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = TRAINING)]
    pub max_steps: Option<u32>,
    /// Only the first success of each task, over all that is exported.
    #[arg(long, help_heading = TRAINING)]
    pub first_success: bool,
    /// Episodes whose verdict is a failure, too.
    #[arg(long, help_heading = TRAINING)]
    pub failures_too: bool,
    /// What a row is: a step with what is seen before it, or a whole episode.
    #[arg(long, value_enum, value_name = "WHAT", help_heading = TRAINING)]
    pub rows: Option<RowKind>,
    /// How many of the last screenshots a step is shown with; 3 if nothing is said.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = TRAINING)]
    pub keep_images: Option<u32>,
    /// In what coordinates of calls are; pixels if nothing is said.
    #[arg(long, value_enum, value_name = "UNIT", help_heading = TRAINING)]
    pub coordinates: Option<Unit>,
}

/// The form of exported files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// JSON lines, a step a line, with screenshots beside them.
    #[default]
    Jsonl,
    /// Gym-Anything's own layout of episodes.
    GymAnything,
    /// Tables for pandas, DuckDB and others.
    Parquet,
    /// The Agent Trajectory Interchange Format.
    Atif,
    /// Harbor's folders of jobs and trials.
    Harbor,
    /// A training set of conversations with pictures.
    Chat,
}

/// What a row of a training set is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RowKind {
    /// A step: `prompt` and `completion`.
    Steps,
    /// An episode: `messages`.
    Episodes,
}

/// In what coordinates are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Unit {
    /// Pixels of the screenshots.
    Pixels,
    /// Thousandths of the screen.
    Thousandths,
}

/// How many screenshots a step of a training set is shown with, if nothing is said.
const KEEP_IMAGES: u32 = 3;

/// Writes the runs that are meant.
///
/// # Errors
///
/// One is not there or cannot be read, an option belongs to another form, the folder is not
/// empty, or it cannot be written.
pub async fn export(args: ExportArgs, settings: &Settings) -> Result<(), CliError> {
    let format = format(&args)?;
    let one = matches!(format, Format::Jsonl(_) | Format::GymAnything(_));
    let mut sources: Vec<Source> = Vec::new();
    let mut runs: Vec<(RunId, Vec<String>)> = Vec::new();
    for named in &args.runs {
        let opened = Source::open(&sides::place(named, &args.source), settings).await?;
        let summary = opened.run(&named.run).await?;
        let run: RunId = convert::parsed("run_id", &summary.run_id).map_err(CliError::Answer)?;
        if let Some(said) = show::dropped(&summary) {
            output::note(&format!("warning: {said}: it is exported without them"));
        }
        match runs.iter_mut().find(|(known, _)| *known == run) {
            // Two agents of a run are one export of it; the whole run is named once.
            Some((_, agents)) => match &named.agent {
                Some(agent) if !agents.is_empty() && !agents.contains(agent) => agents.push(agent.clone()),
                _ => return Err(CliError::Usage(format!("run {run} is named twice"))),
            },
            None => {
                runs.push((run, named.agent.clone().into_iter().collect()));
                sources.push(opened);
            }
        }
    }
    if one && runs.len() > 1 {
        return Err(CliError::Usage("this form holds one run: export them apart, or in another form".to_owned()));
    }
    let out = args.output.clone();
    // Files are written and blobs read for as long as it takes: not on the runtime's threads.
    let exported = reading::blocking_all(sources, move |sources| {
        let chosen = |(from, (run, agents))| Chosen { from, run, agents };
        let chosen: Vec<Chosen<'_, reading::Reading>> = sources.iter().zip(runs).map(chosen).collect();
        longhaul_report::export(&chosen, &format, &out)
    })
    .await?
    .map_err(CliError::Export)?;
    output::note(&said(&exported, &args));
    for (reason, count) in &exported.left_out {
        output::note(&format!("left out: {count} ({reason})"));
    }
    Ok(())
}

fn said(exported: &Exported, args: &ExportArgs) -> String {
    let rows = if args.format == ExportFormat::Chat { format!("{} rows of ", exported.rows) } else { String::new() };
    format!(
        "{rows}{} episodes, {} steps and {} screenshots are in {}",
        exported.episodes,
        exported.steps,
        exported.screenshots,
        args.output.display()
    )
}

/// The form that is asked for. An option of another form would be without effect, which nobody
/// asks for.
fn format(args: &ExportArgs) -> Result<Format, CliError> {
    use ExportFormat as F;
    let stray = |option: &str, forms: &str| Err(CliError::Usage(format!("{option} is for {forms} alone")));
    if args.all_attempts && !matches!(args.format, F::Jsonl | F::GymAnything | F::Parquet) {
        return stray("--all-attempts", "--format jsonl, gym-anything and parquet");
    }
    if args.screenshots && args.format != F::Parquet {
        return stray("--screenshots", "--format parquet");
    }
    let chat = &args.chat;
    let of_chat = [
        ("--max-steps", chat.max_steps.is_some()),
        ("--first-success", chat.first_success),
        ("--failures-too", chat.failures_too),
        ("--rows", chat.rows.is_some()),
        ("--keep-images", chat.keep_images.is_some()),
        ("--coordinates", chat.coordinates.is_some()),
    ];
    if let Some((option, _)) = of_chat.iter().find(|(_, given)| *given)
        && args.format != F::Chat
    {
        return stray(option, "--format chat");
    }
    if chat.rows == Some(RowKind::Episodes) && chat.keep_images.is_some() {
        return stray("--keep-images", "--rows steps");
    }
    let attempts = if args.all_attempts { Attempts::All } else { Attempts::Settling };
    Ok(match args.format {
        F::Jsonl => Format::Jsonl(attempts),
        F::GymAnything => Format::GymAnything(attempts),
        F::Parquet => Format::Parquet { attempts, screenshots: args.screenshots },
        F::Atif => Format::Atif,
        F::Harbor => Format::Harbor,
        F::Chat => Format::Chat(ChatOptions {
            max_steps: chat.max_steps,
            first_success: chat.first_success,
            failures: chat.failures_too,
            rows: match chat.rows {
                Some(RowKind::Episodes) => Rows::Episodes,
                _ => Rows::Steps { keep_images: chat.keep_images.unwrap_or(KEEP_IMAGES) },
            },
            coordinates: match chat.coordinates {
                Some(Unit::Thousandths) => Coordinates::Thousandths,
                _ => Coordinates::Pixels,
            },
        }),
    })
}

/// How the command ends for such an error.
#[must_use]
pub fn exit(error: &ExportError) -> crate::exit::Exit {
    use crate::exit::Exit;
    match error {
        ExportError::NoRun { .. } | ExportError::NoAgent { .. } | ExportError::NotEmpty { .. } => Exit::Input,
        ExportError::OneRun { .. } | ExportError::Twice { .. } => Exit::Usage,
        ExportError::Write { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => Exit::Machine,
        ExportError::Write { .. } => Exit::Input,
        // What is written here is what a disk takes or does not.
        ExportError::Table { .. } => Exit::Machine,
        ExportError::MissingBlob { .. } | ExportError::Encode { .. } | ExportError::Figure { .. } => Exit::Store,
        ExportError::Read { source, .. } => source.downcast_ref::<CliError>().map_or(Exit::Store, CliError::exit),
    }
}

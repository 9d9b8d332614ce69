//! `longhaul import`: results of Gym-Anything's own runners, so that runs of ours are compared with
//! them.
//!
//! Nothing is invented: what the files do not say stays absent. Everything is read before anything
//! is written, then put into a store of its own, which is merged into the one that is meant: the run
//! is there whole or not at all.

mod episode;
mod files;
mod names;
mod runs;
mod scored;
mod write;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use longhaul_core::ids::RunId;
use longhaul_core::imported::{Form, ImportedRun, LeftOut};
use longhaul_core::outcome::SettlementKind;
use longhaul_store::{MergeError, OpenError, Reader};
use serde_json::json;

use crate::commands::run::new_run;
use crate::error::CliError;
use crate::output::{self, Format, Table, Tone, cut};
use crate::places;
use crate::settings::Settings;
use names::Names;
use scored::Outcome;

/// How many things that cannot be used are named one by one.
const NAMED: usize = 20;

/// `longhaul import`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul import all_runs --benchmark CLONE/benchmarks/cua_world --store old
  longhaul import all_runs/exp1 --env gimp_env_all --leave-out
  longhaul import artifacts --agent claude-opus-4-6 --benchmark CLONE/benchmarks/cua_world
  longhaul compare old#latest results#latest

Two forms are read: folders EXPERIMENT/MODEL/TASK/run_N, as Gym-Anything's agents leave them, and
folders of episodes with traj.jsonl and summary.json, as its envs do (and `longhaul export
--format gym-anything`). Python pickles are not read: reading one runs what is in it. What
cannot be read is named, and nothing is imported unless --leave-out says that the rest is wanted.
docs/comparing.md says what becomes of what. Nobody may have the store open.")]
pub struct ImportArgs {
    /// The folder with the results.
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// The folder of the store (made if it is not there), in place of the setting `paths.store`.
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// The benchmark that the tasks are of: envs and tasks are called by its folders, and a verdict
    /// of a program that cannot be trusted there is none.
    #[arg(long, value_name = "DIR")]
    pub benchmark: Option<PathBuf>,
    /// The env of all tasks, where the results do not say.
    #[arg(long, value_name = "ENV")]
    pub env: Option<String>,
    /// What the agent is called: needed for episodes, which do not say; else EXPERIMENT/MODEL.
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
    /// A name for the run, for people; the folder's if nobody says.
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// Leaves out what cannot be read; the run keeps a list of it.
    #[arg(long)]
    pub leave_out: bool,
    /// Says what would be imported, and writes nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// The form of the answer.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// Why results are not imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// There are none.
    #[error("there are no results of Gym-Anything in {}", folder.display())]
    Nothing {
        /// The folder.
        folder: PathBuf,
    },
    /// There are two tellings of the same episodes.
    #[error("{} holds episodes and folders of agents, which tell of the same: name one of the two", folder.display())]
    Both {
        /// The folder.
        folder: PathBuf,
    },
    /// Some cannot be used.
    #[error("{}", unusable(.0))]
    Unusable(Vec<LeftOut>),
    /// They are there already.
    #[error("these results are in the store already, as run {run}")]
    Known {
        /// The run.
        run: RunId,
    },
    /// The copy into the store was cut short.
    #[error("the results are not all in {} yet", into.display())]
    Cut {
        /// A store with the whole of them.
        kept: PathBuf,
        /// The store that they go to.
        into: PathBuf,
        /// Why.
        #[source]
        source: Box<MergeError>,
    },
    /// A folder cannot be listed.
    #[error("{} cannot be listed", folder.display())]
    List {
        /// The folder.
        folder: PathBuf,
        /// Why.
        #[source]
        source: walkdir::Error,
    },
}

impl ImportError {
    /// What to do about it.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Unusable(_) => Some("import the rest with --leave-out".to_owned()),
            Self::Nothing { .. } => Some(
                "name a folder above EXPERIMENT/MODEL/TASK/run_N, or above episodes with traj.jsonl or summary.json"
                    .to_owned(),
            ),
            Self::Cut { kept, into, .. } => Some(format!(
                "they are kept: go on with `longhaul store merge {} {}`, and remove that folder then",
                kept.display(),
                into.display()
            )),
            Self::Both { .. } | Self::Known { .. } | Self::List { .. } => None,
        }
    }
}

fn unusable(left_out: &[LeftOut]) -> String {
    let mut text = format!("{} of the results cannot be used:", left_out.len());
    for one in left_out.iter().take(NAMED) {
        text.extend(["\n  ", &one.place, ": ", &one.reason]);
    }
    if left_out.len() > NAMED {
        text.extend(["\n  and ", &(left_out.len() - NAMED).to_string(), " more"]);
    }
    text
}

/// An episode as it was read: what is known of it.
#[derive(Clone, Debug, PartialEq)]
struct Found {
    /// Its folder, below that of the results.
    place: String,
    form: Form,
    env_id: Option<String>,
    task_id: Option<String>,
    /// The name of the task's folder, where it is known.
    task: Option<String>,
    /// Env and task, where both are known by their folders.
    named: Option<(String, String)>,
    agent: Option<String>,
    sample: Option<u32>,
    seed: Option<i64>,
    /// As that harness counts them.
    count: u32,
    /// Seconds since 1970.
    started: Option<f64>,
    ended: Option<f64>,
    outcome: Outcome,
    /// The first observation.
    first: Option<PathBuf>,
    steps: Vec<FoundStep>,
    /// Files that are kept as logs: name and path.
    logs: Vec<(String, PathBuf)>,
    notes: Vec<String>,
}

/// A step as it was read.
#[derive(Clone, Debug, Default, PartialEq)]
struct FoundStep {
    at: Option<f64>,
    text: Option<String>,
    actions: Vec<serde_json::Value>,
    done: bool,
    /// The screen after it.
    screen: Option<PathBuf>,
}

/// An episode with its names.
#[derive(Clone, Debug, PartialEq)]
struct Named {
    task: longhaul_core::ids::TaskName,
    agent: String,
    sample: u32,
    found: Found,
}

/// Imports what is in a folder.
///
/// # Errors
///
/// There is nothing, something cannot be used, the same was imported before, or the store is in use.
pub fn import(args: &ImportArgs, settings: &Settings) -> Result<(), CliError> {
    let store = places::store(args.store.as_deref(), settings)?;
    let names = Names::read(args)?;
    let (form, found, mut left_out) = read(&args.folder)?;
    let (named, unnamed) = names.of(found);
    left_out.extend(unnamed);
    left_out.sort();
    if !left_out.is_empty() && !args.leave_out {
        return Err(ImportError::Unusable(left_out).into());
    }
    if named.is_empty() {
        return Err(ImportError::Nothing { folder: args.folder.clone() }.into());
    }
    let folder = std::fs::canonicalize(&args.folder).unwrap_or_else(|_| args.folder.clone());
    let name = args.name.clone().unwrap_or_else(|| {
        folder.file_name().map_or_else(|| "imported".to_owned(), |name| name.to_string_lossy().into_owned())
    });
    let content = write::content(&named);
    if let Some(run) = known(&store, &content)? {
        return Err(ImportError::Known { run }.into());
    }
    let (run, now) = new_run()?;
    let head = ImportedRun {
        imported: form,
        folder: folder.display().to_string(),
        at: now,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        content,
        left_out: left_out.clone(),
    };
    if !args.dry_run {
        write::write(&store, run, &name, &head, &named)?;
    }
    report(args, &store, run, &named, &left_out)
}

/// Everything below a folder, and what of it cannot be read.
fn read(folder: &Path) -> Result<(Form, Vec<Found>, Vec<LeftOut>), CliError> {
    let places = files::places(folder)?;
    let form = match (places.episodes.is_empty(), places.runs.is_empty()) {
        (true, true) => return Err(ImportError::Nothing { folder: folder.to_owned() }.into()),
        (false, false) => return Err(ImportError::Both { folder: folder.to_owned() }.into()),
        (false, true) => Form::GymEpisodes,
        (true, false) => Form::GymRuns,
    };
    let (mut found, mut left_out) = (Vec::new(), Vec::new());
    for place in places.episodes.iter().chain(&places.runs) {
        let read = match form {
            Form::GymEpisodes => episode::read(place),
            Form::GymRuns => runs::read(place),
        };
        match read {
            Ok(one) => found.push(one),
            Err(reason) => left_out.push(LeftOut { place: place.name.clone(), reason }),
        }
    }
    Ok((form, found, left_out))
}

/// The run of a store that holds the same results, if there is one.
fn known(store: &Path, content: &longhaul_core::digest::Digest) -> Result<Option<RunId>, CliError> {
    let reader = match Reader::open(store) {
        Ok(reader) => reader,
        Err(OpenError::NotAStore { .. }) => return Ok(None),
        Err(error) => return Err(CliError::Store(error)),
    };
    for run in reader.runs()? {
        let plan = reader.blob(&run.plan)?;
        let imported = plan.and_then(|bytes| serde_json::from_slice::<ImportedRun>(&bytes).ok());
        if imported.is_some_and(|imported| imported.content == *content) {
            return Ok(Some(run.id));
        }
    }
    Ok(None)
}

/// How many episodes of an agent came to what.
type Counts = BTreeMap<String, BTreeMap<SettlementKind, u32>>;

fn report(args: &ImportArgs, store: &Path, run: RunId, named: &[Named], left_out: &[LeftOut]) -> Result<(), CliError> {
    let mut counts = Counts::new();
    for one in named {
        *counts.entry(one.agent.clone()).or_default().entry(one.found.outcome.settlement().kind()).or_default() += 1;
    }
    match args.format {
        Format::Json => output::json(&json!({
            "run": (!args.dry_run).then_some(run),
            "store": store,
            "episodes": named.iter().map(|one| json!({
                "task": one.task,
                "agent": one.agent,
                "sample": one.sample,
                "folder": one.found.place,
                "settlement": one.found.outcome.settlement(),
                "steps": one.found.count,
                "notes": one.found.notes,
            })).collect::<Vec<_>>(),
            "left_out": left_out,
        })),
        Format::Human => {
            let mut table = Table::new(&["agent", "episodes", "came to"]);
            for (agent, kinds) in &counts {
                let all: u32 = kinds.values().sum();
                let words: Vec<String> = kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
                table.row([
                    (cut(agent, 60), Tone::Plain),
                    (all.to_string(), Tone::Plain),
                    (words.join(", "), Tone::Plain),
                ]);
            }
            let mut text = table.render(output::stdout_colours());
            for one in left_out {
                let line = format!("left out  {}: {}", one.place, one.reason);
                text.extend([&output::escape_line(&line), "\n"]);
            }
            let done = if args.dry_run { "would be imported into" } else { "imported into" };
            let count = named.len();
            text.extend(["\n", &format!("{count} episodes {done} {}", store.display()), "\n"]);
            if !args.dry_run {
                text.extend(["run ", &run.to_string(), ": what the results do not say is not known of it\n"]);
            }
            output::data(&text)
        }
    }
    .map_err(CliError::Output)
}

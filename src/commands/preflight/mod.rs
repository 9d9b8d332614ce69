//! `longhaul preflight`: the setup of every picked task without an agent, so that what does
//! not start is known before a run is paid for.
//!
//! A preflight is a run: with the idle agent, and without export and verification. What is
//! made of it here is counts, contact sheets, and a list that `--quarantine` takes.

mod font;
mod sheet;
mod tally;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use longhaul_core::ids::{RunId, TaskName};
use longhaul_core::outcome::{AttemptEnd, FaultClass};
use longhaul_core::plan::RetryPolicy;
use longhaul_core::step::StepRecord;
use longhaul_proto::{convert, v1};
use longhaul_store::AttemptRecord;
use serde_json::json;

pub(crate) use self::sheet::not_recorded;
use self::sheet::{Seen, Tile, thumbnail};
use self::tally::{Advice, Came, Start, Tried, Unfit as UnfitTask, by_env};
use crate::benchmark::{Agent, Extent, LimitTerms, Limits, ModelTerms, preview};
use crate::cli::{PickArgs, Unfit, VenueArgs};
use crate::client::Source;
use crate::commands::run::secrets::Keys;
use crate::commands::run::settled;
use crate::commands::run::{
    Hosting, Picked, Reporting, Wanted, default_name, hook_policies, host, most_gpus, on_refusal, pick,
};
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{self, Format, Table, Tone, cut};
use crate::settings::Settings;
use crate::{reading, show, units};

/// The most of a fault's message or of a remark that a row shows.
const REASON_WIDTH: usize = 90;

/// The most remarks that a person is shown.
const REMARKS_SHOWN: usize = 20;

/// `longhaul preflight`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul preflight examples/benchmark
  longhaul preflight BENCHMARK --split test --samples 2 --slurm --output before
  longhaul run BENCHMARK --split test --agent ... --quarantine before/quarantine.txt

Every picked task is set up and its first frame taken; no agent acts, nothing is verified and
nothing is paid for. It is stored as a run whose episodes end `unverified` (they started) or
`faulted`. The folder gets:
  quarantine.txt   tasks that a run had best leave out, one ENV/TASK a line, each with the reason
  sheet-1.png ...  first frames with the names of their tasks, 40 on a sheet
  preflight.json   all of it for programs, as --format json prints it
What does not start is a finding: the command then still succeeds (but see --fail-on-fault).")]
pub struct PreflightArgs {
    /// Which tasks.
    #[command(flatten)]
    pub pick: PickArgs,
    /// How often each task is set up; one that does not always start is named.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), help_heading = "How")]
    pub samples: u32,
    /// The most attempts of a start that end in a fault of its own.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "How")]
    pub max_attempts: Option<u32>,
    /// Whether an env hook that fails is a fault: `strict`, `tolerate`, or `tolerate:ENV`
    /// for one env (globs are fine). May be repeated; later ones win.
    #[arg(long, value_name = "POLICY", help_heading = "How")]
    pub hook_policy: Vec<String>,
    /// What becomes of envs that need what a container cannot give; those that are skipped are
    /// listed as well.
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Unfit::Skip, help_heading = "How")]
    pub unfit: Unfit,
    /// The folder for what was found, new or empty.
    #[arg(short, long, value_name = "DIR", default_value = "preflight", help_heading = "How")]
    pub output: PathBuf,
    /// Ends with code 7 if a start ended in a fault.
    #[arg(long, help_heading = "How")]
    pub fail_on_fault: bool,
    /// The form of the result on stdout.
    #[arg(long, value_enum, default_value_t, help_heading = "How")]
    pub format: Format,
    /// Where.
    #[command(flatten)]
    pub venue: VenueArgs,
}

/// Sets up what is asked for, and says what started.
///
/// # Errors
///
/// As `longhaul run`, or the folder for what was found cannot be used.
pub async fn preflight(args: PreflightArgs, settings: &Settings, file: Option<&Path>) -> Result<Exit, CliError> {
    let hook_policies = hook_policies(&args.hook_policy, settings)?;
    let mut picked = pick(&args.pick)?;
    let gpus = most_gpus(&args.venue, settings);
    let unfit = if args.unfit == Unfit::Skip { take_unfit(&mut picked, gpus) } else { Vec::new() };
    let name = default_name(&args.pick.benchmark);
    let folder = folder(&args.output)?;
    let report = Preflight { name: name.clone(), unfit, folder: args.output.clone(), format: args.format };
    let wanted = Wanted {
        picked,
        agents: vec![Agent::Idle],
        samples: args.samples,
        limits: Limits::of(LimitTerms::default(), settings.run.steps, settings.run.time),
        retry: RetryPolicy {
            max_attempts: args.max_attempts.unwrap_or(settings.run.max_attempts),
            max_cut_offs: settings.run.max_cut_offs,
            backoff: settings.run.backoff,
            resume: longhaul_core::resume::ResumePolicy::Restart,
            snapshots: longhaul_core::snapshot::SnapshotPolicy::OFF,
        },
        hook_policies,
        on_refusal: on_refusal(args.unfit),
        gpus,
        extent: Extent::Start,
        layers_from: None,
        earlier: None,
        name: format!("preflight of {name}"),
        preset: None,
        priority: 0,
        file: None,
        turn: None,
        models: ModelTerms::default(),
        keys: Keys::default(),
        missing_keys: Vec::new(),
    };
    let reporting = Reporting::Starts(&report);
    let hosting = Hosting { venue: &args.venue, detach: false, reporting, settings, file };
    output::note("only starts are tried: an episode that ends unverified has started");
    let summary = Box::pin(host(wanted.into(), &hosting)).await;
    if summary.is_err() && folder == Folder::Made {
        // Nothing was found: if nothing is in it, nothing is left of it.
        let _not_empty = fs::remove_dir(&args.output);
    }
    settled(summary?.as_ref(), args.fail_on_fault)
}

/// Takes out the tasks of envs that cannot be run here.
fn take_unfit(picked: &mut Picked, gpus: Option<u32>) -> Vec<UnfitTask> {
    let envs = preview(&picked.benchmark, &picked.tasks, gpus);
    let refused = |env: &str| envs.iter().find(|known| known.env == env).and_then(|known| known.refused.clone());
    let mut unfit = Vec::new();
    picked.tasks.retain(|task| match refused(&task.env) {
        None => true,
        Some(reason) => {
            unfit.push(UnfitTask { task: task.clone(), reason });
            false
        }
    });
    unfit
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Folder {
    Made,
    WasThere,
}

/// Makes sure of a folder for what will be found, before hours are spent on finding it.
fn folder(path: &Path) -> Result<Folder, CliError> {
    let failed = |doing| move |source| CliError::File { path: path.to_owned(), doing, source };
    match fs::read_dir(path) {
        Ok(mut entries) => match entries.next() {
            None => Ok(Folder::WasThere),
            Some(_) => {
                let reason = "it is not empty: name another one with --output";
                Err(failed("used")(io::Error::new(io::ErrorKind::AlreadyExists, reason)))
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(path).map_err(failed("made"))?;
            Ok(Folder::Made)
        }
        Err(error) => Err(failed("read")(error)),
    }
}

/// What is made of a preflight's run.
#[derive(Debug)]
pub(crate) struct Preflight {
    /// What the benchmark is called.
    name: String,
    /// What was not tried.
    unfit: Vec<UnfitTask>,
    /// Where the files go.
    folder: PathBuf,
    format: Format,
}

impl Preflight {
    /// Reads what became of the run, writes the files, and says it on stdout.
    ///
    /// # Errors
    ///
    /// The run cannot be read, or a file or stdout not written.
    pub(crate) async fn report(&self, source: &Source, summary: &v1::RunSummary, store: &str) -> Result<(), CliError> {
        let run: RunId = convert::parsed("run_id", &summary.run_id).map_err(CliError::Answer)?;
        let mut tried = starts(source, run).await?;
        let sheets = self.sheets(source, &mut tried).await?;
        let head = [
            format!("What had best be left out of a run of {}, as its preflight {run} found it.", self.name),
            "ENV/TASK a line, the reason after it; `longhaul run ... --quarantine` takes this file.".to_owned(),
        ];
        let (list, quarantined) = tally::quarantine(&head, &tried, &self.unfit);
        let list_file = self.write("quarantine.txt", list.as_bytes())?;
        let mut found = tally::json(&tried, &self.unfit);
        found["run"] = json!(run);
        found["store"] = json!(store);
        found["quarantine"] = json!({ "file": list_file, "tasks": quarantined });
        found["sheets"] = json!(sheets);
        self.write("preflight.json", format!("{found:#}\n").as_bytes())?;
        match self.format {
            Format::Json => output::json(&found),
            Format::Human => {
                let mut text = self.text(&tried);
                for sheet in &sheets {
                    text.extend(["sheet       ", &sheet.display().to_string(), "\n"]);
                }
                let count = if quarantined == 1 { "1 task".to_owned() } else { format!("{quarantined} tasks") };
                text.extend(["quarantine  ", &list_file.display().to_string(), " (", &count, ")\n"]);
                output::data(&text)
            }
        }
        .map_err(CliError::Output)
    }

    fn text(&self, tried: &[Tried]) -> String {
        let colours = output::stdout_colours();
        let mut table = Table::new(&["env", "started", "setup", "longest"]);
        let spent = |length| (units::show_duration(length), Tone::Plain);
        for env in by_env(tried, &self.unfit) {
            let tone = if env.started == env.tasks { Tone::Good } else { Tone::Bad };
            let mut row = vec![(env.env, Tone::Plain), (format!("{}/{}", env.started, env.tasks), tone)];
            row.extend(env.setup.iter().flat_map(|setup| [spent(setup.median), spent(setup.longest)]));
            table.row(row);
        }
        let mut text = table.render(colours);
        text.push('\n');
        text.push_str(&self.failures(tried, colours));
        text.push_str(&remarks(tried, colours));
        text
    }

    /// What did not start, a row each.
    fn failures(&self, tried: &[Tried], colours: bool) -> String {
        let mut table = Table::new(&["did not start", "episode", "why"]);
        let mut rows = 0;
        for tried in tried.iter().filter(|tried| tried.advice() != Advice::Take) {
            rows += 1;
            let why = match tried.advice() {
                Advice::LeaveOut(reason) | Advice::TakeUnknown(reason) => reason,
                Advice::Take => String::new(),
            };
            let episode = tried.fault().map(|(start, _)| start.episode.to_string()).unwrap_or_default();
            table.row([
                (tried.task.to_string(), Tone::Bad),
                (episode, Tone::Dim),
                (cut(&why, REASON_WIDTH), Tone::Plain),
            ]);
        }
        for unfit in &self.unfit {
            rows += 1;
            let why = format!("unfit: {}", unfit.reason);
            table.row([
                (unfit.task.to_string(), Tone::Warn),
                (String::new(), Tone::Dim),
                (cut(&why, REASON_WIDTH), Tone::Plain),
            ]);
        }
        if rows > 0 { table.render(colours) + "\n" } else { String::new() }
    }

    /// Draws the contact sheets, one at a time: what is in memory is one sheet.
    async fn sheets(&self, source: &Source, tried: &mut [Tried]) -> Result<Vec<PathBuf>, CliError> {
        let mut files = Vec::new();
        for (index, part) in tried.chunks_mut(sheet::PER_SHEET).enumerate() {
            let mut tiles = Vec::new();
            for tried in part {
                let seen = first_frame(source, tried).await?;
                tried.plain_frame = matches!(&seen, Seen::Frame(frame) if frame.plain);
                tiles.push(Tile { env: tried.task.env.clone(), task: tried.task.task.clone(), seen });
            }
            let drawn = tokio::task::spawn_blocking(move || sheet::sheet(&tiles))
                .await
                .map_err(|error| CliError::Machine(Box::new(error)))?
                .map_err(|error| CliError::Output(io::Error::other(error)))?;
            files.push(self.write(&format!("sheet-{}.png", index + 1), &drawn)?);
        }
        Ok(files)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<PathBuf, CliError> {
        let path = self.folder.join(name);
        fs::write(&path, bytes).map_err(|source| CliError::File { path: path.clone(), doing: "written", source })?;
        Ok(path)
    }
}

/// What a person should look at although it started.
fn remarks(tried: &[Tried], colours: bool) -> String {
    let remarks: Vec<(String, String)> = tried
        .iter()
        .flat_map(|tried| tried.remarks().into_iter().map(|remark| (tried.task.to_string(), remark)))
        .collect();
    if remarks.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["to be looked at", "what"]);
    for (task, remark) in remarks.iter().take(REMARKS_SHOWN) {
        table.row([(task.clone(), Tone::Warn), (cut(remark, REASON_WIDTH), Tone::Plain)]);
    }
    let mut text = table.render(colours);
    if remarks.len() > REMARKS_SHOWN {
        let more = (remarks.len() - REMARKS_SHOWN).to_string();
        text.extend(["and ", &more, " more (preflight.json has all)\n"]);
    }
    text.push('\n');
    text
}

/// What became of every task, in the run's order.
async fn starts(source: &Source, run: RunId) -> Result<Vec<Tried>, CliError> {
    let mut tried: Vec<Tried> = Vec::new();
    let mut places: BTreeMap<TaskName, usize> = BTreeMap::new();
    for row in source.episodes(run).await? {
        let task: TaskName = convert::parsed("task", &row.task).map_err(CliError::Answer)?;
        let start = start(source, &row).await?;
        let place = *places.entry(task.clone()).or_insert_with(|| {
            tried.push(Tried { task, starts: Vec::new(), plain_frame: false });
            tried.len() - 1
        });
        tried[place].starts.push(start);
    }
    Ok(tried)
}

async fn start(source: &Source, row: &v1::EpisodeRow) -> Result<Start, CliError> {
    let episode = convert::parsed("episode_id", &row.episode_id).map_err(CliError::Answer)?;
    let answer = source.episode(episode).await?;
    let attempts = reading::attempts(episode, &answer)?;
    let came = Came::of(show::settlement(row)?);
    let last = attempts.last();
    let frame = match last {
        Some(attempt) if came == Came::Up => {
            let steps = source.steps(attempt.id, false).await?;
            let record = steps.first().map(|row| serde_json::from_slice::<StepRecord>(&row.record_json)).transpose();
            let record = record
                .map_err(|source| CliError::Record { what: format!("a step of attempt {}", attempt.id), source })?;
            record.map(|record| record.screen.png)
        }
        _ => None,
    };
    let notes = last.and_then(|attempt| attempt.finish.as_ref()).map(|finish| finish.notes.clone());
    let counted = attempts.iter().filter(|attempt| !was_preempted(attempt)).count();
    Ok(Start { episode, came, attempts: u32::try_from(counted).unwrap_or(u32::MAX), notes, frame })
}

/// Nobody's fault, and nothing to look at.
fn was_preempted(attempt: &AttemptRecord) -> bool {
    attempt
        .finish
        .as_ref()
        .is_some_and(|finish| matches!(&finish.end, AttemptEnd::Fault(fault) if fault.class == FaultClass::Preempted))
}

/// The first frame of the first start that came up, or why there is none.
async fn first_frame(source: &Source, tried: &Tried) -> Result<Seen, CliError> {
    let Some(digest) = tried.starts.iter().find_map(|start| start.frame) else {
        let why = tried.fault().map_or_else(|| "unknown".to_owned(), |(_, fault)| fault.class.name().to_owned());
        return Ok(Seen::Nothing(why));
    };
    let Some(png) = source.blob(&digest).await? else { return Ok(Seen::Nothing("no frame".to_owned())) };
    let small = tokio::task::spawn_blocking(move || thumbnail(&png))
        .await
        .map_err(|error| CliError::Machine(Box::new(error)))?;
    Ok(small.map_or_else(
        |error| {
            tracing::warn!(%error, task = %tried.task, "a first frame cannot be read");
            Seen::Nothing("broken frame".to_owned())
        },
        Seen::Frame,
    ))
}

//! A run with a coordinator of its own, in this process, and one worker, a child of it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use longhaul_coordinator::Coordinator;
use longhaul_core::ids::RunId;
use longhaul_proto::v1;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, ChildStdin, Command};

use super::order::Order;
use super::{Hosting, report, secrets};
use crate::client::{Client, Source};
use crate::commands::{generations, serve, slurm};
use crate::error::CliError;
use crate::follow::follow;
use crate::machine::{Machine, THIS_PROGRAM, machine};
use crate::output;
use crate::settings::Settings;
use crate::signals::Signals;

/// How much longer than its own grace a worker gets before it is killed.
const WORKER_PATIENCE: Duration = Duration::from_secs(20);

/// How many lines of a dead worker's log are shown.
const LOG_LINES: usize = 15;

pub(super) async fn run(
    order: Order,
    hosting: &Hosting<'_>,
    signals: &mut Signals,
) -> Result<v1::RunSummary, CliError> {
    // What the machine lacks is said before anything is stored.
    let machine = machine(&hosting.venue.place, hosting.settings).await?;
    let config = serve::config(hosting.venue.store.as_deref(), None, hosting.settings)?;
    generations::refuse_served(&config.store, slurm::limits(hosting.settings)).await?;
    let coordinator = Coordinator::start(config).await.map_err(CliError::Start)?;
    for warning in coordinator.warnings() {
        output::note(&format!("warning: {warning}"));
    }
    let outcome = with_coordinator(&coordinator, order, hosting, signals, &machine).await;
    // A coordinator that failed is the reason for whatever else went wrong.
    coordinator.stop().await.map_err(CliError::Actor)?;
    outcome
}

async fn with_coordinator(
    coordinator: &Coordinator,
    order: Order,
    hosting: &Hosting<'_>,
    signals: &mut Signals,
    machine: &Machine,
) -> Result<v1::RunSummary, CliError> {
    let client = Client::open(coordinator.local_access()).await?;
    let mut open = open_runs(coordinator)?;
    let run = tokio::select! {
        run = order.place(&client) => run?,
        () = signals.next() => return Err(CliError::Interrupted),
    };
    // The one that is gone on with is no other.
    open.retain(|id| *id != run);
    if !open.is_empty() {
        let open: Vec<String> = open.iter().map(RunId::to_string).collect();
        output::note(&format!(
            "the store has other runs that are not settled, and whose episodes come first: {} (see longhaul cancel)",
            open.join(", ")
        ));
    }
    let interrupted = || {
        output::note(&how_to_look(run, coordinator));
        output::note(&how_to_go_on(run, coordinator));
    };
    // Minutes, the first time; what it finds is for the worker.
    let image = tokio::select! {
        image = machine.image() => image?,
        () = signals.next() => {
            interrupted();
            return Err(CliError::Interrupted);
        }
    };
    tracing::debug!(image = %image.path.display(), "the base image is there");
    let mut worker = Worker::start(coordinator, run, hosting)?;
    let id = run.to_string();
    let outcome = tokio::select! {
        summary = follow(&client, &id) => summary,
        status = worker.child.wait() => Err(worker.ended(status)),
        () = coordinator.failed() => Err(CliError::Interrupted),
        () = signals.next() => {
            output::note("stopping in order; once more to stop at once");
            Err(CliError::Interrupted)
        }
    };
    worker.stop(hosting.settings, signals).await;
    match outcome {
        Ok(summary) => {
            let source = Source::Stored(coordinator.reader().clone());
            let place = coordinator.reader().path().display().to_string();
            report(&source, &summary, hosting.reporting, &place).await?;
            output::note(&how_to_look(run, coordinator));
            Ok(summary)
        }
        Err(error) => {
            interrupted();
            Err(error)
        }
    }
}

fn open_runs(coordinator: &Coordinator) -> Result<Vec<RunId>, CliError> {
    let runs = coordinator.reader().runs()?;
    Ok(runs.iter().filter(|run| run.settled_at.is_none()).map(|run| run.id).collect())
}

pub(super) fn how_to_go_on(run: RunId, coordinator: &Coordinator) -> String {
    let store = coordinator.reader().path().display();
    format!(
        "go on with it: longhaul resume {run} --store {store}\n\
         stop it: longhaul cancel {run} --store {store} (else its open episodes go on with the next run on this store)"
    )
}

pub(super) fn how_to_look(run: RunId, coordinator: &Coordinator) -> String {
    let store = coordinator.reader().path().display();
    format!("look at it with: longhaul show {run} --store {store}")
}

/// The worker's process. It has a process group of its own, so that a Ctrl-C at the
/// terminal reaches it through us, in order; and it ends when its stdin is closed, so that
/// it never outlives us.
struct Worker {
    child: Child,
    /// Held for as long as the worker is wanted; waiting for a child closes a stdin that it
    /// still has.
    _tether: Option<ChildStdin>,
    log: PathBuf,
}

impl Worker {
    fn start(coordinator: &Coordinator, run: RunId, hosting: &Hosting<'_>) -> Result<Self, CliError> {
        let venue = hosting.venue;
        let folder = coordinator.reader().path().join("logs");
        let failed = |path: &Path, doing| {
            let path = path.to_owned();
            move |source| CliError::File { path, doing, source }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(failed(&folder, "made"))?;
        let log = folder.join(format!("worker-{run}.log"));
        let stderr: File =
            OpenOptions::new().create(true).append(true).mode(0o600).open(&log).map_err(failed(&log, "opened"))?;
        // The build that runs now: the base image may take minutes, and the file may be replaced.
        let mut command = Command::new(THIS_PROGRAM);
        command.arg0("longhaul");
        command.args(["-v", "worker", "--tethered", "--coordinator"]).arg(coordinator.local_access());
        if let Some(file) = hosting.file {
            command.arg("--settings").arg(file);
        }
        if let Some(slots) = venue.slots {
            command.arg("--slots").arg(slots.to_string());
        }
        if let Some(layers) = &venue.place.layers {
            command.arg("--layers").arg(layers);
        }
        for base in &venue.place.bases {
            command.arg("--base").arg(base);
        }
        if let Some(scratch) = &venue.place.scratch {
            command.arg("--scratch").arg(scratch);
        }
        // Keys reach it by its session, and are in no environment that an agent could inherit.
        for variable in secrets::variables(hosting.settings) {
            command.env_remove(variable);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(stderr).process_group(0);
        let mut child = command.spawn().map_err(failed(Path::new(THIS_PROGRAM), "started"))?;
        let tether = child.stdin.take();
        Ok(Self { child, _tether: tether, log })
    }

    /// What to say of a worker that ended by itself.
    fn ended(&self, status: std::io::Result<ExitStatus>) -> CliError {
        let how = match status {
            Ok(status) => status
                .code()
                .map(|code| format!("exit code {code}"))
                .or_else(|| status.signal().map(|signal| format!("signal {signal}")))
                .unwrap_or_else(|| "an unknown status".to_owned()),
            Err(error) => error.to_string(),
        };
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n  ");
        output::note(&output::escape(&format!("the end of {}:\n  {tail}", self.log.display())));
        CliError::WorkerEnded { status: how }
    }

    /// TERM, and time to end in order; then KILL, or at once on a second signal.
    async fn stop(&mut self, settings: &Settings, signals: &mut Signals) {
        self.signal(Signal::SIGTERM);
        let patience = settings.worker.grace.to_std() + WORKER_PATIENCE;
        let in_order = tokio::select! {
            _status = self.child.wait() => true,
            () = tokio::time::sleep(patience) => false,
            () = signals.next() => false,
        };
        if in_order {
            return;
        }
        // The second TERM means now; what that leaves is killed.
        self.signal(Signal::SIGTERM);
        if tokio::time::timeout(Duration::from_secs(5), self.child.wait()).await.is_err() {
            output::note("the worker does not end and is killed; the next one clears away what it leaves");
            if let Err(error) = self.child.kill().await {
                tracing::warn!(%error, "the worker cannot be killed");
            }
        }
    }

    fn signal(&self, signal: Signal) {
        // An id that was given back is none any more.
        let Some(pid) = self.child.id().and_then(|id| i32::try_from(id).ok()) else { return };
        if let Err(error) = kill(Pid::from_raw(pid), signal) {
            tracing::warn!(%error, "the worker cannot be signalled");
        }
    }
}

//! The start of a sandbox, and what tells of its end.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::process::{Child, ChildStdin};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{sleep, timeout};

use super::{Network, Sandbox, SandboxEnd, SandboxError, SandboxSpec, TERM_GRACE, end_marked, ended_early};
use super::{signal_tree, wait_for_end};
use crate::command::{self, ExecPlan, SLIRP_DNS};
use crate::gpus::Gpus;
use crate::identity::{self, ProcessIdentity};
use crate::program::Apptainer;
use crate::scratch::{MARK, Scratch, ScratchError};
use crate::session;

/// The programs by which Apptainer serves files that the kernel does not.
const FILE_SERVERS: [&str; 5] = ["squashfuse_ll", "squashfuse", "fuse-overlayfs", "fuse2fs", "gocryptfs"];

/// How often it is looked whether the programs that serve a sandbox's files live.
const LOOK: Duration = Duration::from_millis(500);

/// Starts a sandbox; what was begun of one that does not start is cleared away.
pub(super) async fn begin(apptainer: &Apptainer, spec: SandboxSpec) -> Result<Sandbox, SandboxError> {
    let named = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
    if spec.id.is_empty() || spec.id.len() > 128 || !spec.id.chars().all(named) {
        return Err(SandboxError::Name(spec.id));
    }
    let mut scratch = Scratch::create(&spec.scratch, &spec.id)?;
    let image = spec.image.clone();
    match spawn(apptainer, spec, &mut scratch).await {
        Ok(spawned) => spawned.up(apptainer, image, scratch).await,
        Err(error) => {
            // The first error says more than what may follow from it.
            end_marked(scratch.mark(), &scratch.record().leaders()).await;
            if let Err(later) = scratch.remove(apptainer, Some(&image)).await {
                tracing::warn!(error = %later, "a sandbox that did not start was not cleared away");
            }
            Err(error)
        }
    }
}

/// Starts the container, which is known before it begins.
async fn spawn(apptainer: &Apptainer, spec: SandboxSpec, scratch: &mut Scratch) -> Result<Spawned, SandboxError> {
    let io_error = |path: PathBuf| move |source| SandboxError::Scratch(ScratchError::Io { path, source });
    let sockets = File::open(scratch.sockets()).map_err(io_error(scratch.sockets()))?;
    let mut binds = command::helper_binds(&spec.helper_program, &scratch.sockets(), &scratch.x_sockets());
    binds.extend(spec.binds);
    let args = command::exec(&ExecPlan {
        image: spec.image,
        top: Some(scratch.top()),
        layers: spec.layers,
        binds,
        dns: Some(match spec.network {
            Network::Open => SLIRP_DNS.to_owned(),
            // Names are looked up nowhere, and at once.
            Network::None => "127.0.0.1".to_owned(),
        }),
        gpus: spec.gpus.as_ref().map(Gpus::maker),
        userns: apptainer.userns(),
        argv: command::helper_argv(),
    })?;
    // Held until the helper answers: many starts at once fail at random.
    let turn = Arc::clone(apptainer.starts()).acquire_owned().await.ok();
    let log_path = scratch.log();
    let log = File::create(&log_path).map_err(io_error(log_path.clone()))?;
    let log_too = log.try_clone().map_err(io_error(log_path.clone()))?;
    let mut call = apptainer.command(&args);
    call.env(MARK, scratch.mark()).stdout(log).stderr(log_too);
    for (name, value) in &spec.env {
        call.env(format!("APPTAINERENV_{name}"), value);
    }
    let failed = |source| SandboxError::Spawn { program: apptainer.program().to_owned(), source };
    let mut child = call.spawn().map_err(failed)?;
    let Some(identity) = session::identity(&child).map_err(failed)? else {
        return Err(ended_early(watch_end(child).1, &log_path).await);
    };
    scratch.started(identity.clone())?;
    // From here on it does something.
    let lifeline = session::begin(&mut child).await.map_err(failed)?;
    let (tell, ended) = watch_end(child);
    let (network, gpus) = (spec.network, spec.gpus);
    Ok(Spawned { sockets, identity, tell, ended, lifeline, network, gpus, turn })
}

/// A container that was started, and is not known to be up.
struct Spawned {
    sockets: File,
    identity: ProcessIdentity,
    tell: Tell,
    ended: watch::Receiver<Option<SandboxEnd>>,
    lifeline: ChildStdin,
    network: Network,
    gpus: Option<Gpus>,
    /// Its place among those that start, until it is up.
    turn: Option<OwnedSemaphorePermit>,
}

impl Spawned {
    /// The sandbox, once its helper answers.
    async fn up(self, apptainer: &Apptainer, image: PathBuf, scratch: Scratch) -> Result<Sandbox, SandboxError> {
        let Self { sockets, identity, tell, ended, lifeline, network, gpus, turn } = self;
        let apptainer = apptainer.clone();
        let mut sandbox =
            Sandbox { apptainer, image, scratch, sockets, identity, ended, way_out: None, lifeline, gpus };
        let up = sandbox.come_up(network).await;
        drop(turn);
        match up {
            Ok(()) => {
                watch_files(&sandbox.identity, sandbox.ended.clone(), tell);
                Ok(sandbox)
            }
            Err(error) => {
                // The first error says more than what may follow from it.
                if let Err(later) = sandbox.stop().await {
                    tracing::warn!(error = %later, "a sandbox that did not start was not cleared away");
                }
                Err(error)
            }
        }
    }
}

/// Says how a sandbox ended; who says it first is heard.
type Tell = Arc<watch::Sender<Option<SandboxEnd>>>;

fn say_end(tell: &Tell, how: String) {
    tell.send_if_modified(|end| {
        let first = end.is_none();
        end.get_or_insert(SandboxEnd { how });
        first
    });
}

/// Watches a container until it ends.
fn watch_end(mut child: Child) -> (Tell, watch::Receiver<Option<SandboxEnd>>) {
    let (tell, ended) = watch::channel(None);
    let tell = Arc::new(tell);
    let told = Arc::clone(&tell);
    tokio::spawn(async move {
        let how = match child.wait().await {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        say_end(&told, how);
    });
    (tell, ended)
}

/// Ends a sandbox when a program is gone that serves its files: what goes on inside without them
/// is nobody's work.
fn watch_files(container: &ProcessIdentity, ended: watch::Receiver<Option<SandboxEnd>>, tell: Tell) {
    let container = container.clone();
    let serving = |process: &ProcessIdentity| FILE_SERVERS.contains(&identity::program_name(process.pid).as_str());
    let servers: Vec<ProcessIdentity> = identity::of_session(&container).into_iter().filter(serving).collect();
    tokio::spawn(async move {
        loop {
            sleep(LOOK).await;
            if ended.borrow().is_some() {
                return;
            }
            // One that cannot be looked at is not known to be gone.
            let gone = servers.iter().find(|server| !server.is_alive().unwrap_or(true));
            let Some(gone) = gone else { continue };
            // They also go when the container ends.
            let mut ends = ended.clone();
            if timeout(TERM_GRACE, wait_for_end(&mut ends)).await.is_err() {
                say_end(&tell, format!("a program that served its files is gone (process {})", gone.pid));
                signal_tree(&container, Signal::SIGKILL);
            }
            return;
        }
    });
}

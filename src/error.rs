//! What goes wrong in a command: what, where, and what to do about it.

use std::io;
use std::path::PathBuf;

use longhaul_coordinator::view::ViewError;
use longhaul_coordinator::{AccessFolderError, ActorError, StartError};
use longhaul_node::error::{ASK_THE_DOCTOR, Explained, NodeError};
use longhaul_store::{MergeError, OpenError, PruningError, ReadError};

use crate::commands::import::ImportError;
use crate::exit::Exit;
use crate::strict::StrictError;

/// Why a command failed. Causes are shown in a chain, at the edge, once.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// What both programs do.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// What is set for a pool cannot be a batch script.
    #[error("there is no batch script for the pool {pool}")]
    Pool {
        /// The pool.
        pool: String,
        /// Why.
        source: longhaul_coordinator::allocator::BatchScriptError,
    },
    /// A run file, or a file of prices.
    #[error("the file cannot be used")]
    Strict(#[source] StrictError),
    /// The key of a model vendor is not there.
    #[error("the endpoint `{endpoint}` needs a key, and the environment variable {variable} is not set")]
    NoKey {
        /// The endpoint.
        endpoint: String,
        /// The variable.
        variable: String,
    },
    /// The command line makes no sense in a way that its parser cannot see.
    #[error("{0}")]
    Usage(String),
    /// A file or folder of the person's.
    #[error("{} cannot be {doing}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried: `read`, `written`, ...
        doing: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The output cannot be written.
    #[error("the output cannot be written")]
    Output(#[source] io::Error),
    /// A coordinator refuses.
    #[error("the coordinator at {address} cannot {what}: {reason}")]
    Refused {
        /// Where it is.
        address: String,
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        reason: String,
        /// In which way it refuses.
        code: tonic::Code,
    },
    /// What a coordinator says cannot be understood.
    #[error("the coordinator's answer cannot be understood")]
    Answer(#[source] longhaul_proto::convert::ConvertError),
    /// A coordinator does not start.
    #[error("the coordinator does not start")]
    Start(#[source] StartError),
    /// A coordinator stopped by itself.
    #[error("the coordinator failed")]
    Actor(#[source] ActorError),
    /// The store cannot be opened.
    #[error("the store cannot be opened")]
    Store(#[source] OpenError),
    /// The store is wanted for oneself, and another process has it.
    #[error("the store is in use")]
    StoreInUse(#[source] OpenError),
    /// A check of a store found something.
    #[error("the store {} is not sound: {count} findings", path.display())]
    StoreUnsound {
        /// The store's folder.
        path: PathBuf,
        /// How many things are wrong.
        count: u64,
    },
    /// Stores are not merged.
    #[error("the stores are not merged")]
    Merge(#[source] Box<MergeError>),
    /// Results of another harness are not imported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The store cannot be read.
    #[error("the store cannot be read")]
    View(#[source] ViewError),
    /// What the store holds cannot be understood.
    #[error("a record of {what} cannot be understood")]
    Record {
        /// Of what.
        what: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The body of a model call cannot be put together again.
    #[error("what the store holds of {what} is not whole")]
    Body {
        /// Of what.
        what: String,
        /// Why.
        #[source]
        source: longhaul_gateway::JoinError,
    },
    /// No run is meant by what was given.
    #[error("there is no run `{given}` in {place}")]
    UnknownRun {
        /// What was given.
        given: String,
        /// Where it was looked for.
        place: String,
    },
    /// More than one run may be meant.
    #[error("`{given}` may be any of the runs {}", candidates.join(", "))]
    AmbiguousRun {
        /// What was given.
        given: String,
        /// What it may be.
        candidates: Vec<String>,
    },
    /// There is no such part of a run.
    #[error("{whole} has no {part}")]
    NoSuchPart {
        /// The run, episode or attempt.
        whole: String,
        /// What it does not have.
        part: String,
        /// What it has instead.
        have: Vec<String>,
    },
    /// A part of this machine.
    #[error("this machine lacks something")]
    Machine(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The benchmark, a task or an agent.
    #[error("the run cannot be planned")]
    Plan(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A benchmark cannot be linted.
    #[error("the benchmark cannot be checked")]
    Lint(#[source] crate::commands::lint::LintError),
    /// A run cannot be exported.
    #[error("the run cannot be exported")]
    Export(#[source] longhaul_report::ExportError),
    /// A run cannot be measured.
    #[error("the run cannot be measured")]
    Measure(#[source] longhaul_report::MeasureError),
    /// The worker of a run is gone.
    #[error("the run's worker ended ({status}) before the run had settled")]
    WorkerEnded {
        /// How it ended.
        status: String,
    },
    /// The layers of a run are not there any more.
    #[error("the layers of run {run} cannot be used again:\n  {}", reasons.join("\n  "))]
    LayersFrom {
        /// The run.
        run: String,
        /// What is wrong, layer by layer.
        reasons: Vec<String>,
    },
    /// Layers could not be built.
    #[error("the layers of {broken} of {envs} envs could not be built")]
    LayersNotBuilt {
        /// How many could not.
        broken: usize,
        /// Of how many envs.
        envs: usize,
    },
    /// Episodes are faulted, and that was to be an error.
    #[error("{count} episodes of run {run} are faulted")]
    Faulted {
        /// How many.
        count: u32,
        /// Of which run.
        run: String,
    },
    /// Trajectories could not be judged again.
    #[error("{failed} of {episodes} episodes could not be judged")]
    NotJudged {
        /// How many could not.
        failed: usize,
        /// Of how many that were left to be judged.
        episodes: usize,
    },
    /// A coordinator gets no allocation of its own.
    #[error("the coordinator's own allocation cannot be asked for")]
    OwnAllocation(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A second coordinator over one store.
    #[error("{} is served from an allocation (job {})", store.display(), crate::output::escape_line(job))]
    Served {
        /// The store.
        store: PathBuf,
        /// Slurm's id of the coordinator's job.
        job: String,
    },
    /// The allocation of a coordinator is over, and it never answered.
    #[error("the coordinator's allocation ended before it answered")]
    NotServed {
        /// Where it wrote what went wrong.
        logs: PathBuf,
    },
    /// A signal.
    #[error("interrupted")]
    Interrupted,
    /// The pictures of runs were not dropped.
    #[error("not all that was to be dropped was")]
    Prune(#[source] Box<PruningError>),
    /// A restored store is closed.
    #[error("the store {store} was restored from a backup, and that is not accepted yet")]
    RestoreNotAccepted {
        /// The store.
        store: String,
    },
    /// A run file was run before, and what it freezes has changed since.
    #[error("run {run} was made of {file}, and what that freezes has changed since:\n  {}", differences.join("\n  "))]
    Changed {
        /// The file; hostile until escaped.
        file: String,
        /// The run.
        run: String,
        /// What has changed, a line each, escaped.
        differences: Vec<String>,
    },
}

impl Explained for CliError {
    fn exit(&self) -> Exit {
        match self {
            Self::Node(error) => error.exit(),
            Self::Usage(_) => Exit::Usage,
            Self::Strict(_)
            | Self::NoKey { .. }
            | Self::Pool { .. }
            | Self::UnknownRun { .. }
            | Self::AmbiguousRun { .. }
            | Self::NoSuchPart { .. }
            | Self::Plan(_)
            | Self::LayersFrom { .. }
            | Self::Changed { .. }
            | Self::File { .. } => Exit::Input,
            Self::Machine(_) | Self::OwnAllocation(_) | Self::NotServed { .. } => Exit::Machine,
            Self::Lint(error) => error.exit(),
            Self::Export(error) => crate::commands::export::exit(error),
            Self::Measure(error) => crate::sides::exit(error),
            Self::Merge(error) if is_refused(error) => Exit::Input,
            Self::Prune(error) if matches!(**error, PruningError::NoRun { .. } | PruningError::NotOver { .. }) => {
                Exit::Input
            }
            Self::Import(ImportError::Cut { .. }) => Exit::Store,
            Self::Import(_) => Exit::Input,
            Self::Store(_)
            | Self::StoreInUse(_)
            | Self::Served { .. }
            | Self::StoreUnsound { .. }
            | Self::RestoreNotAccepted { .. }
            | Self::Prune(_)
            | Self::Merge(_)
            | Self::View(_)
            | Self::Record { .. }
            | Self::Body { .. }
            | Self::Actor(_) => Exit::Store,
            Self::Answer(_) => Exit::Coordinator,
            // What was asked for is not there: the input is wrong, not the coordinator.
            Self::Refused { code: tonic::Code::NotFound, .. } => Exit::Input,
            // Its disk is full.
            Self::Refused { code: tonic::Code::ResourceExhausted, .. } => Exit::Machine,
            Self::Refused { .. } => Exit::Coordinator,
            Self::Start(error) => match error {
                StartError::Listen { .. }
                | StartError::Access(_)
                | StartError::Tls(_)
                | StartError::Random(_)
                | StartError::Slurm(_)
                | StartError::Layers { .. }
                | StartError::Logs { .. } => Exit::Machine,
                StartError::Unreachable => Exit::Usage,
                StartError::Open(_)
                | StartError::Read { .. }
                | StartError::Event { .. }
                | StartError::Snapshot { .. }
                | StartError::SnapshotFormat { .. } => Exit::Store,
            },
            Self::Faulted { .. } | Self::NotJudged { .. } => Exit::Faulted,
            Self::Interrupted => Exit::Interrupted,
            Self::Output(_) | Self::WorkerEnded { .. } | Self::LayersNotBuilt { .. } => Exit::Unexpected,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Node(error) => error.hint(),
            Self::NoKey { variable, .. } => Some(format!(
                "export {variable} for this command; its value goes to the coordinator's memory and to workers, and is \
                 never stored. The setting `key_env` of the endpoint names another variable, or none"
            )),
            Self::Pool { .. } => Some("mend its table `[slurm.pools.NAME]` in the settings; see docs/slurm.md".to_owned()),
            Self::Refused { code: tonic::Code::Unauthenticated | tonic::Code::PermissionDenied, .. } => {
                Some("use the access file that the coordinator wrote last, as the user who started it".to_owned())
            }
            Self::Store(OpenError::Locked { .. }) | Self::Start(StartError::Open(OpenError::Locked { .. })) => {
                Some("submit to its coordinator with --coordinator, or name another folder with --store".to_owned())
            }
            Self::StoreInUse(_) => Some(
                "stop that coordinator first (TERM): its workers go on, and deliver when it is started again".to_owned(),
            ),
            Self::Merge(error) => merge_hint(error).map(str::to_owned),
            Self::Import(error) => error.hint(),
            Self::StoreUnsound { .. } => Some(
                "keep a copy of the folder; what is left of it is read with `longhaul export`, and a backup is used in \
                 its place with --store"
                    .to_owned(),
            ),
            Self::Store(OpenError::File { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {
                Some("name a folder that is not there yet".to_owned())
            }
            Self::Store(OpenError::NotAStore { .. }) => {
                Some("name the folder of a store with --store, or a coordinator with --coordinator".to_owned())
            }
            Self::Start(StartError::Listen { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {
                Some("another program listens there; take another port, or port 0 for any free one".to_owned())
            }
            Self::Start(StartError::Slurm(_)) => Some(
                "--slurm needs a machine on which sbatch, squeue, scancel, sinfo and scontrol work: a login node"
                    .to_owned(),
            ),
            Self::Start(StartError::Access(AccessFolderError::Exposed { .. })) => Some(
                "make it private with chmod 600, if it was not read; else remove it, and a new one is made".to_owned(),
            ),
            Self::OwnAllocation(_) => {
                Some("mend the table `[slurm.coordinator]` in the settings; see docs/slurm.md".to_owned())
            }
            Self::Served { store, .. } => Some(format!(
                "use its coordinator with --coordinator {}; if that is known to be dead, start it again with `serve \
                 --slurm --as-allocation`, or remove {}",
                store.join("access/access.json").display(),
                store.join("coordinator.json").display()
            )),
            Self::NotServed { logs } => {
                Some(format!("the newest file in {} says why; start it again when that is mended", logs.display()))
            }
            Self::UnknownRun { .. } | Self::AmbiguousRun { .. } => {
                Some("`longhaul status` lists the runs; `latest` is the last one submitted".to_owned())
            }
            Self::NoSuchPart { have, .. } if !have.is_empty() => Some(format!("it has {}", have.join(", "))),
            Self::NotJudged { .. } => Some("each says why; the same command again tries them once more".to_owned()),
            Self::Prune(error) if matches!(**error, PruningError::NotOver { .. }) => {
                Some("wait for its end or cancel it".to_owned())
            }
            Self::Prune(_) => Some("the same command goes on where this one ended".to_owned()),
            Self::RestoreNotAccepted { store } => Some(format!(
                "serve it until its workers were heard, then say so: longhaul store accept {store} --yes"
            )),
            Self::Changed { run, .. } => Some(format!(
                "--new starts a new run of the file as it is now; `longhaul resume {run}` goes on with the run as it was"
            )),
            Self::Machine(_) => Some(ASK_THE_DOCTOR.to_owned()),
            Self::LayersFrom { .. } => Some(
                "bring them with `longhaul layers export --run` there and `longhaul layers import` here; without \
                 --layers-from they are built again, with what the mirror of packages holds today"
                    .to_owned(),
            ),
            _ => None,
        }
    }

    fn unread(&self) -> Option<&io::Error> {
        match self {
            Self::Node(error) => error.unread(),
            Self::Output(source) => Some(source),
            _ => None,
        }
    }
}

impl From<ReadError> for CliError {
    fn from(error: ReadError) -> Self {
        Self::View(ViewError::Read(error))
    }
}

impl From<ViewError> for CliError {
    fn from(error: ViewError) -> Self {
        Self::View(error)
    }
}

/// Whether what was asked for makes no sense, rather than that a store fails.
const fn is_refused(error: &MergeError) -> bool {
    matches!(
        error,
        MergeError::Same { .. }
            | MergeError::NoRun { .. }
            | MergeError::NotOver { .. }
            | MergeError::Differs { .. }
            | MergeError::Begun { .. }
    )
}

const fn merge_hint(error: &MergeError) -> Option<&'static str> {
    match error {
        MergeError::NotOver { .. } => {
            Some("wait for its end or cancel it, or name the runs that are to be copied with --run")
        }
        MergeError::Differs { .. } => Some("both are left as they are: read the other one with STORE#RUN"),
        MergeError::MissingBlob { .. } | MergeError::Read { .. } => Some("check it with `longhaul store verify`"),
        MergeError::Write { .. } | MergeError::Lost { .. } => Some("the same command goes on where this one ended"),
        MergeError::Open(_) | MergeError::Same { .. } | MergeError::NoRun { .. } | MergeError::Begun { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_coordinator_refuses_decides_the_exit_code() {
        for (code, exit) in [
            (tonic::Code::NotFound, Exit::Input),
            (tonic::Code::ResourceExhausted, Exit::Machine),
            (tonic::Code::Unavailable, Exit::Coordinator),
        ] {
            let (address, reason) = ("a socket".to_owned(), "no space left".to_owned());
            assert_eq!(CliError::Refused { address, what: "store the plan", reason, code }.exit(), exit, "{code:?}");
        }
    }
}

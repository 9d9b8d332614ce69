//! What goes wrong in a command: what, where, and what to do about it.

use std::io;
use std::path::PathBuf;

use longhaul_apptainer::base::CertificateError;
use longhaul_apptainer::layers::carry::CarryError;
use longhaul_coordinator::view::ViewError;
use longhaul_coordinator::{AccessFolderError, ActorError, StartError};
use longhaul_proto::access::AccessError;
use longhaul_store::{OpenError, ReadError};
use longhaul_worker::WorkerError;

use crate::exit::Exit;
use crate::settings::SettingsError;
use crate::strict::StrictError;

/// Why a command failed. Causes are shown in a chain, at the edge, once.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// What is set for a pool cannot be a batch script.
    #[error("there is no batch script for the pool {pool}")]
    Pool {
        /// The pool.
        pool: String,
        /// Why.
        source: longhaul_coordinator::allocator::BatchScriptError,
    },
    /// The settings.
    #[error("the settings cannot be used")]
    Settings(#[source] SettingsError),
    /// Certificates that base images are to trust.
    #[error("the setting `base.certificates` cannot be used")]
    Certificates(#[source] CertificateError),
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
    /// No folder is known in which to keep something.
    #[error("there is no place for {what}: {variable} is not set")]
    NoHome {
        /// What was to be kept.
        what: &'static str,
        /// The variable that would say.
        variable: &'static str,
    },
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
    /// A coordinator cannot be reached.
    #[error("the coordinator cannot be reached")]
    Access(#[source] AccessError),
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
    /// A worker failed.
    #[error("the worker failed")]
    Worker(#[source] WorkerError),
    /// A benchmark cannot be linted.
    #[error("the benchmark cannot be checked")]
    Lint(#[source] crate::commands::lint::LintError),
    /// A run cannot be exported.
    #[error("the run cannot be exported")]
    Export(#[source] longhaul_report::ExportError),
    /// The worker of a run is gone.
    #[error("the run's worker ended ({status}) before the run had settled")]
    WorkerEnded {
        /// How it ended.
        status: String,
    },
    /// The layer folder.
    #[error("the layer folder cannot be used")]
    Layers(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Layers cannot be carried.
    #[error("the layers cannot be carried")]
    Carry(#[source] CarryError),
    /// The layers of a run are not there any more.
    #[error("the layers of run {run} cannot be used again:\n  {}", reasons.join("\n  "))]
    LayersFrom {
        /// The run.
        run: String,
        /// What is wrong, layer by layer.
        reasons: Vec<String>,
    },
    /// Layers are not what they were.
    #[error("{count} layers are damaged")]
    LayersDamaged {
        /// How many.
        count: usize,
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
    /// A signal.
    #[error("interrupted")]
    Interrupted,
}

impl CliError {
    /// The exit code that it leads to.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::Settings(_)
            | Self::Strict(_)
            | Self::NoKey { .. }
            | Self::Certificates(_)
            | Self::Pool { .. }
            | Self::UnknownRun { .. }
            | Self::AmbiguousRun { .. }
            | Self::NoSuchPart { .. }
            | Self::Plan(_)
            | Self::LayersFrom { .. }
            | Self::File { .. } => Exit::Input,
            Self::Carry(error) => match error {
                CarryError::Missing { .. } | CarryError::Refused { .. } => Exit::Input,
                CarryError::Damaged { .. } => Exit::Store,
                CarryError::Stopped => Exit::Interrupted,
                CarryError::Io { .. }
                | CarryError::Store(_)
                | CarryError::Base(_)
                | CarryError::NoRoom { .. }
                | CarryError::Busy(_) => Exit::Machine,
            },
            Self::NoHome { .. } | Self::Machine(_) | Self::Layers(_) => Exit::Machine,
            Self::Worker(error) => match error {
                WorkerError::Endpoint { .. } | WorkerError::Refused { .. } => Exit::Coordinator,
                WorkerError::File { .. }
                | WorkerError::Sandbox(_)
                | WorkerError::Cache(_)
                | WorkerError::Gateway(_)
                | WorkerError::Node { .. } => Exit::Machine,
            },
            Self::Lint(error) => error.exit(),
            Self::Export(error) => crate::commands::export::exit(error),
            Self::Store(_)
            | Self::StoreInUse(_)
            | Self::StoreUnsound { .. }
            | Self::LayersDamaged { .. }
            | Self::View(_)
            | Self::Record { .. }
            | Self::Actor(_) => Exit::Store,
            // A file that is not there or is none is a wrong input; who does not answer is not.
            Self::Access(error) => match error {
                AccessError::Read { .. }
                | AccessError::Parse { .. }
                | AccessError::Version { .. }
                | AccessError::Malformed { .. } => Exit::Input,
                AccessError::Unreachable { .. } => Exit::Coordinator,
            },
            Self::Answer(_) => Exit::Coordinator,
            // What was asked for is not there: the input is wrong, not the coordinator.
            Self::Refused { code: tonic::Code::NotFound, .. } => Exit::Input,
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
            Self::Faulted { .. } => Exit::Faulted,
            Self::Interrupted => Exit::Interrupted,
            Self::Output(_) | Self::WorkerEnded { .. } | Self::LayersNotBuilt { .. } => Exit::Unexpected,
        }
    }

    /// What to do about it, where that can be said.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Settings(SettingsError::UnknownKey { suggestion: Some(near), .. }) => {
                Some(format!("did you mean `{near}`?"))
            }
            Self::Settings(SettingsError::UnknownKey { .. } | SettingsError::Value { .. }) => {
                Some("`longhaul settings` prints every setting with its default".to_owned())
            }
            Self::NoKey { variable, .. } => Some(format!(
                "export {variable} for this command; its value goes to the coordinator's memory and to workers, and is \
                 never stored. The setting `key_env` of the endpoint names another variable, or none"
            )),
            Self::Pool { .. } => Some("mend its table `[slurm.pools.NAME]` in the settings; see docs/slurm.md".to_owned()),
            Self::Settings(SettingsError::Read { .. } | SettingsError::Parse { .. }) => None,
            Self::NoHome { .. } => Some("name a folder on the command line or in the settings".to_owned()),
            Self::Access(AccessError::Read { .. }) => {
                Some("`longhaul serve` writes access files into the folder `access` of its store".to_owned())
            }
            Self::Access(AccessError::Unreachable { .. }) => {
                Some("is `longhaul serve` running there? If it moved, use its new access file".to_owned())
            }
            Self::Refused { code: tonic::Code::Unauthenticated | tonic::Code::PermissionDenied, .. } => {
                Some("use the access file that the coordinator wrote last, as the user who started it".to_owned())
            }
            Self::Store(OpenError::Locked { .. }) | Self::Start(StartError::Open(OpenError::Locked { .. })) => {
                Some("submit to its coordinator with --coordinator, or name another folder with --store".to_owned())
            }
            Self::StoreInUse(_) => Some(
                "stop that coordinator first (TERM): its workers go on, and deliver when it is started again".to_owned(),
            ),
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
            Self::UnknownRun { .. } | Self::AmbiguousRun { .. } => {
                Some("`longhaul status` lists the runs; `latest` is the last one submitted".to_owned())
            }
            Self::NoSuchPart { have, .. } if !have.is_empty() => Some(format!("it has {}", have.join(", "))),
            Self::Machine(_) | Self::Worker(_) => {
                Some("`longhaul doctor` says what is missing and how to mend it".to_owned())
            }
            Self::Carry(CarryError::Missing { .. }) => Some("build it first with `longhaul layers build`".to_owned()),
            Self::Carry(CarryError::Refused { .. }) => Some(
                "bring the file again, as `longhaul layers export` wrote it, and repeat the import: what is there already \
                 is kept"
                    .to_owned(),
            ),
            Self::LayersFrom { .. } => Some(
                "bring them with `longhaul layers export --run` there and `longhaul layers import` here; without \
                 --layers-from they are built again, with what the mirror of packages holds today"
                    .to_owned(),
            ),
            Self::LayersDamaged { .. } => {
                Some("a worker that needs a damaged layer removes it and builds it again".to_owned())
            }
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

/// An error with its chain of causes and its hint, as it is shown to a person.
#[must_use]
pub fn render(error: &CliError, colours: bool) -> String {
    use crate::output::{Tone, escape, paint};
    let mut text = format!("{} {}", paint("error:", Tone::Bad, colours), escape(&error.to_string()));
    let mut last = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let shown = cause.to_string();
        // A transparent wrapper says what its source says.
        if shown != last {
            text.push_str("\n  because: ");
            text.push_str(&escape(&shown).replace('\n', "\n    "));
        }
        last = shown;
        source = cause.source();
    }
    if let Some(hint) = error.hint() {
        text.extend(["\n", &paint("hint:", Tone::Strong, colours), " ", &escape(&hint)]);
    }
    text
}

//! What goes wrong on a node, and in what both programs do: what, where, and what to do about it.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use longhaul_apptainer::base::CertificateError;
use longhaul_apptainer::layers::carry::CarryError;
use longhaul_proto::access::AccessError;
use longhaul_worker::WorkerError;

use crate::exit::Exit;
use crate::output::{Tone, escape, paint};
use crate::settings::SettingsError;

/// An error that ends a process, and says how.
pub trait Explained: std::error::Error + Sized {
    /// The exit code that it leads to.
    fn exit(&self) -> Exit;

    /// What to do about it, where that can be said.
    fn hint(&self) -> Option<String>;

    /// What the system said, if stdout could not be written.
    fn unread(&self) -> Option<&io::Error>;
}

/// What to do where this machine is to blame.
pub const ASK_THE_DOCTOR: &str = "`longhaul doctor` says what is missing and how to mend it";

/// Why the node's program failed, or what both programs do. Causes are shown in a chain, at the
/// edge, once.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The whole program is needed.
    #[error("this is the node's program, which has no command `{asked}`: use longhaul")]
    NotHere {
        /// What was asked for.
        asked: String,
    },
    /// The settings.
    #[error("the settings cannot be used")]
    Settings(#[source] SettingsError),
    /// Certificates that base images are to trust.
    #[error("the setting `base.certificates` cannot be used")]
    Certificates(#[source] CertificateError),
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
    /// A part of this machine.
    #[error("this machine lacks something")]
    Machine(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A worker failed.
    #[error("the worker failed")]
    Worker(#[source] WorkerError),
    /// The layer folder.
    #[error("the layer folder cannot be used")]
    Layers(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Layers cannot be carried.
    #[error("the layers cannot be carried")]
    Carry(#[source] CarryError),
    /// Layers are not what they were.
    #[error("{count} layers are damaged")]
    LayersDamaged {
        /// How many.
        count: usize,
    },
    /// A signal.
    #[error("interrupted")]
    Interrupted,
}

impl NodeError {
    /// Something that the node's program does not do, below a command of its own or by itself.
    pub(crate) fn not_here(below: Option<&str>, words: &[OsString]) -> Self {
        let word = words.first().map(|word| word.to_string_lossy());
        Self::NotHere { asked: below.into_iter().chain(word.as_deref()).collect::<Vec<_>>().join(" ") }
    }
}

impl Explained for NodeError {
    fn exit(&self) -> Exit {
        match self {
            Self::NotHere { .. } | Self::Usage(_) => Exit::Usage,
            Self::Settings(_) | Self::Certificates(_) | Self::File { .. } => Exit::Input,
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
            Self::LayersDamaged { .. } => Exit::Store,
            // A file that is not there or is none is a wrong input; who does not answer is not.
            Self::Access(error) => match error {
                AccessError::Read { .. }
                | AccessError::Parse { .. }
                | AccessError::Version { .. }
                | AccessError::Malformed { .. } => Exit::Input,
                AccessError::Unreachable { .. } => Exit::Coordinator,
            },
            Self::Interrupted => Exit::Interrupted,
            Self::Output(_) => Exit::Unexpected,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NotHere { asked } => {
                return Some(format!(
                    "`longhaul {asked}`, on a login node; here there are `worker`, `layers` (ls, verify, import) and \
                     `doctor`"
                ));
            }
            Self::Settings(SettingsError::UnknownKey { suggestion: Some(near), .. }) => {
                return Some(format!("did you mean `{near}`?"));
            }
            Self::Settings(SettingsError::UnknownKey { .. } | SettingsError::Value { .. }) => {
                "`longhaul settings` prints every setting with its default"
            }
            Self::NoHome { .. } => "name a folder on the command line or in the settings",
            Self::Access(AccessError::Read { .. }) => {
                "`longhaul serve` writes access files into the folder `access` of its store"
            }
            Self::Access(AccessError::Unreachable { .. }) => {
                "is `longhaul serve` running there? If it moved, use its new access file"
            }
            Self::Machine(_) | Self::Worker(_) => ASK_THE_DOCTOR,
            Self::Carry(CarryError::Missing { .. }) => "build it first with `longhaul layers build`",
            Self::Carry(CarryError::Refused { .. }) => {
                "bring the file again, as `longhaul layers export` wrote it, and repeat the import: what is there already \
                 is kept"
            }
            Self::LayersDamaged { .. } => "a worker that needs a damaged layer removes it and builds it again",
            _ => return None,
        };
        Some(hint.to_owned())
    }

    fn unread(&self) -> Option<&io::Error> {
        if let Self::Output(source) = self { Some(source) } else { None }
    }
}

/// An error with its chain of causes and its hint, as it is shown to a person.
#[must_use]
pub fn render(error: &impl Explained, colours: bool) -> String {
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

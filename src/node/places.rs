//! Where things are kept: what the command line says, else the settings, else the usual
//! folders of the user.

use std::path::{Path, PathBuf};

use longhaul_core::digest::Digest;

use crate::error::NodeError;
use crate::settings::Settings;

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// A folder of the user's: `$XDG_...`, else one in the home folder.
fn user_folder(what: &'static str, xdg: &str, in_home: &str) -> Result<PathBuf, NodeError> {
    variable(xdg)
        .filter(|path| path.is_absolute())
        .or_else(|| variable("HOME").map(|home| home.join(in_home)))
        .ok_or(NodeError::NoHome { what, variable: "HOME" })
}

/// Replaces a leading `~/`, as a shell would.
///
/// # Errors
///
/// Nothing says where the user's home is.
pub fn expand(path: &Path) -> Result<PathBuf, NodeError> {
    match path.strip_prefix("~") {
        Ok(rest) => {
            let home = variable("HOME").ok_or(NodeError::NoHome { what: "`~`", variable: "HOME" })?;
            Ok(home.join(rest))
        }
        Err(_) => Ok(path.to_owned()),
    }
}

/// A path that means the same in every folder.
///
/// # Errors
///
/// It is empty, or this process's own folder is gone.
pub fn absolute(path: &Path) -> Result<PathBuf, NodeError> {
    std::path::absolute(path).map_err(|source| NodeError::File { path: path.to_owned(), doing: "found", source })
}

/// The folder of the store.
///
/// # Errors
///
/// Nothing says where the user's folders are.
pub fn store(given: Option<&Path>, settings: &Settings) -> Result<PathBuf, NodeError> {
    match (given, &settings.paths.store) {
        (Some(given), _) => Ok(given.to_owned()),
        (None, Some(set)) => expand(set),
        (None, None) => Ok(user_folder("the store", "XDG_DATA_HOME", ".local/share")?.join("longhaul/store")),
    }
}

/// The folder of layers.
///
/// # Errors
///
/// Nothing says where the user's folders are.
pub fn layers(given: Option<&Path>, settings: &Settings) -> Result<PathBuf, NodeError> {
    match (given, &settings.paths.layers) {
        (Some(given), _) => Ok(given.to_owned()),
        (None, Some(set)) => expand(set),
        (None, None) => Ok(user_folder("layers", "XDG_CACHE_HOME", ".cache")?.join("longhaul/layers")),
    }
}

/// The folder for sandboxes, caches and spools; `tmp` is the allocation's own folder, if
/// it has one.
///
/// # Errors
///
/// Nothing says where the user's folders are.
pub fn scratch(given: Option<&Path>, settings: &Settings, tmp: Option<&Path>) -> Result<PathBuf, NodeError> {
    match (given, &settings.paths.scratch, tmp) {
        (Some(given), _, _) => Ok(given.to_owned()),
        (None, Some(set), _) => expand(set),
        (None, None, Some(tmp)) => Ok(tmp.join("longhaul")),
        (None, None, None) => {
            // Slurm sets TMPDIR to /tmp, which is everybody's and often in memory.
            let shared = variable("TMPDIR").filter(|tmp| tmp != Path::new("/tmp"));
            let shared = shared.unwrap_or_else(|| PathBuf::from("/var/tmp"));
            Ok(shared.join(format!("longhaul-{}", nix::unistd::getuid())))
        }
    }
}

/// What the built-in base image is called beside a program that it was shipped with: by the
/// digest of its definition, so that a program of another version does not take it for its own.
#[must_use]
pub fn shipped_name(definition: &Digest) -> String {
    format!("base-{}.sif", definition.short())
}

/// The built-in base image beside this program, if it was shipped with it.
#[must_use]
pub fn shipped_image(definition: &Digest) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    Some(program.with_file_name(shipped_name(definition))).filter(|image| image.is_file())
}

/// The user's folder for sockets.
#[must_use]
pub fn runtime_dir() -> Option<PathBuf> {
    variable("XDG_RUNTIME_DIR").filter(|path| path.is_absolute())
}

/// The settings file that is read if none is named; none if there is none.
#[must_use]
pub fn settings_file() -> Option<PathBuf> {
    let folder = user_folder("settings", "XDG_CONFIG_HOME", ".config").ok()?;
    Some(folder.join("longhaul/settings.toml")).filter(|path| path.exists())
}

//! Reading the settings: the defaults, then the file over them, every key checked.

use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::{BaseSettings, Settings, endpoints, slurm};
use crate::nearest::{closest, position};

/// The defaults, as the file that documents them.
pub const DEFAULTS: &str = include_str!("default.toml");

/// Why a settings file is refused.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// It cannot be read.
    #[error("the settings file {} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It is not TOML, or a value has the wrong type.
    #[error("{}:{line}:{column}: {reason}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// What is wrong.
        reason: String,
    },
    /// It has a key that means nothing.
    #[error("{}:{line}:{column}: there is no setting `{key}`", path.display())]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// The key, with the tables it is in.
        key: String,
        /// The known key that is most like it.
        suggestion: Option<String>,
    },
    /// A value is not possible.
    #[error("{}: `{key}`: {reason}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// The settings: the defaults, and what the file at `path` changes, if there is one.
///
/// # Errors
///
/// The file cannot be read, is not TOML, or has a key or value that is not known.
pub fn load(path: Option<&Path>) -> Result<Settings, SettingsError> {
    let Some(path) = path else { return parse("", Path::new("default.toml")) };
    let text = std::fs::read_to_string(path).map_err(|source| SettingsError::Read { path: path.to_owned(), source })?;
    parse(&text, path)
}

/// The defaults with the settings of `text` over them; `path` is for messages.
///
/// # Errors
///
/// As [`load`].
pub fn parse(text: &str, path: &Path) -> Result<Settings, SettingsError> {
    let refuse = |span: Option<std::ops::Range<usize>>, reason: String| {
        let (line, column) = position(text, span.map_or(0, |span| span.start));
        SettingsError::Parse { path: path.to_owned(), line, column, reason }
    };
    let spanned = DeTable::parse(text).map_err(|error| refuse(error.span(), error.message().to_owned()))?;
    let mut merged: toml::Table =
        toml::from_str(DEFAULTS).expect("invariant: the embedded defaults are TOML, as a test pins");
    // Envs and pools have names of their own, and what is in them is as in the pool of the defaults.
    let mut known = merged.clone();
    slurm::name_pools(&mut known, spanned.get_ref());
    BaseSettings::name_envs(&mut known, spanned.get_ref());
    endpoints::name_endpoints(&mut known, spanned.get_ref());
    check_keys(spanned.get_ref(), &known, "", &|key, start, suggestion| {
        let (line, column) = position(text, start);
        SettingsError::UnknownKey { path: path.to_owned(), line, column, key, suggestion }
    })?;
    // Read alone first: an error then has its place in this file.
    let given: toml::Table = toml::from_str(text).map_err(|error| refuse(error.span(), error.message().to_owned()))?;
    let defaults = merged.clone();
    merge(&mut merged, given);
    slurm::complete(&mut merged);
    endpoints::complete(&mut merged, &defaults);
    let settings: Settings = merged.try_into().map_err(|error: toml::de::Error| {
        let message = error.to_string();
        let mut lines = message.lines().filter(|line| !line.is_empty());
        let reason = lines.next().unwrap_or_default().to_owned();
        let key = lines.find_map(|line| line.strip_prefix("in `")?.strip_suffix('`')).unwrap_or("settings").to_owned();
        SettingsError::Value { path: path.to_owned(), key, reason }
    })?;
    settings.check().map_err(|(key, reason)| SettingsError::Value {
        path: path.to_owned(),
        key: key.to_owned(),
        reason,
    })?;
    Ok(settings)
}

/// Refuses the first key that the defaults do not have.
fn check_keys(
    given: &DeTable<'_>,
    known: &toml::Table,
    prefix: &str,
    refuse: &dyn Fn(String, usize, Option<String>) -> SettingsError,
) -> Result<(), SettingsError> {
    for (key, value) in given {
        let name = key.get_ref().as_ref();
        let full = format!("{prefix}{name}");
        match (known.get(name), value.get_ref()) {
            (Some(toml::Value::Table(known)), DeValue::Table(given)) => {
                check_keys(given, known, &format!("{full}."), refuse)?;
            }
            (Some(_), _) => {}
            (None, _) => {
                let suggestion = closest(name, known.keys().map(String::as_str)).map(|near| format!("{prefix}{near}"));
                return Err(refuse(full, key.span().start, suggestion));
            }
        }
    }
    Ok(())
}

/// Gives a table what it does not say from a template. Another type is refused when it is read.
pub(super) fn fill(value: &mut toml::Value, template: &toml::Table) {
    if let toml::Value::Table(own) = value {
        let mut whole = template.clone();
        whole.extend(std::mem::take(own));
        *own = whole;
    }
}

fn merge(into: &mut toml::Table, from: toml::Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(into)), toml::Value::Table(from)) => merge(into, from),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_core::time::Millis;

    use super::*;

    fn read(text: &str) -> Result<Settings, SettingsError> {
        parse(text, Path::new("settings.toml"))
    }

    #[test]
    fn the_defaults_are_complete_and_consistent() {
        let settings = read("").expect("the defaults");
        assert_eq!(settings.paths.store, None);
        assert_eq!(settings.run.time, Millis::from_secs(86_400));
        assert_eq!(read(DEFAULTS).expect("the defaults over themselves"), settings);
    }

    #[test]
    fn every_default_is_explained() {
        let lines: Vec<&str> = DEFAULTS.lines().collect();
        for (index, line) in lines.iter().enumerate().filter(|(_, line)| line.contains(" = ")) {
            if line.starts_with('#') {
                continue;
            }
            let above = &lines[..index];
            let section = above.iter().rposition(|line| line.starts_with('[')).unwrap_or(0);
            assert!(above[section..].iter().any(|line| line.starts_with('#')), "{line}");
        }
    }

    #[test]
    fn a_file_changes_only_what_it_names() {
        let settings = read("[run]\nsteps = 7\n[paths]\nstore = '/s'\n").expect("settings");
        assert_eq!(settings.run.steps, 7);
        assert_eq!(settings.run.max_attempts, 3);
        assert_eq!(settings.paths.store.as_deref(), Some(Path::new("/s")));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let cases = [
            ("[run]\nstep = 7\n", "settings.toml:2:1: there is no setting `run.step`"),
            ("[runn]\nsteps = 7\n", "settings.toml:1:2: there is no setting `runn`"),
            ("[run\n", "settings.toml:1:5: "),
            ("[run]\ntime = \"soon\"\n", "settings.toml: `run.time`: `soon` is not a length of time"),
            ("[run]\nsteps = 0\n", "settings.toml: `run.steps`: an episode needs at least one step"),
            ("[coordinator]\nheartbeat = \"1h\"\n", "settings.toml: `coordinator.heartbeat`: a lease must last"),
            ("[slurm.coordinator]\nidle = \"0s\"\n", "settings.toml: `slurm.coordinator`: warning and idle cannot"),
            ("[slurm.coordinator]\nwarning = \"0s\"\n", "settings.toml: `slurm.coordinator`: warning and idle cannot"),
            ("run = 3\n", "settings.toml: `run`: "),
            ("[base.envs]\na_env = 3\n", "settings.toml: `base.envs.a_env`: "),
            ("[base.envs]\na_env = ''\n", "settings.toml: `base.envs`: a_env: an image has to be named"),
            ("[base]\nubuntu_mirror = 'a b'\n", "settings.toml: `base.ubuntu_mirror`: `a b` is no address"),
        ];
        for (text, expected) in cases {
            let error = read(text).expect_err(text).to_string();
            assert!(error.starts_with(expected), "{text:?} gave {error:?}");
        }
    }

    #[test]
    fn envs_name_their_images() {
        let settings = read("[base.envs]\na_env = 'ubuntu-22.04'\n\"b.c\" = 'x.sif'\n").expect("settings");
        let envs: Vec<_> = settings.base.envs.iter().map(|(env, image)| (env.as_str(), image.as_str())).collect();
        assert_eq!(envs, [("a_env", "ubuntu-22.04"), ("b.c", "x.sif")]);
        assert_eq!(settings.base.image, "debian-12");
    }

    #[test]
    fn a_misspelt_key_gets_a_suggestion() {
        let suggestion = |text: &str| match read(text) {
            Err(SettingsError::UnknownKey { suggestion, .. }) => suggestion,
            other => panic!("{other:?}"),
        };
        assert_eq!(suggestion("[worker]\nverify_limits = \"1m\"\n").as_deref(), Some("worker.verify_limit"));
        assert_eq!(suggestion("[xyzzy]\n"), None);
    }

    #[test]
    fn proxies_are_inherited_set_or_none() {
        let mut proxy = read("").expect("the defaults").proxy;
        let var = |name: &str| (name == "HTTPS_PROXY").then(|| "http://p:1".to_owned());
        assert_eq!(proxy.variables(var).get("https_proxy").map(String::as_str), Some("http://p:1"));
        assert_eq!(proxy.variables(var).get("http_proxy"), None);
        proxy.https = String::new();
        assert!(proxy.variables(var).is_empty());
    }
}

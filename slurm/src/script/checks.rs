//! What a value may hold for a line of a script to stay one line, and to say one thing.
//!
//! `sbatch` reads its lines with rules of its own: `#` begins a comment, quotes and
//! backslashes are taken away, white space begins the next option. Which ones exactly differs
//! between versions, so values with any of them are refused instead of quoted.

use std::path::Path;

use super::Template;

/// A script that cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// A value is empty, or has something that would end it.
    #[error("{setting} {value:?} must be one word of printable ASCII, without quotes, backslash or #")]
    Word {
        /// Which setting.
        setting: &'static str,
        /// What it holds.
        value: String,
    },
    /// A value would be more than a line, or holds what no text does.
    #[error("{setting} {value:?} must be one line without control characters")]
    Line {
        /// Which setting.
        setting: &'static str,
        /// What it holds.
        value: String,
    },
    /// A path would be another one on a node.
    #[error("{setting} {value:?} must be an absolute path")]
    Relative {
        /// Which setting.
        setting: &'static str,
        /// What it holds.
        value: String,
    },
    /// An option line does not begin with an option.
    #[error("{value:?} is no line of sbatch options: it must begin with -")]
    NoOption {
        /// The line.
        value: String,
    },
    /// An option is set by Longhaul itself.
    #[error("{option} cannot be among the sbatch options: {instead}")]
    Owned {
        /// The option.
        option: String,
        /// What sets it.
        instead: &'static str,
    },
    /// A worker would have no time to work.
    #[error("a time limit of {minutes} min is not longer than the warning of {warning} s and a minute before it")]
    TooShort {
        /// The limit.
        minutes: u32,
        /// How long before it the worker is told.
        warning: u16,
    },
}

const BY_LONGHAUL: &str = "Longhaul sets it";
const BY_SETTING: &str = "there is a setting for it";
const BREAKS: &str = "an allocation with it is none that Longhaul can follow";

/// Long and short names that are not the user's to set in option lines, and who sets them.
const OWNED: [(&str, Option<char>, &str); 39] = [
    ("array", Some('a'), BY_LONGHAUL),
    ("chdir", Some('D'), BY_LONGHAUL),
    ("comment", None, BY_LONGHAUL),
    ("error", Some('e'), BY_LONGHAUL),
    ("export", None, BY_LONGHAUL),
    ("export-file", None, BY_LONGHAUL),
    ("job-name", Some('J'), BY_LONGHAUL),
    ("no-requeue", None, BY_LONGHAUL),
    ("nodes", Some('N'), BY_LONGHAUL),
    ("ntasks", Some('n'), BY_LONGHAUL),
    ("ntasks-per-node", None, BY_LONGHAUL),
    ("open-mode", None, BY_LONGHAUL),
    ("output", Some('o'), BY_LONGHAUL),
    ("parsable", None, BY_LONGHAUL),
    ("requeue", None, BY_SETTING),
    ("signal", None, BY_LONGHAUL),
    ("account", Some('A'), BY_SETTING),
    ("constraint", Some('C'), BY_SETTING),
    ("cpus-per-task", Some('c'), BY_SETTING),
    ("exclusive", None, BY_SETTING),
    ("gres", None, BY_SETTING),
    ("mem", None, BY_SETTING),
    ("mem-per-cpu", None, BY_SETTING),
    ("partition", Some('p'), BY_SETTING),
    ("qos", Some('q'), BY_SETTING),
    ("time", Some('t'), BY_SETTING),
    ("time-min", None, BY_SETTING),
    ("clusters", Some('M'), BREAKS),
    ("gid", None, BREAKS),
    ("help", Some('h'), BREAKS),
    ("hold", Some('H'), BREAKS),
    ("input", Some('i'), BREAKS),
    ("oversubscribe", Some('s'), BREAKS),
    ("test-only", None, BREAKS),
    ("uid", None, BREAKS),
    ("usage", None, BREAKS),
    ("version", Some('V'), BREAKS),
    ("wait", Some('W'), BREAKS),
    ("wrap", None, BREAKS),
];

/// Whether nothing in a text ends a word for any version of `sbatch`.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\' | b'#' | b'`'))
}

pub(super) fn word<'a>(setting: &'static str, value: &'a str) -> Result<&'a str, ScriptError> {
    if value.is_empty() || !is_plain(value) {
        return Err(ScriptError::Word { setting, value: value.to_owned() });
    }
    Ok(value)
}

/// A line of more options, none of which is ours.
pub(super) fn options(line: &str) -> Result<&str, ScriptError> {
    if line.contains(|letter: char| letter != ' ' && letter.is_whitespace()) {
        return Err(ScriptError::Line { setting: "sbatch option", value: line.to_owned() });
    }
    if !line.starts_with('-') {
        return Err(ScriptError::NoOption { value: line.to_owned() });
    }
    for token in line.split(' ').filter(|token| !token.is_empty()) {
        word("sbatch option", token)?;
        if let Some((_, _, instead)) = OWNED.iter().find(|(long, short, _)| names(token, long, *short)) {
            return Err(ScriptError::Owned { option: token.to_owned(), instead });
        }
    }
    Ok(line)
}

/// Whether a token sets an option. Long names may be abbreviated; short ones without a value
/// may stand together, so a letter counts wherever it is in such a group.
fn names(token: &str, long: &str, short: Option<char>) -> bool {
    if let Some(given) = token.strip_prefix("--") {
        let given = given.split('=').next().unwrap_or_default();
        return !given.is_empty() && long.starts_with(given);
    }
    let Some(group) = token.strip_prefix('-') else { return false };
    /// Short options of `sbatch` without a value: what follows one is an option again.
    const FLAGS: [char; 7] = ['H', 'I', 'k', 'O', 'Q', 's', 'v'];
    let end = group.find(|letter| !FLAGS.contains(&letter)).map_or(group.len(), |at| at + 1);
    short.is_some_and(|short| group.get(..end).is_none_or(|group| group.contains(short)))
}

/// A line of the user's own shell.
pub(super) fn shell_line<'a>(setting: &'static str, line: &'a str) -> Result<&'a str, ScriptError> {
    if line.contains(|letter: char| letter.is_control() && letter != '\t') {
        return Err(ScriptError::Line { setting, value: line.to_owned() });
    }
    Ok(line)
}

/// A text as one word of the shell.
pub(super) fn quoted(setting: &'static str, value: &str) -> Result<String, ScriptError> {
    shell_line(setting, value)?;
    Ok(format!("'{}'", value.replace('\'', r"'\''")))
}

pub(super) fn program(path: &Path) -> Result<&str, ScriptError> {
    absolute("worker program", path)
}

/// A folder in which Slurm finds no pattern (`%j`) that is not meant.
pub(super) fn output_folder(path: &Path) -> Result<String, ScriptError> {
    let setting = "output folder";
    let folder = word(setting, absolute(setting, path)?)?;
    Ok(folder.trim_end_matches('/').replace('%', "%%"))
}

fn absolute<'a>(setting: &'static str, path: &'a Path) -> Result<&'a str, ScriptError> {
    let value = || path.to_string_lossy().into_owned();
    if !path.is_absolute() {
        return Err(ScriptError::Relative { setting, value: value() });
    }
    path.to_str().ok_or_else(|| ScriptError::Line { setting, value: value() })
}

/// The limit in minutes, if the worker has some of it for its work.
pub(super) fn time_limit(template: &Template) -> Result<u32, ScriptError> {
    let (minutes, warning) = (template.time_limit_minutes, template.warning_seconds);
    // The warning may come a minute early.
    if u64::from(minutes) * 60 <= u64::from(warning) + 60 {
        return Err(ScriptError::TooShort { minutes, warning });
    }
    Ok(minutes)
}

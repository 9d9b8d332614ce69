//! The same run file again: the run that was made of it goes on, unless what it freezes has changed.
//!
//! A run is what was frozen for it. So the file is frozen once more, with the random number that
//! the earlier run has, into memory: if the digest of that is the earlier run's, nothing has changed.
//! Else both are compared, field by field.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;

use longhaul_core::digest::Digest;
use longhaul_core::ids::RunId;
use longhaul_proto::{convert, v1};
use longhaul_report::Trajectories;
use longhaul_store::OpenError;
use serde_json::{Map, Value};

use super::asked::is_run_file;
use super::pick::Wanted;
use super::submit;
use crate::benchmark::{BlobError, Blobs, Planned};
use crate::cli::{SourceArgs, VenueArgs};
use crate::client::Source;
use crate::error::CliError;
use crate::output;
use crate::reading::{self, Reading};
use crate::settings::Settings;

/// How many differences are shown.
const SHOWN: usize = 20;

/// The longest value that is shown.
const VALUE_WIDTH: usize = 60;

/// The largest blob that is kept to be compared: records are smaller, and files larger than this
/// are only known to differ.
const MOST_KEPT: usize = 4 * 1024 * 1024;

/// Fields whose names say nothing where what is in them has a name of its own.
const SILENT: [&str; 10] = ["episodes", "envs", "plan", "task", "env", "files", "entries", "chunks", "tree", "mounts"];

/// How often it is looked whether another process is done with a run file.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// What is in a file beside it, where its differences are found.
const DERIVED: &str = "spec";

/// What a run file means.
pub(super) enum Same {
    /// A new run.
    New(Box<Wanted>),
    /// The run that was made of it.
    Run(Source, Box<v1::RunSummary>),
}

/// The whole path of the run file that is named, if it is one.
///
/// # Errors
///
/// It is not there.
pub(super) fn file(given: &Path) -> Result<Option<String>, CliError> {
    if !is_run_file(given) {
        return Ok(None);
    }
    let failed = |source| CliError::File { path: given.to_owned(), doing: "read", source };
    let whole = std::fs::canonicalize(given).map_err(failed)?;
    Ok(Some(whole.to_string_lossy().into_owned()))
}

/// This process's turn with a run file, for as long as what is returned is open: of two that are
/// given a file at once, the second finds the run that the first has made of it.
///
/// # Errors
///
/// It cannot be read.
pub(super) async fn turn(file: &str) -> Result<File, CliError> {
    let failed = |source| CliError::File { path: file.into(), doing: "read", source };
    let opened = File::open(file).map_err(failed)?;
    let mut said = false;
    loop {
        match opened.try_lock() {
            Ok(()) => return Ok(opened),
            Err(TryLockError::WouldBlock) => {
                if !said {
                    output::note(&output::escape(&format!("another process submits {file}: waiting for it")));
                }
                said = true;
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            // Not every file system has locks, and nobody needs one who submits once.
            Err(TryLockError::Error(error)) => {
                tracing::warn!(file, %error, "the run file cannot be locked");
                return Ok(opened);
            }
        }
    }
}

/// The run that was made of a run file last, if nothing has changed since.
///
/// # Errors
///
/// Something has changed: what; or the store cannot be read.
pub(super) async fn look(wanted: Wanted, file: &str, venue: &VenueArgs, settings: &Settings) -> Result<Same, CliError> {
    let args = SourceArgs { coordinator: venue.coordinator.clone(), store: venue.store.clone() };
    let source = match Source::open(&args, settings).await {
        Ok(source) => source,
        // There is no store yet: it is made with the run.
        Err(CliError::Store(OpenError::NotAStore { .. })) => return Ok(Same::New(Box::new(wanted))),
        Err(error) => return Err(error),
    };
    let Some(last) = source.runs().await?.into_iter().rev().find(|run| run.file == file) else {
        return Ok(Same::New(Box::new(wanted)));
    };
    let run: RunId = convert::parsed("run_id", &last.run_id).map_err(CliError::Answer)?;
    let planning = tokio::task::spawn_blocking(move || {
        let mut kept = Kept::default();
        submit::planned(&wanted, run, &mut kept).map(|planned| (kept, planned))
    });
    let planned = planning.await.map_err(|error| CliError::Plan(Box::new(error)))?;
    let (kept, planned) = planned.map_err(|error| CliError::Plan(Box::new(error)))?;
    let before = convert::digest("plan", &last.plan).map_err(CliError::Answer)?;
    if before == planned.digest {
        return Ok(Same::Run(source, Box::new(last)));
    }
    let compared = reading::blocking(source, move |reading| differences(reading, &before, &planned, &kept)).await??;
    let differences = compared.iter().map(|line| output::escape_line(line)).collect();
    Err(CliError::Changed { file: file.to_owned(), run: last.run_id, differences })
}

/// What was frozen, in memory.
#[derive(Debug, Default)]
struct Kept(BTreeMap<Digest, Vec<u8>>);

impl Blobs for Kept {
    fn put(&mut self, digest: Digest, bytes: &[u8]) -> Result<(), BlobError> {
        if bytes.first() == Some(&b'{') && bytes.len() <= MOST_KEPT {
            self.0.entry(digest).or_insert_with(|| bytes.to_owned());
        }
        Ok(())
    }
}

/// What differs between an earlier run and what its file says now, a line each.
fn differences(reading: &Reading, before: &Digest, now: &Planned, kept: &Kept) -> Result<Vec<String>, CliError> {
    let (path, seen, found) = (Vec::new(), BTreeSet::new(), Vec::new());
    let mut differences = Differences { reading, kept, of: None, path, seen, found };
    differences.blobs(*before, now.digest)?;
    Ok(differences.lines())
}

struct Differences<'a> {
    reading: &'a Reading,
    kept: &'a Kept,
    /// The task, env or agent that is compared.
    of: Option<String>,
    /// Where in it.
    path: Vec<String>,
    /// What was compared before: the same task is of many episodes.
    seen: BTreeSet<(Digest, Digest)>,
    /// What differs, and of what all of it does.
    found: Vec<(String, Vec<String>)>,
}

impl Differences<'_> {
    fn lines(self) -> Vec<String> {
        let more = self.found.len().saturating_sub(SHOWN);
        let line = |(text, of): (String, Vec<String>)| match of.as_slice() {
            [] => text,
            [one] => format!("{one}: {text}"),
            [one, more @ ..] => format!("{one} and {} more: {text}", more.len()),
        };
        let mut lines: Vec<String> = self.found.into_iter().take(SHOWN).map(line).collect();
        if more > 0 {
            lines.push(format!("and {more} more"));
        }
        lines
    }

    fn differs(&mut self, how: &str) {
        let text = if self.path.is_empty() { how.to_owned() } else { format!("{}: {how}", self.path.join(".")) };
        let of = self.of.clone();
        match self.found.iter_mut().find(|(known, _)| *known == text) {
            Some((_, all)) => all.extend(of),
            None => self.found.push((text, of.into_iter().collect())),
        }
    }

    /// Compares with what is within a field.
    fn within(&mut self, name: &str, act: impl FnOnce(&mut Self) -> Result<(), CliError>) -> Result<(), CliError> {
        let silent = SILENT.contains(&name);
        if !silent {
            self.path.push(name.to_owned());
        }
        let done = act(self);
        if !silent {
            self.path.pop();
        }
        done
    }

    fn blobs(&mut self, before: Digest, now: Digest) -> Result<(), CliError> {
        if !self.seen.insert((before, now)) {
            return Ok(());
        }
        let before = self.reading.blob(&before)?.and_then(|bytes| record(&bytes));
        let now = self.kept.0.get(&now).and_then(|bytes| record(bytes));
        match (before, now) {
            (Some(before), Some(now)) => self.objects(&before, &now),
            _ => {
                self.differs("changed");
                Ok(())
            }
        }
    }

    fn values(&mut self, before: &Value, now: &Value) -> Result<(), CliError> {
        if before == now {
            return Ok(());
        }
        match (before, now) {
            (Value::Object(before), Value::Object(now)) => return self.objects(before, now),
            (Value::Array(before), Value::Array(now)) if has_parts(before) || has_parts(now) => {
                return self.lists(before, now);
            }
            _ => {}
        }
        match (digest(before), digest(now)) {
            (Some(before), Some(now)) => self.blobs(before, now),
            _ => {
                self.differs(&format!("{} -> {}", shown(before), shown(now)));
                Ok(())
            }
        }
    }

    fn objects(&mut self, before: &Map<String, Value>, now: &Map<String, Value>) -> Result<(), CliError> {
        if is_file(before) && is_file(now) {
            if before != now {
                self.differs("changed");
            }
            return Ok(());
        }
        let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
        for name in names.into_iter().filter(|name| *name != DERIVED) {
            let of = |fields: &Map<String, Value>| fields.get(name).cloned().unwrap_or_default();
            let (before, now) = (of(before), of(now));
            self.within(name, |inner| inner.values(&before, &now))?;
        }
        Ok(())
    }

    /// Compares what has the same name in two lists.
    fn lists(&mut self, before: &[Value], now: &[Value]) -> Result<(), CliError> {
        let (before, now) = (named(before), named(now));
        let both: Vec<&String> = before.iter().map(|(name, _)| name).filter(|name| get(&now, name).is_some()).collect();
        let gone = before.iter().filter(|(name, _)| get(&now, name).is_none()).map(|(name, _)| (name, "not any more"));
        let new = now.iter().filter(|(name, _)| get(&before, name).is_none()).map(|(name, _)| (name, "new"));
        for (name, how) in gone.chain(new) {
            self.part(name, |part| {
                part.differs(how);
                Ok(())
            })?;
        }
        for name in &both {
            if let (Some(before), Some(now)) = (get(&before, name), get(&now, name)) {
                self.part(name, |part| part.values(before, now))?;
            }
        }
        let order = now.iter().map(|(name, _)| name).filter(|name| get(&before, name).is_some());
        if !both.into_iter().eq(order) {
            self.differs("another order");
        }
        Ok(())
    }

    /// Compares a part of a list.
    fn part(&mut self, name: &str, act: impl FnOnce(&mut Self) -> Result<(), CliError>) -> Result<(), CliError> {
        if self.of.is_some() {
            self.path.push(name.to_owned());
            let done = act(self);
            self.path.pop();
            return done;
        }
        self.of = Some(name.to_owned());
        let done = act(self);
        self.of = None;
        done
    }
}

fn record(bytes: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(bytes).ok()
}

fn digest(value: &Value) -> Option<Digest> {
    value.as_str().filter(|text| text.len() == 64)?.parse().ok()
}

/// Whether a record is a file, folder or link of a tree.
fn is_file(fields: &Map<String, Value>) -> bool {
    fields.contains_key("path") && fields.contains_key("kind")
}

/// Whether a list has records in it.
fn has_parts(list: &[Value]) -> bool {
    list.iter().any(Value::is_object)
}

/// The parts of a list by their names, or by their places where they have none.
fn named(list: &[Value]) -> Vec<(String, &Value)> {
    let name = |(index, part): (usize, &Value)| {
        let text = |field: &str| part.get(field).and_then(Value::as_str);
        let number = |field: &str| part.get(field).and_then(Value::as_u64).filter(|number| *number > 0);
        match (text("name").or_else(|| text("path")).or_else(|| text("target")), text("task")) {
            (Some(name), _) => name.to_owned(),
            (None, Some(task)) => {
                let agent = number("agent").map(|agent| format!(", agent {}", agent + 1));
                let sample = number("sample").map(|sample| format!(", sample {}", sample + 1));
                format!("{task}{}{}", agent.unwrap_or_default(), sample.unwrap_or_default())
            }
            (None, None) => (index + 1).to_string(),
        }
    };
    list.iter().enumerate().map(|(index, part)| (name((index, part)), part)).collect()
}

fn get<'a>(list: &[(String, &'a Value)], name: &str) -> Option<&'a Value> {
    list.iter().find(|(known, _)| known == name).map(|(_, part)| *part)
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "(not said)".to_owned(),
        other => output::cut(&other.to_string(), VALUE_WIDTH),
    }
}

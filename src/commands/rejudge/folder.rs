//! Where a rejudgement is kept: a folder of its own, beside the store and never in it.
//!
//! ```text
//! rejudge.json    what was asked for
//! verdicts.jsonl  an episode a line
//! calls.jsonl     before each model call its reservation, after it its record
//! blobs/DIGEST    what the records name: skeletons of requests and responses, and their parts
//! ```
//!
//! Lines are written whole and synced. Whoever goes on with such a folder judges no episode twice,
//! and counts every call that is in it against the cap, one without a record whole.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use longhaul_core::call::{CallRecord, PurseKind};
use longhaul_core::digest::{Digest, DigestBuilder};
use longhaul_core::money::Money;
use longhaul_core::purse::PurseState;
use longhaul_gateway::ports::{Bank, Blob, Journal, JournalError, Later, Refused, Reservation, ReserveError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::case;
use crate::error::CliError;

/// The file that makes a folder one of a rejudgement: what was asked for.
pub(super) const HEAD: &str = "rejudge.json";

/// The file with what came of episodes.
pub(super) const VERDICTS: &str = "verdicts.jsonl";

/// A line of `calls.jsonl`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CallLine {
    /// Before a call.
    Reserved {
        /// Which time the folder was gone on with, from 0: each numbers its calls from 0.
        part: u32,
        /// The number of the call.
        number: u32,
        /// The most that it can cost.
        bound: Money,
    },
    /// After it.
    Settled {
        /// As above.
        part: u32,
        /// The record.
        call: Box<CallRecord>,
    },
}

/// An open folder.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    part: u32,
    verdicts: Mutex<File>,
    calls: Mutex<File>,
    /// Episodes that have a verdict already.
    pub(super) done: BTreeSet<String>,
    /// What the calls that are in it come to.
    pub(super) spent: Money,
}

impl Folder {
    /// Opens a folder: a new one, an empty one, or one of the same question.
    ///
    /// # Errors
    ///
    /// It holds something else, or cannot be written.
    pub(super) fn open(path: &Path, question: &Value) -> Result<Self, CliError> {
        let file = |doing| move |source| CliError::File { path: path.to_owned(), doing, source };
        fs::create_dir_all(path.join("blobs")).map_err(file("made"))?;
        let head = path.join(HEAD);
        match fs::read_to_string(&head) {
            Ok(text) if serde_json::from_str::<Value>(&text).ok().as_ref() == Some(question) => {}
            Ok(_) => {
                return Err(CliError::Usage(format!(
                    "{} holds what another judge or checklist said: name another folder",
                    path.display()
                )));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let others = fs::read_dir(path).map_err(file("read"))?.flatten();
                if others.into_iter().any(|entry| entry.file_name() != "blobs") {
                    return Err(CliError::Usage(format!("{} is not empty: name another folder", path.display())));
                }
                // Whole or not at all: half of it would be another question.
                let beside = path.join("blobs").join("rejudge.new");
                fs::write(&beside, format!("{question:#}\n")).map_err(file("written"))?;
                fs::rename(&beside, &head).map_err(file("written"))?;
            }
            Err(error) => return Err(file("read")(error)),
        }
        let append = |name: &str| {
            OpenOptions::new().create(true).read(true).append(true).open(path.join(name)).map_err(file("written"))
        };
        let (mut verdicts, mut calls) = (append(VERDICTS)?, append("calls.jsonl")?);
        // Two at once would number their calls alike, and each spend what is left.
        calls.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                CliError::Usage(format!("another process judges into {}: wait for its end", path.display()))
            }
            TryLockError::Error(source) => file("locked")(source),
        })?;
        let (part, spent) = spent(&lines(&mut calls, &path.join("calls.jsonl"))?);
        let judged: Vec<Value> = lines(&mut verdicts, &path.join(VERDICTS))?;
        let judged = judged.iter().filter(|line| !line["judgement"].is_null() || !line["rounds"].is_null());
        let done = judged.filter_map(|line| Some(line["episode"].as_str()?.to_owned())).collect();
        let (verdicts, calls) = (Mutex::new(verdicts), Mutex::new(calls));
        Ok(Self { path: path.to_owned(), part, verdicts, calls, done, spent })
    }

    /// Keeps what came of an episode.
    pub(super) fn keep(&self, line: &Value) -> Result<(), CliError> {
        append(&self.verdicts, line).map_err(|source| CliError::File {
            path: self.path.join(VERDICTS),
            doing: "written",
            source,
        })
    }

    fn blobs(&self, blobs: &[Blob]) -> std::io::Result<()> {
        for blob in blobs {
            let place = self.path.join("blobs").join(blob.digest.to_string());
            if !place.exists() {
                let beside = place.with_extension("new");
                fs::write(&beside, &blob.bytes)?;
                fs::rename(&beside, &place)?;
            }
        }
        Ok(())
    }

    fn call(&self, line: &CallLine, blobs: &[Blob]) -> Result<(), JournalError> {
        self.blobs(blobs)
            .and_then(|()| append(&self.calls, line))
            .map_err(|error| JournalError { message: format!("{}: {error}", self.path.display()), disk: true })
    }
}

/// A line, whole and on the disk, or nothing of it: the next one would be part of it.
fn append(file: &Mutex<File>, line: &impl Serialize) -> std::io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
    let before = file.metadata()?.len();
    if let Err(error) = file.write_all(&text).and_then(|()| file.sync_data()) {
        file.set_len(before)?;
        return Err(error);
    }
    Ok(())
}

/// The lines of a file. A last one that is cut off was never promised, and goes: what is written
/// next would be part of it.
fn lines<T: for<'de> Deserialize<'de>>(from: &mut File, path: &Path) -> Result<Vec<T>, CliError> {
    let file = |doing| move |source| CliError::File { path: path.to_owned(), doing, source };
    // Bytes: the cut may be inside of a character.
    let mut text = Vec::new();
    from.read_to_end(&mut text).map_err(file("read"))?;
    let whole = whole(&text).len();
    if whole < text.len() {
        from.set_len(whole as u64).map_err(file("written"))?;
    }
    parsed(&text, path)
}

/// The lines of a text that are whole: a last one that is cut off is being written, or was never
/// promised.
fn whole(text: &[u8]) -> &[u8] {
    &text[..text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)]
}

/// What the whole lines of a file say.
pub(super) fn parsed<T: for<'de> Deserialize<'de>>(text: &[u8], path: &Path) -> Result<Vec<T>, CliError> {
    whole(text)
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(serde_json::from_slice)
        .collect::<Result<_, _>>()
        .map_err(|source| CliError::Record { what: path.display().to_string(), source })
}

/// The number of the next part, and what all calls come to: those without a record whole, since
/// the vendor may have billed them.
fn spent(lines: &[CallLine]) -> (u32, Money) {
    let mut amounts: BTreeMap<(u32, u32), Money> = BTreeMap::new();
    for line in lines {
        match line {
            CallLine::Reserved { part, number, bound } => amounts.insert((*part, *number), *bound),
            CallLine::Settled { part, call } => amounts.insert((*part, call.number), call.settled),
        };
    }
    let part = amounts.keys().next_back().map_or(0, |(part, _)| part + 1);
    (part, amounts.values().copied().sum())
}

impl Journal for Folder {
    fn reserved(&self, reservation: &Reservation, blobs: Vec<Blob>) -> Result<(), ReserveError> {
        let Reservation { number, bound, .. } = *reservation;
        Ok(self.call(&CallLine::Reserved { part: self.part, number, bound }, &blobs)?)
    }

    fn settled(&self, record: &CallRecord, blobs: Vec<Blob>) -> Result<(), JournalError> {
        self.call(&CallLine::Settled { part: self.part, call: Box::new(record.clone()) }, &blobs)
    }
}

/// Money up to a cap.
#[derive(Debug)]
pub(super) struct Capped {
    /// What may still be spent; no cap if absent.
    pub(super) left: Option<Money>,
}

impl Bank for Capped {
    fn more(&self, _: PurseKind, state: PurseState, wanted: Money, bound: Money) -> Later<'_, Result<Money, Refused>> {
        let Some(left) = self.left else { return Box::pin(std::future::ready(Ok(wanted))) };
        if state.settled.saturating_add(bound) > left {
            let scope = format!("{} of {left} are spent, and the next call may cost {bound}", state.settled);
            return Box::pin(std::future::ready(Err(Refused { scope })));
        }
        let grant = wanted.min(left.saturating_add(state.returned));
        if grant > state.granted {
            return Box::pin(std::future::ready(Ok(grant)));
        }
        // Calls in flight have it: whoever asks looks again when one of them is settled.
        Box::pin(std::future::pending())
    }

    fn report(&self, _: PurseKind, _: PurseState) {}

    fn recalled(&self, _: PurseKind) -> Later<'_, ()> {
        Box::pin(std::future::pending())
    }
}

/// The digest of a file's words, for what was asked.
pub(super) fn digest_of(path: &Path) -> Result<Digest, CliError> {
    Ok(Digest::of(&case::file(path)?))
}

/// The digest of the checklists in a folder with ENV/TASK.json: their names and words.
pub(super) fn digest_of_folder(folder: &Path) -> Result<Digest, CliError> {
    let mut files = BTreeSet::new();
    for env in entries(folder)?.into_iter().filter(|env| env.is_dir()) {
        let json = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "json") && file.is_file();
        files.extend(entries(&env)?.into_iter().filter(json));
    }
    let mut digest = DigestBuilder::new("longhaul-checklists-1");
    for file in files {
        let name = file.strip_prefix(folder).unwrap_or(&file).as_os_str().as_encoded_bytes();
        digest = digest.field("name", name).field("words", digest_of(&file)?.as_bytes());
    }
    Ok(digest.finish())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, CliError> {
    let found = fs::read_dir(folder).and_then(|found| found.map(|entry| entry.map(|entry| entry.path())).collect());
    found.map_err(|source| CliError::File { path: folder.to_owned(), doing: "read", source })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_folder_is_gone_on_with_and_every_call_in_it_counts() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("out");
        let question = json!({"run": "a", "judge": "m"});
        let folder = Folder::open(&path, &question).unwrap();
        assert_eq!((folder.part, folder.spent), (0, Money::ZERO));
        folder.keep(&json!({"episode": "a/0", "judgement": {"score": 1}})).unwrap();
        folder.keep(&json!({"episode": "a/1", "judgement": null, "error": "silence"})).unwrap();
        folder.keep(&json!({"episode": "a/2", "judgement": null, "rounds": [{"number": 1}]})).unwrap();
        let reserve = |folder: &Folder, number, bound| {
            let line = CallLine::Reserved { part: folder.part, number, bound: Money::from_nanos(bound) };
            folder.call(&line, &[]).unwrap();
        };
        reserve(&folder, 0, 50);
        drop(folder);
        // Killed in the middle of a line, and of a character.
        let mut calls = fs::read(path.join("calls.jsonl")).unwrap();
        calls.extend(b"{\"reserved\": {\"\xc3");
        fs::write(path.join("calls.jsonl"), &calls).unwrap();
        let again = Folder::open(&path, &question).unwrap();
        assert_eq!((again.part, again.spent), (1, Money::from_nanos(50)));
        assert_eq!(again.done.iter().map(String::as_str).collect::<Vec<_>>(), ["a/0", "a/2"]);
        let busy = Folder::open(&path, &question).unwrap_err();
        assert!(busy.to_string().contains("another process"), "{busy}");
        // What is kept now is a line of its own.
        reserve(&again, 0, 7);
        drop(again);
        let third = Folder::open(&path, &question).unwrap();
        assert_eq!((third.part, third.spent), (2, Money::from_nanos(57)));
        drop(third);
        for other in [json!({"run": "b"}), json!({"run": "a", "judge": "n"})] {
            assert!(Folder::open(&path, &other).is_err(), "another question: {other}");
        }
        fs::write(root.path().join("file"), "").unwrap();
        assert!(Folder::open(root.path(), &question).is_err(), "a folder of somebody else's");
    }

    #[test]
    fn edited_checklists_of_a_folder_are_others() {
        let root = tempfile::tempdir().unwrap();
        let put = |name: &str, words: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, words).unwrap();
            digest_of_folder(root.path()).unwrap()
        };
        let first = put("calc/add.json", "[1]");
        assert_eq!(put("notes.txt", "no checklist"), first);
        let edited = put("calc/add.json", "[2]");
        assert_ne!(edited, first);
        assert_ne!(put("calc/subtract.json", "[1]"), edited);
        assert!(digest_of_folder(&root.path().join("nothing")).is_err());
    }

    #[tokio::test]
    async fn no_more_than_the_cap_is_given() {
        let bank = Capped { left: Some(Money::from_nanos(100)) };
        let state = |granted, settled| PurseState {
            granted: Money::from_nanos(granted),
            settled: Money::from_nanos(settled),
            ..PurseState::default()
        };
        let more = |state, wanted, bound| {
            bank.more(PurseKind::Judge, state, Money::from_nanos(wanted), Money::from_nanos(bound))
        };
        assert_eq!(more(state(0, 0), 60, 60).await, Ok(Money::from_nanos(60)));
        assert_eq!(more(state(60, 60), 150, 40).await, Ok(Money::from_nanos(100)));
        assert!(more(state(100, 70), 171, 31).await.is_err());
    }
}

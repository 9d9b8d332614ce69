//! Files of addresses: where the servers of a model are now, as jobs that come and go write it down.
//!
//! A file is read again every few seconds while a run may need it, and what it names is handed to
//! every worker. **A key goes nowhere that its owner did not name**: who can write the file decides
//! where keys are sent, so that one that others may write, or that is somebody else's, is not taken
//! for an endpoint with a key. What cannot be read changes nothing, and is said.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use longhaul_core::endpoint::GatewayPlan;
use longhaul_core::ids::RunId;
use longhaul_core::replicas::{FileReplicas, ReplicaList};
use longhaul_core::text::chain;
use longhaul_proto::v1;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::message::Message;

/// How often files are looked at.
const LOOK: Duration = Duration::from_secs(2);

/// A change is read twice, so long apart: whoever writes may be in the middle of a line.
const TWICE: Duration = Duration::from_millis(100);

/// The most bytes of a file.
const MOST: u64 = 1 << 20;

/// About so many bytes of addresses go in one message, or one file's.
const MESSAGE: usize = 1 << 20;

/// The bits of a file's mode that let its group, and all others, write it.
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;

/// The bit of a folder's mode that leaves each file there to its owner, whoever may write the folder.
const STICKY: u32 = 0o1000;

/// Why a file of addresses is not taken.
#[derive(Debug, thiserror::Error)]
pub enum ReplicasError {
    /// It cannot be read.
    #[error("{file} cannot be read")]
    Unreadable {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is a folder, or a pipe.
    #[error("{file} is no file")]
    NoFile {
        /// What is none.
        file: String,
    },
    /// It is larger than any such file.
    #[error("{file} is larger than {MOST} bytes")]
    TooLarge {
        /// The file.
        file: String,
    },
    /// Others can write it, and so say where calls and keys go.
    #[error("{file} can be written by {whom}, who could send calls elsewhere: `chmod {change} {file}`")]
    Writable {
        /// The file.
        file: String,
        /// By whom.
        whom: &'static str,
        /// What keeps them from it.
        change: &'static str,
    },
    /// Somebody else's file would say where a key is sent.
    #[error("{file} belongs to user {owner}, and would say where a key of yours is sent: copy it to a file of yours")]
    Foreign {
        /// The file.
        file: String,
        /// Whose it is.
        owner: u32,
    },
    /// Somebody else could put another file of its owner's in its place.
    #[error("{folder} belongs to user {owner}, who could put another file there: name a file in a folder of yours")]
    ForeignFolder {
        /// A folder above the file.
        folder: String,
        /// Whose it is.
        owner: u32,
    },
    /// It is a link, and would say where a key is sent.
    #[error("{file} is a link: name the file itself, since it says where a key of yours is sent")]
    Link {
        /// The link.
        file: String,
    },
    /// It was written just then.
    #[error("{file} is being written")]
    Changing {
        /// The file.
        file: String,
    },
}

/// Reads a file of addresses, which has to be its reader's own where it says where a key is sent.
/// It may take as long as the filesystem takes.
///
/// # Errors
///
/// Why it is not taken.
pub fn read(file: &str, keyed: bool) -> Result<ReplicaList, ReplicasError> {
    let text = read_once(file, keyed)?;
    std::thread::sleep(TWICE);
    if read_once(file, keyed)? != text {
        return Err(ReplicasError::Changing { file: file.to_owned() });
    }
    Ok(ReplicaList::read(&text))
}

fn read_once(file: &str, keyed: bool) -> Result<String, ReplicasError> {
    let unreadable = |source| ReplicasError::Unreadable { file: file.to_owned(), source };
    let own = [0, nix::unistd::geteuid().as_raw()];
    // A pipe that nobody writes would be waited for.
    let mut flags = nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC;
    if keyed {
        check_folders(file, own)?;
        flags |= nix::libc::O_NOFOLLOW;
    }
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(Path::new(file));
    let opened = opened.map_err(|source| match source.raw_os_error() {
        Some(nix::libc::ELOOP) if keyed => ReplicasError::Link { file: file.to_owned() },
        _ => unreadable(source),
    })?;
    let found = opened.metadata().map_err(unreadable)?;
    if !found.is_file() {
        return Err(ReplicasError::NoFile { file: file.to_owned() });
    }
    let matters = if keyed { OTHERS_WRITE | GROUP_WRITES } else { OTHERS_WRITE };
    check_writers(file, found.mode() & matters)?;
    if keyed && !own.contains(&found.uid()) {
        return Err(ReplicasError::Foreign { file: file.to_owned(), owner: found.uid() });
    }
    let mut bytes = Vec::new();
    opened.take(MOST + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MOST {
        return Err(ReplicasError::TooLarge { file: file.to_owned() });
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether nobody but its owner may write what has these bits of a mode.
fn check_writers(path: &str, mode: u32) -> Result<(), ReplicasError> {
    let writers = [(OTHERS_WRITE, "everybody", "o-w"), (GROUP_WRITES, "its group", "g-w")];
    match writers.into_iter().find(|(bit, ..)| mode & bit != 0) {
        Some((_, whom, change)) => Err(ReplicasError::Writable { file: path.to_owned(), whom, change }),
        None => Ok(()),
    }
}

/// Whether nobody but these could put another file in the place of one: what says where a key is sent would be
/// that one, and it may be its owner's own, too.
fn check_folders(file: &str, own: [u32; 2]) -> Result<(), ReplicasError> {
    for folder in Path::new(file).ancestors().skip(1) {
        let shown = folder.display().to_string();
        let unreadable = |source| ReplicasError::Unreadable { file: shown.clone(), source };
        let found = fs::metadata(folder).map_err(unreadable)?;
        let named = fs::symlink_metadata(folder).map_err(unreadable)?;
        if let Some(owner) = [found.uid(), named.uid()].into_iter().find(|owner| !own.contains(owner)) {
            return Err(ReplicasError::ForeignFolder { folder: shown, owner });
        }
        if found.mode() & STICKY == 0 {
            check_writers(&shown, found.mode())?;
        }
    }
    Ok(())
}

/// What is known of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// What it named when it was last taken.
    pub(crate) urls: Vec<String>,
    /// Whether it was then taken as one that says where a key is sent. One that was needed without a key
    /// may have been anybody's, and what it named then is no place for the key of a later run.
    pub(crate) keyed: bool,
    /// What is wrong with it now, if anything is.
    pub(crate) problem: Option<String>,
}

impl Known {
    /// After another look: what cannot be read changes no address.
    fn looked(&self, found: Result<ReplicaList, ReplicasError>, keyed: bool) -> Self {
        match found {
            Ok(list) => {
                let left_out = list.left_out.first().map(|(line, error)| {
                    let more = list.left_out.len() - 1;
                    let more = if more == 0 { String::new() } else { format!(", and {more} more lines") };
                    format!("line {line} is left out: {error}{more}")
                });
                Self { urls: list.urls, keyed, problem: left_out }
            }
            // It is read again soon, and is no matter.
            Err(ReplicasError::Changing { .. }) => self.clone(),
            Err(error) => Self { problem: Some(chain(&error)), ..self.clone() },
        }
    }
}

/// What files name, as a worker is told: in as many messages as it takes, since a message has a
/// largest size that one file keeps well below.
pub(crate) fn messages(files: &BTreeMap<String, Known>) -> Vec<v1::ReplicaFiles> {
    let mut messages: Vec<v1::ReplicaFiles> = Vec::new();
    let mut room = 0;
    for (path, known) in files {
        let size = path.len() + known.urls.iter().map(|url| url.len() + 8).sum::<usize>();
        let file = v1::ReplicaFile { path: path.clone(), urls: known.urls.clone(), keyed: known.keyed };
        match messages.last_mut() {
            Some(message) if size <= room => {
                message.files.push(file);
                room -= size;
            }
            last => {
                if let Some(message) = last {
                    message.more = true;
                }
                messages.push(v1::ReplicaFiles { files: vec![file], more: false });
                room = MESSAGE.saturating_sub(size);
            }
        }
    }
    if messages.is_empty() {
        messages.push(v1::ReplicaFiles::default());
    }
    messages
}

/// The files that open runs name, and whether a key goes where they say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files(Arc<Needed>);

#[derive(Debug, Default)]
struct Needed {
    runs: RwLock<BTreeMap<RunId, BTreeMap<String, bool>>>,
    more: Notify,
}

impl Files {
    /// A run may call these endpoints.
    pub(crate) fn learn(&self, run: RunId, plan: &GatewayPlan) {
        let files = files_of(plan);
        if !files.is_empty() {
            self.0.runs.write().unwrap_or_else(PoisonError::into_inner).insert(run, files);
            self.0.more.notify_one();
        }
    }

    /// Runs that are over need nothing any more.
    pub(crate) fn forget(&self, is_open: impl Fn(RunId) -> bool) {
        self.0.runs.write().unwrap_or_else(PoisonError::into_inner).retain(|run, _| is_open(*run));
    }

    /// Each file, and whether a key goes where it says.
    fn needed(&self) -> BTreeMap<String, bool> {
        let runs = self.0.runs.read().unwrap_or_else(PoisonError::into_inner);
        let mut needed = BTreeMap::new();
        for (file, keyed) in runs.values().flatten() {
            *needed.entry(file.clone()).or_default() |= keyed;
        }
        needed
    }

    /// Looks at the files for as long as the coordinator runs, and tells the actor what changed.
    pub(crate) async fn watch(self, mailbox: mpsc::Sender<Message>, stop: CancellationToken) {
        let mut known = BTreeMap::new();
        loop {
            let needed = self.needed();
            let none = needed.is_empty();
            let changed = tokio::select! {
                () = stop.cancelled() => return,
                changed = look_again(&mut known, needed) => changed,
            };
            if changed && mailbox.send(Message::Replicas(known.clone())).await.is_err() {
                return;
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.0.more.notified() => {}
                // Where no run names a file, there is nothing to look at until one does.
                () = tokio::time::sleep(LOOK), if !none => {}
            }
        }
    }
}

/// Looks at the files of these endpoints for as long as it is polled, where there is no coordinator to
/// do so, and tells what they name whenever that changes.
pub async fn follow(plan: &GatewayPlan, told: impl Fn(BTreeMap<String, FileReplicas>)) {
    let needed = files_of(plan);
    let mut known = BTreeMap::new();
    while !needed.is_empty() {
        if look_again(&mut known, needed.clone()).await {
            let leads = |known: &Known| FileReplicas { urls: known.urls.clone(), keyed: known.keyed };
            told(known.iter().map(|(file, known)| (file.clone(), leads(known))).collect());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The files that endpoints name, and whether a key goes where they say.
fn files_of(plan: &GatewayPlan) -> BTreeMap<String, bool> {
    let mut files = BTreeMap::new();
    for endpoint in &plan.endpoints {
        if let Some(file) = &endpoint.replicas_file {
            *files.entry(file.clone()).or_default() |= endpoint.secret.is_some();
        }
    }
    files
}

/// Whether another look has changed what is known.
async fn look_again(known: &mut BTreeMap<String, Known>, needed: BTreeMap<String, bool>) -> bool {
    let before = known.clone();
    // A filesystem that hangs holds up nobody else.
    match tokio::task::spawn_blocking(move || look(&before, &needed)).await {
        Ok(found) if found != *known => {
            say(known, &found);
            *known = found;
            true
        }
        _ => false,
    }
}

/// What each file says now.
fn look(before: &BTreeMap<String, Known>, needed: &BTreeMap<String, bool>) -> BTreeMap<String, Known> {
    let look = |(file, keyed): (&String, &bool)| {
        let known = before.get(file).cloned().unwrap_or_default();
        (file.clone(), known.looked(read(file, *keyed), *keyed))
    };
    needed.iter().map(look).collect()
}

fn say(before: &BTreeMap<String, Known>, now: &BTreeMap<String, Known>) {
    for (file, known) in now {
        let old = before.get(file);
        if old.is_none_or(|old| old.urls != known.urls) {
            tracing::info!(file, urls = ?known.urls, "the addresses of a model's servers");
        }
        if let Some(problem) = known.problem.as_ref().filter(|_| old.is_none_or(|old| old.problem != known.problem)) {
            tracing::warn!(file, problem, "a file of addresses");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_that_others_may_write_says_nowhere_to_send_a_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("addresses");
        fs::write(&path, "http://node7:8000\n").unwrap();
        let file = path.to_str().unwrap();
        let with = |mode: u32, keyed: bool| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            read(file, keyed).map(|list| list.urls)
        };
        assert_eq!(with(0o644, true).unwrap(), ["http://node7:8000"]);
        assert!(matches!(with(0o664, true), Err(ReplicasError::Writable { whom: "its group", .. })));
        assert_eq!(with(0o664, false).unwrap(), ["http://node7:8000"], "nothing secret goes there");
        for keyed in [true, false] {
            assert!(matches!(with(0o646, keyed), Err(ReplicasError::Writable { whom: "everybody", .. })));
        }
        assert!(matches!(read(folder.path().to_str().unwrap(), false), Err(ReplicasError::NoFile { .. })));
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(matches!(read(pipe.to_str().unwrap(), false), Err(ReplicasError::NoFile { .. })));
    }

    #[test]
    fn where_others_can_put_another_file_in_its_place_none_says_where_to_send_a_key() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("vllm");
        fs::create_dir(&below).unwrap();
        let path = below.join("addresses");
        fs::write(&path, "http://node7:8000\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let file = path.to_str().unwrap();
        let with = |mode: u32, keyed: bool| {
            fs::set_permissions(&below, fs::Permissions::from_mode(mode)).unwrap();
            read(file, keyed).map(|list| list.urls)
        };
        assert_eq!(with(0o755, true).unwrap(), ["http://node7:8000"]);
        assert!(matches!(with(0o775, true), Err(ReplicasError::Writable { whom: "its group", .. })));
        assert!(matches!(with(0o757, true), Err(ReplicasError::Writable { whom: "everybody", .. })));
        assert_eq!(with(0o1777, true).unwrap(), ["http://node7:8000"], "as /tmp: a file is its owner's alone");
        assert_eq!(with(0o775, false).unwrap(), ["http://node7:8000"], "nothing secret goes there");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        with(0o755, true).unwrap();
        assert!(matches!(read(link.to_str().unwrap(), true), Err(ReplicasError::Link { .. })));
        assert_eq!(read(link.to_str().unwrap(), false).unwrap().urls, ["http://node7:8000"]);
    }

    #[test]
    fn what_anybody_could_write_is_no_place_for_the_key_of_a_later_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("addresses");
        fs::write(&path, "http://elsewhere:8000\n").unwrap();
        let mode = |mode: u32| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o664);
        let file = path.to_str().unwrap().to_owned();
        let needed = |keyed: bool| BTreeMap::from([(file.clone(), keyed)]);
        let first = look(&BTreeMap::new(), &needed(false));
        assert_eq!((first[&file].urls.len(), first[&file].keyed), (1, false));
        let second = look(&first, &needed(true));
        assert_eq!((&second[&file].urls, second[&file].keyed), (&first[&file].urls, false), "as before: without a key");
        assert!(second[&file].problem.as_ref().unwrap().contains("chmod g-w"), "{second:?}");
        mode(0o644);
        let third = look(&second, &needed(true));
        assert!(third[&file].keyed && third[&file].problem.is_none(), "{third:?}");
        mode(0o664);
        let fourth = look(&third, &needed(true));
        assert!(fourth[&file].keyed && fourth[&file].problem.is_some(), "what it named while it was safe");
    }

    #[test]
    fn what_several_large_files_name_is_told_in_messages_of_a_bounded_size() {
        use prost::Message as _;

        let large =
            Known { urls: (0..60_000).map(|port| format!("http://node{port:05}")).collect(), ..Known::default() };
        let small = Known { urls: vec!["http://a".to_owned()], keyed: true, problem: None };
        let mut files: BTreeMap<String, Known> = (0..5).map(|number| (format!("/{number}"), large.clone())).collect();
        files.extend(["/x", "/y"].map(|path| (path.to_owned(), small.clone())));
        let told = messages(&files);
        assert!(told.len() > 1 && told.iter().all(|message| message.encoded_len() < 3 << 20), "{}", told.len());
        let more: Vec<bool> = told.iter().rev().map(|message| message.more).collect();
        assert!(!more[0] && more[1..].iter().all(|more| *more), "all but the last say that more follows");
        let all = told.into_iter().flat_map(|message| message.files);
        let all: BTreeMap<String, Known> =
            all.map(|file| (file.path, Known { urls: file.urls, keyed: file.keyed, problem: None })).collect();
        assert_eq!(all, files);
        assert_eq!(messages(&BTreeMap::new()), [v1::ReplicaFiles::default()], "that there is none is told too");
    }

    #[test]
    fn what_cannot_be_read_changes_no_address_and_an_empty_file_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("addresses");
        let file = path.to_str().unwrap().to_owned();
        let needed: BTreeMap<String, bool> = [(file.clone(), false)].into();
        let first = look(&BTreeMap::new(), &needed);
        assert!(first[&file].urls.is_empty());
        assert!(first[&file].problem.as_ref().unwrap().contains("cannot be read"), "{first:?}");
        fs::write(&path, "http://node7:8000\nnode8\nnode9\n").unwrap();
        let second = look(&first, &needed);
        assert_eq!(second[&file].urls, ["http://node7:8000"]);
        let problem = second[&file].problem.clone().unwrap();
        assert!(problem.starts_with("line 2 is left out") && problem.ends_with("and 1 more lines"), "{problem}");
        fs::remove_file(&path).unwrap();
        let third = look(&second, &needed);
        assert_eq!(third[&file].urls, ["http://node7:8000"], "a file that is away for a moment");
        fs::write(&path, "").unwrap();
        assert_eq!(look(&third, &needed)[&file], Known::default());
        assert!(look(&third, &BTreeMap::new()).is_empty(), "nobody needs it any more");
    }
}

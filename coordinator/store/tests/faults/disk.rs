//! A disk that can lose its power, fill up and fail: a filesystem in memory, mounted with FUSE.
//!
//! It is as strict as it may be: what was written to a file is on the disk once that file is synced,
//! and that a name is in a folder, once that folder is. [`Disk::after_power_loss`] is what is left.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

/// Names and attributes change through the kernel alone, which may remember them.
const TTL: Duration = Duration::from_secs(60);

const BLOCK: u32 = 4096;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A write fails with this number.
    Write(i32),
    /// A sync of a file fails with this number; what was written may be there or not.
    Sync(i32),
    /// A write takes less than it was given.
    Short,
    /// A sync takes so long.
    Slow(Duration),
    /// A read fails with this number.
    Read(i32),
}

/// A fault that happens to some of what it may happen to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) fault: Fault,
    /// So many of them are let through before.
    pub(crate) after: u32,
    /// So many of them are hit then.
    pub(crate) times: u32,
}

#[derive(Debug)]
enum Content {
    File {
        live: Vec<u8>,
        durable: Vec<u8>,
        /// From here on both may differ.
        dirty: usize,
    },
    Folder {
        live: BTreeMap<OsString, u64>,
        durable: BTreeMap<OsString, u64>,
    },
}

#[derive(Debug)]
struct Node {
    content: Content,
    mode: u16,
    changed: SystemTime,
}

#[derive(Debug, Default)]
struct State {
    nodes: HashMap<u64, Node>,
    last: u64,
    rule: Option<Rule>,
    hit: u32,
    /// What fits; everything if absent.
    capacity: Option<u64>,
    /// Says that it has synced, and has not.
    lies: bool,
}

/// The disk; it is taken away when this is dropped.
pub(crate) struct Disk {
    state: Shared,
    place: PathBuf,
    session: Option<BackgroundSession>,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<State>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk {
    /// An empty disk, to be seen in the folder `place`.
    pub(crate) fn new(place: &Path) -> Self {
        let state = Shared::default();
        let root = Content::Folder { live: BTreeMap::new(), durable: BTreeMap::new() };
        state.lock().nodes.insert(1, Node { content: root, mode: 0o755, changed: SystemTime::now() });
        state.lock().last = 1;
        std::fs::create_dir_all(place).unwrap();
        let session = fuser::spawn_mount(state.clone(), place, &Config::default()).unwrap();
        Self { state, place: place.to_owned(), session: Some(session) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.place
    }

    /// From now on this goes wrong, and nothing else.
    pub(crate) fn fails(&self, rule: Option<Rule>) {
        let mut state = self.state.lock();
        state.rule = rule;
        state.hit = 0;
    }

    /// How often it went wrong.
    pub(crate) fn hit(&self) -> u32 {
        self.state.lock().hit
    }

    /// From now on so much fits.
    pub(crate) fn holds(&self, capacity: Option<u64>) {
        self.state.lock().capacity = capacity;
    }

    /// From now on it says that it has synced, and has not.
    pub(crate) fn lies(&self) {
        self.state.lock().lies = true;
    }

    /// Writes what would be there after a power loss at this moment into the folder `to`. `seen` is
    /// called at that moment. Of what was not synced nothing is left if `luck` is 0; else a part of
    /// what was added to files, as it may have reached the disk by then.
    pub(crate) fn after_power_loss<T>(&self, to: &Path, luck: u64, seen: impl FnOnce() -> T) -> T {
        let state = self.state.lock();
        let seen = seen();
        let mut luck = luck;
        state.write_down(1, to, &mut luck);
        seen
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let _ = session.umount_and_join();
        }
    }
}

impl State {
    fn write_down(&self, node: u64, to: &Path, luck: &mut u64) {
        match self.nodes.get(&node).map(|node| &node.content) {
            Some(Content::Folder { durable, .. }) => {
                std::fs::create_dir_all(to).unwrap();
                for (name, inner) in durable {
                    self.write_down(*inner, &to.join(name), luck);
                }
            }
            Some(Content::File { live, durable, dirty }) => {
                let mut bytes = durable.clone();
                let added = live.len().saturating_sub(durable.len());
                if *luck > 0 && added > 0 && *dirty >= durable.len() {
                    *luck = luck.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407) | 1;
                    let part = (*luck >> 33) as usize % (added + 1);
                    bytes.extend_from_slice(&live[durable.len()..durable.len() + part]);
                }
                std::fs::write(to, bytes).unwrap();
            }
            None => {}
        }
    }

    /// Whether the fault that is asked for happens now.
    fn strikes(&mut self, of: impl Fn(Fault) -> bool) -> Option<Fault> {
        let rule = self.rule.as_mut().filter(|rule| of(rule.fault))?;
        if rule.after > 0 {
            rule.after -= 1;
            return None;
        }
        if rule.times == 0 {
            return None;
        }
        rule.times -= 1;
        self.hit += 1;
        Some(rule.fault)
    }

    fn used(&self) -> u64 {
        let len = |node: &Node| match &node.content {
            Content::File { live, .. } => live.len() as u64,
            Content::Folder { .. } => 0,
        };
        self.nodes.values().map(len).sum()
    }

    fn attr(&self, number: u64) -> Option<FileAttr> {
        let node = self.nodes.get(&number)?;
        let (kind, size) = match &node.content {
            Content::File { live, .. } => (FileType::RegularFile, live.len() as u64),
            Content::Folder { .. } => (FileType::Directory, 0),
        };
        Some(FileAttr {
            ino: INodeNo(number),
            size,
            blocks: size.div_ceil(512),
            atime: node.changed,
            mtime: node.changed,
            ctime: node.changed,
            crtime: node.changed,
            kind,
            perm: node.mode,
            nlink: 1,
            uid: nix::unistd::getuid().as_raw(),
            gid: nix::unistd::getgid().as_raw(),
            rdev: 0,
            blksize: BLOCK,
            flags: 0,
        })
    }

    fn names(&mut self, folder: u64) -> Result<&mut BTreeMap<OsString, u64>, Errno> {
        match self.nodes.get_mut(&folder).map(|node| &mut node.content) {
            Some(Content::Folder { live, .. }) => Ok(live),
            Some(Content::File { .. }) => Err(Errno::ENOTDIR),
            None => Err(Errno::ENOENT),
        }
    }

    fn add(&mut self, folder: u64, name: &OsStr, content: Content, mode: u32) -> Result<FileAttr, Errno> {
        let number = self.last + 1;
        let names = self.names(folder)?;
        if names.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        names.insert(name.to_owned(), number);
        self.last = number;
        let mode = (mode & 0o7777) as u16;
        self.nodes.insert(number, Node { content, mode, changed: SystemTime::now() });
        self.attr(number).ok_or(Errno::ENOENT)
    }

    fn remove(&mut self, folder: u64, name: &OsStr) -> Result<(), Errno> {
        // The node stays: the folder on the disk may still name it, and a process have it open.
        self.names(folder)?.remove(name).map(drop).ok_or(Errno::ENOENT)
    }

    fn resize(&mut self, number: u64, size: usize) {
        if let Some(Node { content: Content::File { live, dirty, .. }, changed, .. }) = self.nodes.get_mut(&number) {
            *dirty = (*dirty).min(size).min(live.len());
            live.resize(size, 0);
            *changed = SystemTime::now();
        }
    }

    fn write(&mut self, number: u64, offset: usize, data: &[u8]) -> Result<usize, Errno> {
        let data = match self.strikes(|fault| matches!(fault, Fault::Write(_) | Fault::Short)) {
            Some(Fault::Write(errno)) => return Err(Errno::from_i32(errno)),
            Some(_) => &data[..data.len().div_ceil(2)],
            None => data,
        };
        let used = self.used();
        let capacity = self.capacity;
        let Some(Node { content: Content::File { live, dirty, .. }, changed, .. }) = self.nodes.get_mut(&number) else {
            return Err(Errno::EBADF);
        };
        let end = offset + data.len();
        let grows = end.saturating_sub(live.len()) as u64;
        if capacity.is_some_and(|capacity| used + grows > capacity) {
            return Err(Errno::ENOSPC);
        }
        *dirty = (*dirty).min(offset).min(live.len());
        if live.len() < end {
            live.resize(end, 0);
        }
        live[offset..end].copy_from_slice(data);
        *changed = SystemTime::now();
        Ok(data.len())
    }

    fn sync(&mut self, number: u64) {
        if self.lies {
            return;
        }
        match self.nodes.get_mut(&number).map(|node| &mut node.content) {
            Some(Content::File { live, durable, dirty }) => {
                durable.truncate(*dirty);
                durable.extend_from_slice(&live[durable.len()..]);
                *dirty = live.len();
            }
            Some(Content::Folder { live, durable }) => durable.clone_from(live),
            None => {}
        }
    }
}

fn done(reply: ReplyEmpty, outcome: Result<(), Errno>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

impl Filesystem for Shared {
    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut state = self.lock();
        let number = state.names(parent.0).ok().and_then(|names| names.get(name).copied());
        match number.and_then(|number| state.attr(number)) {
            Some(attr) => reply.entry(&TTL, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.lock().attr(ino.0) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut state = self.lock();
        if let Some(size) = size {
            state.resize(ino.0, size as usize);
        }
        if let (Some(mode), Some(node)) = (mode, state.nodes.get_mut(&ino.0)) {
            node.mode = (mode & 0o7777) as u16;
        }
        match state.attr(ino.0) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn mkdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let folder = Content::Folder { live: BTreeMap::new(), durable: BTreeMap::new() };
        match self.lock().add(parent.0, name, folder, mode) {
            Ok(attr) => reply.entry(&TTL, &attr, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(reply, self.lock().remove(parent.0, name));
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(reply, self.lock().remove(parent.0, name));
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut state = self.lock();
        let moved = state.names(parent.0).and_then(|names| names.remove(name).ok_or(Errno::ENOENT));
        let outcome = moved.and_then(|number| {
            state.names(newparent.0)?.insert(newname.to_owned(), number);
            Ok(())
        });
        done(reply, outcome);
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // Every write and read comes here, and none is answered by the kernel's memory.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn create(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let file = Content::File { live: Vec::new(), durable: Vec::new(), dirty: 0 };
        match self.lock().add(parent.0, name, file, mode) {
            Ok(attr) => reply.created(&TTL, &attr, Generation(0), FileHandle(0), FopenFlags::FOPEN_DIRECT_IO),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut state = self.lock();
        if let Some(Fault::Read(errno)) = state.strikes(|fault| matches!(fault, Fault::Read(_))) {
            return reply.error(Errno::from_i32(errno));
        }
        match state.nodes.get(&ino.0).map(|node| &node.content) {
            Some(Content::File { live, .. }) => {
                let from = (offset as usize).min(live.len());
                let to = (from + size as usize).min(live.len());
                reply.data(&live[from..to]);
            }
            Some(Content::Folder { .. }) => reply.error(Errno::EISDIR),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.lock().write(ino.0, offset as usize, data) {
            Ok(written) => reply.written(written as u32),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let struck = self.lock().strikes(|fault| matches!(fault, Fault::Sync(_) | Fault::Slow(_)));
        match struck {
            Some(Fault::Sync(errno)) => return reply.error(Errno::from_i32(errno)),
            Some(Fault::Slow(time)) => std::thread::sleep(time),
            _ => {}
        }
        self.lock().sync(ino.0);
        reply.ok();
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.lock().sync(ino.0);
        reply.ok();
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut state = self.lock();
        let names: Vec<(OsString, u64)> = match state.names(ino.0) {
            Ok(names) => names.iter().map(|(name, number)| (name.clone(), *number)).collect(),
            Err(errno) => return reply.error(errno),
        };
        let dots = [(OsString::from("."), ino.0), (OsString::from(".."), ino.0)];
        for (index, (name, number)) in dots.into_iter().chain(names).enumerate().skip(offset as usize) {
            let kind = state.attr(number).map_or(FileType::RegularFile, |attr| attr.kind);
            if reply.add(INodeNo(number), index as u64 + 1, kind, &name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        // It says that there is room: what happens then is to be seen.
        let blocks = 1 << 24;
        reply.statfs(blocks, blocks, blocks, blocks, blocks, BLOCK, 255, BLOCK);
    }
}

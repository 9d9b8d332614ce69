//! Passes: for each allocation an access file of its own, with a token of its own.
//!
//! A pass lies in `access/allocations/SUBMISSION/TASK.json`, mode 0600, from before the
//! submission is made until its allocation is over and its worker is gone. The batch script names
//! the folder alone; the worker takes the file of its task. A coordinator that is started again
//! finds the passes there, and writes its new address into them.
//!
//! Whoever shows the token of a pass speaks for that allocation and for no other, and may do
//! what a worker does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use longhaul_core::digest::Digest;
use longhaul_engine::{AllocationId, Token};
use longhaul_proto::access::{Access, AccessError, Address, Secret, pass_file};

use crate::access::{AccessFolderError, new_token, private_folder, write_access};

/// The folder's name in the access folder.
pub const PASSES_FOLDER: &str = "allocations";

/// The passes of one coordinator.
#[derive(Clone, Debug)]
pub(crate) struct Passes(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    host: String,
    port: u16,
    ca_pem: String,
    /// The allocations, by the digests of their tokens.
    known: RwLock<BTreeMap<Digest, AllocationId>>,
}

impl Passes {
    /// Takes up the passes that are there, for a coordinator that others reach as `host`.
    pub(crate) fn open(folder: PathBuf, host: &str, port: u16, ca_pem: &str) -> Result<Self, AccessFolderError> {
        private_folder(&folder)?;
        let known = RwLock::default();
        let passes = Self(Arc::new(Inner { folder, host: host.to_owned(), port, ca_pem: ca_pem.to_owned(), known }));
        for token in names(&passes.0.folder)? {
            for name in names(&passes.0.folder.join(&token))? {
                let path = passes.0.folder.join(&token).join(&name);
                let Some(task) = name.strip_suffix(".json").and_then(|task| task.parse().ok()) else {
                    // Half written when its coordinator died: nothing was submitted with it.
                    remove(&path)?;
                    continue;
                };
                let id = AllocationId { token: Token(token.clone()), task };
                match Access::read(&path) {
                    Ok(Access { address: Address::Tls { token: secret, .. }, .. }) => passes.write(id, secret)?,
                    Ok(Access { address: Address::Unix { .. }, .. }) => remove(&path)?,
                    Err(AccessError::Read { path, source }) => {
                        return Err(AccessFolderError::Io { path, doing: "read", source });
                    }
                    // It lets nobody in.
                    Err(error) => {
                        tracing::warn!(%error, "an allocation's access file is removed");
                        remove(&path)?;
                    }
                }
            }
        }
        Ok(passes)
    }

    /// The folder of all of them.
    pub(crate) fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// Makes the passes of a submission; those that are there stay as they are, since a worker
    /// may have read them.
    pub(crate) fn issue(&self, token: &Token, count: u32) -> Result<(), AccessFolderError> {
        private_folder(&self.0.folder.join(&token.0))?;
        for task in 0..count {
            let id = AllocationId { token: token.clone(), task };
            let there = self.0.known.read().unwrap_or_else(PoisonError::into_inner).values().any(|known| *known == id);
            if !there {
                self.write(id, new_token()?)?;
            }
        }
        Ok(())
    }

    /// Ends the passes of a submission but for those of some tasks.
    pub(crate) fn revoke(&self, token: &Token, keep: &BTreeSet<u32>) -> Result<(), AccessFolderError> {
        let over = |id: &AllocationId| id.token == *token && !keep.contains(&id.task);
        let mut ended = Vec::new();
        // Nobody gets in any more, whatever becomes of the files.
        self.0.known.write().unwrap_or_else(PoisonError::into_inner).retain(|_, id| {
            let over = over(id);
            if over {
                ended.push(id.task);
            }
            !over
        });
        let folder = self.0.folder.join(&token.0);
        for task in ended {
            remove(&folder.join(pass_file(task)))?;
        }
        if keep.is_empty() {
            match fs::remove_dir(&folder) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(AccessFolderError::Io { path: folder, doing: "removed", source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The submissions that have passes.
    pub(crate) fn submissions(&self) -> BTreeSet<Token> {
        let known = self.0.known.read().unwrap_or_else(PoisonError::into_inner);
        known.values().map(|id| id.token.clone()).collect()
    }

    /// Whose token has this digest.
    pub(crate) fn holder(&self, shown: &Digest) -> Option<AllocationId> {
        self.0.known.read().unwrap_or_else(PoisonError::into_inner).get(shown).cloned()
    }

    fn write(&self, id: AllocationId, secret: Secret) -> Result<(), AccessFolderError> {
        let path = self.0.folder.join(&id.token.0).join(pass_file(id.task));
        let Inner { host, port, ca_pem, .. } = &*self.0;
        let digest = Digest::of(secret.expose().as_bytes());
        let address = Address::Tls { host: host.clone(), port: *port, ca_pem: ca_pem.clone(), token: secret };
        write_access(&path, &Access::new(address))?;
        self.0.known.write().unwrap_or_else(PoisonError::into_inner).insert(digest, id);
        Ok(())
    }
}

fn names(folder: &Path) -> Result<Vec<String>, AccessFolderError> {
    let error = |source| AccessFolderError::Io { path: folder.to_owned(), doing: "read", source };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(error)? {
        // What is no UTF-8 is none of ours.
        names.extend(entry.map_err(error)?.file_name().into_string());
    }
    Ok(names)
}

fn remove(path: &Path) -> Result<(), AccessFolderError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(AccessFolderError::Io { path: path.to_owned(), doing: "removed", source })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn token() -> Token {
        Token("longhaul.me.1".to_owned())
    }

    fn open(folder: &Path, port: u16) -> Passes {
        Passes::open(folder.join(PASSES_FOLDER), "login1", port, "a certificate").expect("passes")
    }

    fn shown(folder: &Path, task: u32) -> (u16, Digest) {
        let path = folder.join(PASSES_FOLDER).join(&token().0).join(pass_file(task));
        assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
        match Access::read(&path).expect("an access file").address {
            Address::Tls { port, token, .. } => (port, Digest::of(token.expose().as_bytes())),
            Address::Unix { .. } => panic!("of another machine"),
        }
    }

    #[test]
    fn each_allocation_has_a_token_of_its_own_that_outlives_the_coordinator() {
        let dir = tempfile::tempdir().expect("a folder");
        let passes = open(dir.path(), 1);
        passes.issue(&token(), 2).expect("issued");
        let (first, second) = (shown(dir.path(), 0), shown(dir.path(), 1));
        assert_ne!(first, second);
        assert_eq!(passes.holder(&first.1), Some(AllocationId { token: token(), task: 0 }));
        assert_eq!(passes.holder(&second.1), Some(AllocationId { token: token(), task: 1 }));
        passes.issue(&token(), 2).expect("issued again");
        assert_eq!(shown(dir.path(), 0), first, "its worker may have read it");
        // The next coordinator listens elsewhere, and knows the same tokens.
        let again = open(dir.path(), 2);
        assert_eq!(shown(dir.path(), 0), (2, first.1));
        assert_eq!(again.holder(&first.1), passes.holder(&first.1));
        assert_eq!(again.submissions(), BTreeSet::from([token()]));
    }

    #[test]
    fn a_pass_that_was_revoked_lets_nobody_in_and_is_gone() {
        let dir = tempfile::tempdir().expect("a folder");
        let passes = open(dir.path(), 1);
        passes.issue(&token(), 2).expect("issued");
        let (first, second) = (shown(dir.path(), 0), shown(dir.path(), 1));
        passes.revoke(&token(), &BTreeSet::from([1])).expect("revoked");
        assert_eq!((passes.holder(&first.1), passes.holder(&second.1).map(|id| id.task)), (None, Some(1)));
        let folder = dir.path().join(PASSES_FOLDER).join(&token().0);
        assert!(!folder.join("0.json").exists());
        passes.revoke(&token(), &BTreeSet::new()).expect("revoked");
        assert!(!folder.exists());
        passes.revoke(&token(), &BTreeSet::new()).expect("nothing is left to be revoked");
        assert_eq!(passes.holder(&second.1), None);
    }
}

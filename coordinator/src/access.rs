//! The coordinator's identity: its certificate, its token, and the access files that
//! clients use. Everything is mode 0600 in one folder of mode 0700 beside the store.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use longhaul_core::digest::Digest;
use longhaul_proto::access::{Access, Address, Secret, TLS_SERVER_NAME};
use rand::TryRngCore;
use tonic::transport::{Identity, ServerTlsConfig};

use crate::passes::{PASSES_FOLDER, Passes};

/// The folder's name in the store's folder.
pub const ACCESS_FOLDER: &str = "access";

/// The access file for programs of the same user on the same machine.
pub const LOCAL_ACCESS_FILE: &str = "local.json";

/// The access file for other machines.
pub const ACCESS_FILE: &str = "access.json";

const CA_FILE: &str = "ca.pem";
const CERTIFICATE_FILE: &str = "server.pem";
const KEY_FILE: &str = "server.key";
const TOKEN_FILE: &str = "token";

/// The longest path of a unix socket, its closing zero not counted.
const SOCKET_PATH_LIMIT: usize = 107;

/// Why the access folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessFolderError {
    /// A file or folder of it cannot be read or written.
    #[error("{} cannot be {doing}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried: `created`, `read`, ...
        doing: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The certificate cannot be made.
    #[error("no certificate can be made")]
    Certificate(#[source] rcgen::Error),
    /// The system gives no random bytes.
    #[error("the system gives no random bytes")]
    Random(#[source] rand::rand_core::OsError),
    /// Other users may read a file that is a secret.
    #[error("{} may be read by others (mode {mode:o}): it holds a secret", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

/// The secrets of one coordinator, made at its first start and kept from then on.
#[derive(Debug)]
pub struct AccessFolder {
    folder: PathBuf,
    ca_pem: String,
    certificate_pem: String,
    key_pem: Secret,
    token: Secret,
}

impl AccessFolder {
    /// Opens the folder in `store`, and makes what is missing in it.
    ///
    /// # Errors
    ///
    /// It cannot be read or written, or others may read its secrets.
    pub fn open(store: &Path) -> Result<Self, AccessFolderError> {
        let folder = store.join(ACCESS_FOLDER);
        private_folder(&folder)?;
        if !folder.join(KEY_FILE).exists() {
            make_certificate(&folder)?;
        }
        if !folder.join(TOKEN_FILE).exists() {
            write_private(&folder.join(TOKEN_FILE), new_token()?.expose().as_bytes())?;
        }
        Ok(Self {
            ca_pem: read_private(&folder.join(CA_FILE))?,
            certificate_pem: read_private(&folder.join(CERTIFICATE_FILE))?,
            key_pem: Secret::new(read_private(&folder.join(KEY_FILE))?),
            token: Secret::new(read_private(&folder.join(TOKEN_FILE))?.trim().to_owned()),
            folder,
        })
    }

    /// The token that remote clients must show.
    #[must_use]
    pub const fn token(&self) -> &Secret {
        &self.token
    }

    /// What the server side of TLS needs.
    #[must_use]
    pub fn server_tls(&self) -> ServerTlsConfig {
        ServerTlsConfig::new().identity(Identity::from_pem(&self.certificate_pem, self.key_pem.expose()))
    }

    /// Writes the access file for this machine.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn write_local(&self, socket: &Path) -> Result<PathBuf, AccessFolderError> {
        self.write(LOCAL_ACCESS_FILE, &Access::new(Address::Unix { path: socket.to_owned() }))
    }

    /// Writes the access file for other machines, which reach this one as `host`.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn write_remote(&self, host: &str, port: u16) -> Result<PathBuf, AccessFolderError> {
        let address =
            Address::Tls { host: host.to_owned(), port, ca_pem: self.ca_pem.clone(), token: self.token.clone() };
        self.write(ACCESS_FILE, &Access::new(address))
    }

    /// The passes of allocations whose workers reach this machine as `host`.
    ///
    /// # Errors
    ///
    /// They cannot be read or written.
    pub(crate) fn passes(&self, host: &str, port: u16) -> Result<Passes, AccessFolderError> {
        Passes::open(self.folder.join(PASSES_FOLDER), host, port, &self.ca_pem)
    }

    fn write(&self, name: &str, access: &Access) -> Result<PathBuf, AccessFolderError> {
        let path = self.folder.join(name);
        write_access(&path, access)?;
        Ok(path)
    }
}

/// A place for the coordinator's socket: in the store's folder where its path is short
/// enough, else in a private folder of the user's, named after the store.
///
/// # Errors
///
/// The folder cannot be made or is not private.
pub fn socket_path(store: &Path, runtime_dir: Option<&Path>, uid: u32) -> Result<PathBuf, AccessFolderError> {
    let beside = store.join("run");
    let candidate = beside.join("coordinator.sock");
    if candidate.as_os_str().len() <= SOCKET_PATH_LIMIT {
        private_folder(&beside)?;
        return Ok(candidate);
    }
    let folder = runtime_dir.map_or_else(|| PathBuf::from(format!("/tmp/longhaul-{uid}")), |dir| dir.join("longhaul"));
    private_folder(&folder)?;
    let owner = fs::symlink_metadata(&folder).map_err(|source| AccessFolderError::Io {
        path: folder.clone(),
        doing: "examined",
        source,
    })?;
    // In /tmp somebody else may have made a folder of this name first.
    if std::os::unix::fs::MetadataExt::uid(&owner) != uid || !owner.is_dir() {
        let source = io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user");
        return Err(AccessFolderError::Io { path: folder, doing: "used", source });
    }
    let name = Digest::of(store.as_os_str().as_encoded_bytes()).short();
    Ok(folder.join(format!("{name}.sock")))
}

/// A new authority and a certificate that it signed. The authority's key is dropped:
/// nothing else is ever signed by it, and what is not kept cannot be taken.
fn make_certificate(folder: &Path) -> Result<(), AccessFolderError> {
    let certificate = AccessFolderError::Certificate;
    let mut ca = rcgen::CertificateParams::new(Vec::new()).map_err(certificate)?;
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
    ca.distinguished_name.push(rcgen::DnType::CommonName, "longhaul authority");
    ca.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
    let ca_key = rcgen::KeyPair::generate().map_err(certificate)?;
    let ca_certificate = ca.self_signed(&ca_key).map_err(certificate)?;
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let mut server = rcgen::CertificateParams::new(vec![TLS_SERVER_NAME.to_owned()]).map_err(certificate)?;
    server.distinguished_name.push(rcgen::DnType::CommonName, "longhaul coordinator");
    server.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let server_key = rcgen::KeyPair::generate().map_err(certificate)?;
    let server_certificate = server.signed_by(&server_key, &issuer).map_err(certificate)?;
    write_private(&folder.join(CA_FILE), ca_certificate.pem().as_bytes())?;
    write_private(&folder.join(CERTIFICATE_FILE), server_certificate.pem().as_bytes())?;
    // The key is last: where it is, all is.
    write_private(&folder.join(KEY_FILE), server_key.serialize_pem().as_bytes())
}

pub(crate) fn private_folder(path: &Path) -> Result<(), AccessFolderError> {
    let error = |doing| move |source| AccessFolderError::Io { path: path.to_owned(), doing, source };
    fs::create_dir_all(path).map_err(error("created"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(error("made private"))
}

/// Writes beside and renames, so that a reader sees the whole file or the one before.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> Result<(), AccessFolderError> {
    let error = |doing| move |source| AccessFolderError::Io { path: path.to_owned(), doing, source };
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    // What a crash left may have another mode.
    match fs::remove_file(&beside) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(error("replaced")(source)),
        _ => {}
    }
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside).map_err(error("created"))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(error("written"))?;
    fs::rename(&beside, path).map_err(error("renamed"))
}

/// Writes an access file, as [`write_private`] does.
pub(crate) fn write_access(path: &Path, access: &Access) -> Result<(), AccessFolderError> {
    let text = serde_json::to_vec_pretty(access).map_err(|error| AccessFolderError::Io {
        path: path.to_owned(),
        doing: "written",
        source: error.into(),
    })?;
    write_private(path, &text)
}

/// A token that nobody can guess.
pub(crate) fn new_token() -> Result<Secret, AccessFolderError> {
    let mut bytes = [0; 32];
    rand::rngs::OsRng.try_fill_bytes(&mut bytes).map_err(AccessFolderError::Random)?;
    Ok(Secret::new(Digest::from_bytes(bytes).to_string()))
}

fn read_private(path: &Path) -> Result<String, AccessFolderError> {
    let error = |source| AccessFolderError::Io { path: path.to_owned(), doing: "read", source };
    let mode = fs::metadata(path).map_err(error)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(AccessFolderError::Exposed { path: path.to_owned(), mode });
    }
    fs::read_to_string(path).map_err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_made_once_and_kept_private() {
        let dir = tempfile::tempdir().expect("a folder");
        let first = AccessFolder::open(dir.path()).expect("made");
        let again = AccessFolder::open(dir.path()).expect("read");
        assert_eq!(first.token(), again.token());
        assert_eq!(first.certificate_pem, again.certificate_pem);
        for entry in fs::read_dir(dir.path().join(ACCESS_FOLDER)).expect("a folder") {
            let entry = entry.expect("an entry");
            assert_eq!(entry.metadata().expect("a file").permissions().mode() & 0o777, 0o600, "{:?}", entry.path());
        }
    }

    #[test]
    fn a_secret_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        drop(AccessFolder::open(dir.path()).expect("made"));
        let token = dir.path().join(ACCESS_FOLDER).join(TOKEN_FILE);
        fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).expect("changed");
        assert!(matches!(AccessFolder::open(dir.path()), Err(AccessFolderError::Exposed { .. })));
    }

    #[test]
    fn a_store_with_a_long_path_gets_its_socket_elsewhere() {
        let dir = tempfile::tempdir().expect("a folder");
        let uid = nix::unistd::getuid().as_raw();
        let short = socket_path(dir.path(), None, uid).expect("a path");
        assert!(short.starts_with(dir.path()));
        let deep = dir.path().join("x".repeat(120));
        let long = socket_path(&deep, Some(dir.path()), uid).expect("a path");
        assert!(long.starts_with(dir.path().join("longhaul")));
    }
}

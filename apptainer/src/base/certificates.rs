//! Certificates of authorities that are trusted inside, beside those that an image has: for
//! clusters behind a proxy that looks into encrypted connections.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use longhaul_core::digest::Digest;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// Certificates, each once, in an order of their own: which file they came from, and in
/// which order, makes no other image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Certificates(BTreeMap<Digest, String>);

/// Why certificates cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("the certificates in {} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file holds none.
    #[error("{} holds no certificate: a PEM file is expected, with `{BEGIN}`", .0.display())]
    None(PathBuf),
    /// A certificate is cut off, or is none.
    #[error("{}:{line}: the certificate that begins here is not whole", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
}

impl Certificates {
    /// Reads files, each with one certificate or more.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or has no certificate that is whole.
    pub fn read(paths: &[PathBuf]) -> Result<Self, CertificateError> {
        let mut all = Self::default();
        for path in paths {
            let bytes = fs::read(path).map_err(|source| CertificateError::Read { path: path.clone(), source })?;
            // One in another encoding than PEM has no line that counts.
            all.0.extend(Self::of_text(path, &String::from_utf8_lossy(&bytes))?.0);
        }
        Ok(all)
    }

    /// The certificates of one file's text; what else is in it, such as a private key or a
    /// remark, is left out.
    pub(super) fn of_text(path: &Path, text: &str) -> Result<Self, CertificateError> {
        let mut found = BTreeMap::new();
        let mut open: Option<(usize, Vec<&str>)> = None;
        let broken = |line| CertificateError::Broken { path: path.to_owned(), line };
        for (index, line) in text.lines().map(str::trim).enumerate() {
            match (line, &mut open) {
                (BEGIN, None) => open = Some((index + 1, Vec::new())),
                (BEGIN, Some((begun, _))) => return Err(broken(*begun)),
                (END, Some((begun, body))) => {
                    if body.is_empty() {
                        return Err(broken(*begun));
                    }
                    let certificate = format!("{BEGIN}\n{}\n{END}\n", body.join("\n"));
                    found.insert(Digest::of(certificate.as_bytes()), certificate);
                    open = None;
                }
                (line, Some((begun, body))) => {
                    let base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
                    if line.is_empty() || !line.bytes().all(base64) {
                        return Err(broken(*begun));
                    }
                    body.push(line);
                }
                (_, None) => {}
            }
        }
        match open {
            Some((begun, _)) => Err(broken(begun)),
            None if found.is_empty() => Err(CertificateError::None(path.to_owned())),
            None => Ok(Self(found)),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each with its digest, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Digest, &str)> {
        self.0.iter().map(|(digest, text)| (digest, text.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(body: &str) -> String {
        format!("{BEGIN}\n{body}\n{END}\n")
    }

    fn of(text: &str) -> Result<Certificates, CertificateError> {
        Certificates::of_text(Path::new("ca.pem"), text)
    }

    #[test]
    fn a_bundle_is_its_certificates_whatever_is_around_them() {
        let (one, two) = (certificate("MIIBone="), certificate("MIIB\ntwo+"));
        let bundle =
            of(&format!("# ours\n{two}-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n{one}{two}"))
                .expect("a bundle");
        let texts: Vec<_> = bundle.iter().map(|(_, text)| text).collect();
        assert_eq!(texts.len(), 2);
        assert!(texts.contains(&one.as_str()) && texts.contains(&two.as_str()));
        let windows = of(&format!("{one}{two}").replace('\n', "\r\n")).expect("a bundle");
        assert_eq!(windows, bundle);
    }

    #[test]
    fn what_is_no_certificate_is_refused_by_its_place() {
        let message = |text: &str| of(text).expect_err(text).to_string();
        assert!(message("").starts_with("ca.pem holds no certificate"), "{}", message(""));
        assert!(message("\u{30}\u{82}binary").starts_with("ca.pem holds no certificate"));
        let cut = format!("# ours\n{BEGIN}\nMIIB\n");
        assert_eq!(message(&cut), "ca.pem:2: the certificate that begins here is not whole");
        for broken in [certificate("MII B"), certificate(""), format!("{BEGIN}\n{}", certificate("MIIB"))] {
            assert_eq!(message(&broken), "ca.pem:1: the certificate that begins here is not whole");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().expect("folder");
        let (there, gone) = (folder.path().join("there.pem"), folder.path().join("gone.pem"));
        fs::write(&there, certificate("MIIB")).expect("writes");
        assert!(!Certificates::read(std::slice::from_ref(&there)).expect("reads").is_empty());
        let error = Certificates::read(&[there, gone.clone()]).expect_err("is not there").to_string();
        assert!(error.contains(&gone.display().to_string()), "{error}");
        assert!(Certificates::read(&[]).expect("none").is_empty());
    }
}

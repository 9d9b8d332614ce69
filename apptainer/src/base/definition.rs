//! What base images are made of, and the digests that name them: pure.

use std::path::{Path, PathBuf};

use longhaul_core::digest::{Digest, DigestBuilder};

use super::ARCH;
use super::certificates::Certificates;

/// A file of a definition: its path, its content, whether it may be executed.
pub(super) type DefinitionFile = (&'static str, &'static str, bool);

/// What every built-in definition has: Debian 12's whole.
const COMMON: [DefinitionFile; 12] = [
    ("packages", include_str!("../../base/packages"), false),
    ("customize", include_str!("../../base/customize"), true),
    ("inside", include_str!("../../base/inside"), false),
    ("sif.def", include_str!("../../base/sif.def"), false),
    ("files/etc/apt/apt.conf.d/90longhaul", include_str!("../../base/files/etc/apt/apt.conf.d/90longhaul"), false),
    ("files/etc/profile.d/longhaul.sh", include_str!("../../base/files/etc/profile.d/longhaul.sh"), false),
    ("files/etc/xdg/openbox/rc.xml", include_str!("../../base/files/etc/xdg/openbox/rc.xml"), false),
    ("files/opt/longhaul/standin/systemctl", include_str!("../../base/files/opt/longhaul/standin/systemctl"), true),
    ("files/opt/longhaul/standin/service", include_str!("../../base/files/opt/longhaul/standin/service"), true),
    ("files/opt/longhaul/standin/invoke-rc.d", include_str!("../../base/files/opt/longhaul/standin/invoke-rc.d"), true),
    ("files/opt/longhaul/standin/journalctl", include_str!("../../base/files/opt/longhaul/standin/journalctl"), true),
    ("files/opt/longhaul/standin/loginctl", include_str!("../../base/files/opt/longhaul/standin/loginctl"), true),
];

/// What Ubuntu's definition has beside it. The key is of the archive itself: a machine with
/// Debian has none.
const UBUNTU: [DefinitionFile; 4] = [
    ("ubuntu/sources", include_str!("../../base/ubuntu/sources"), false),
    ("ubuntu/customize", include_str!("../../base/ubuntu/customize"), true),
    ("ubuntu/inside", include_str!("../../base/ubuntu/inside"), false),
    ("ubuntu/keys/ubuntu-archive.asc", include_str!("../../base/ubuntu/keys/ubuntu-archive.asc"), false),
];

/// Ubuntu's archive, where no mirror is named.
pub const UBUNTU_ARCHIVE: &str = "http://archive.ubuntu.com/ubuntu";

/// What an image is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BaseSource {
    /// The built-in definition over Debian 12, from where this machine's apt has its packages.
    #[default]
    Debian12,
    /// The built-in definition over Ubuntu 22.04.
    Ubuntu2204 {
        /// The archive or mirror that it is made from, and whose packages hooks get.
        mirror: String,
    },
    /// An image of a registry: `docker://...`. It is taken as it is.
    Registry(String),
    /// A file that is there.
    Sif(PathBuf),
}

impl BaseSource {
    /// Reads what a person wrote: the name of a built-in definition, a registry's address, or
    /// a path.
    #[must_use]
    pub fn parse(text: &str, ubuntu_mirror: &str) -> Self {
        match text {
            "" | "debian" | "debian-12" => Self::Debian12,
            "ubuntu-22.04" => Self::Ubuntu2204 { mirror: ubuntu_mirror.to_owned() },
            address if address.contains("://") => Self::Registry(address.to_owned()),
            path => Self::Sif(PathBuf::from(path)),
        }
    }

    /// The name of a built-in definition.
    #[must_use]
    pub const fn built_in(&self) -> Option<&'static str> {
        match self {
            Self::Debian12 => Some("debian-12"),
            Self::Ubuntu2204 { .. } => Some("ubuntu-22.04"),
            Self::Registry(_) | Self::Sif(_) => None,
        }
    }

    /// The suite of a built-in definition, as its archive calls it.
    pub(super) const fn suite(&self) -> Option<&'static str> {
        match self {
            Self::Debian12 => Some("bookworm"),
            Self::Ubuntu2204 { .. } => Some("jammy"),
            Self::Registry(_) | Self::Sif(_) => None,
        }
    }

    /// The digest of the definition: the name of the image that is made of it. A file
    /// that is there has none.
    #[must_use]
    pub fn key(&self) -> Option<Digest> {
        let builder = DigestBuilder::new("longhaul-base-1").field("arch", ARCH);
        let builder = match self {
            Self::Sif(_) => return None,
            Self::Registry(address) => return Some(builder.field("registry", address).finish()),
            Self::Debian12 | Self::Ubuntu2204 { .. } => builder.field("suite", self.suite().unwrap_or_default()),
        };
        let builder = self.files().fold(builder, |builder, (path, content, executable)| {
            builder.field("path", path).field("content", content).field("mode", if executable { "x" } else { "-" })
        });
        // Hooks fetch from the mirror that the image names.
        Some(match self {
            Self::Ubuntu2204 { mirror } => builder.field("mirror", mirror).finish(),
            _ => builder.finish(),
        })
    }

    /// The files of a built-in definition.
    pub(super) fn files(&self) -> impl Iterator<Item = DefinitionFile> + use<> {
        let (common, ubuntu): (&[DefinitionFile], &[DefinitionFile]) = match self {
            Self::Debian12 => (&COMMON, &[]),
            Self::Ubuntu2204 { .. } => (&COMMON, &UBUNTU),
            Self::Registry(_) | Self::Sif(_) => (&[], &[]),
        };
        common.iter().chain(ubuntu).copied()
    }

    /// Where its packages come from, for people.
    pub(super) fn archive(&self) -> String {
        match self {
            Self::Debian12 => "Debian's archive, as this machine's apt sources name it,".to_owned(),
            Self::Ubuntu2204 { mirror } => format!("Ubuntu's archive {mirror}"),
            Self::Registry(address) => address.clone(),
            Self::Sif(path) => path.display().to_string(),
        }
    }
}

/// A base image, before it is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BaseDefinition {
    /// What it is made of.
    pub source: BaseSource,
    /// The authorities that are trusted in it beside those that it has.
    pub certificates: Certificates,
}

impl BaseDefinition {
    /// The name of the image that is made of it. A file that is there has none, and neither
    /// has an image with certificates before that below it is known.
    #[must_use]
    pub fn key(&self) -> Option<Digest> {
        if self.certificates.is_empty() { self.source.key() } else { None }
    }
}

impl From<BaseSource> for BaseDefinition {
    fn from(source: BaseSource) -> Self {
        Self { source, certificates: Certificates::default() }
    }
}

/// The name of the image that trusts `certificates` and is else as the one with this content.
pub(super) fn trusting_key(image: &Digest, certificates: &Certificates) -> Digest {
    let builder = DigestBuilder::new("longhaul-base-trust-1")
        .field("image", image.to_string())
        .field("definition", include_str!("../../base/trust.def"));
    certificates.iter().fold(builder, |builder, (_, text)| builder.field("certificate", text)).finish()
}

/// The definition file of an image that trusts the certificates in a folder.
pub(super) fn trusting_definition(image: &Path, certificates: &Path) -> String {
    include_str!("../../base/trust.def")
        .replace("@IMAGE@", &image.display().to_string())
        .replace("@CERTIFICATES@", &certificates.display().to_string())
}

/// The packages of the built-in definitions, as mmdebstrap takes them.
pub(super) fn packages() -> String {
    include_str!("../../base/packages")
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(",")
}

/// Ubuntu's apt sources.
pub(super) fn ubuntu_sources(mirror: &str) -> String {
    include_str!("../../base/ubuntu/sources")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| format!("{}\n", line.replace("@MIRROR@", mirror)))
        .collect()
}

/// Whether what mmdebstrap printed says that its archive could not be reached, or is none.
pub(super) fn says_unreachable(log: &str) -> bool {
    const SIGNS: [&str; 6] = [
        "Failed to fetch",
        "Could not resolve",
        "Could not connect",
        "Unable to connect",
        "Connection failed",
        "does not have a Release file",
    ];
    log.lines().any(|line| line.starts_with("Err:") || SIGNS.iter().any(|sign| line.contains(sign)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> BaseSource {
        BaseSource::parse(text, UBUNTU_ARCHIVE)
    }

    #[test]
    fn definitions_are_told_apart() {
        assert_eq!(parse("debian-12"), BaseSource::Debian12);
        assert_eq!(parse("debian"), BaseSource::Debian12, "as earlier versions called it");
        assert_eq!(parse("ubuntu-22.04"), BaseSource::Ubuntu2204 { mirror: UBUNTU_ARCHIVE.to_owned() });
        assert_eq!(parse("docker://x/y:1"), BaseSource::Registry("docker://x/y:1".into()));
        assert_eq!(parse("/a/b.sif"), BaseSource::Sif("/a/b.sif".into()));
        for name in ["debian-12", "ubuntu-22.04"] {
            assert_eq!(parse(name).built_in(), Some(name));
        }
        let other = BaseSource::parse("ubuntu-22.04", "http://mirror.site/ubuntu");
        let keys = [parse("debian-12"), parse("ubuntu-22.04"), other, parse("docker://x")].map(|source| source.key());
        for (index, key) in keys.iter().enumerate() {
            assert!(key.is_some() && !keys[..index].contains(key), "{index}");
        }
        assert_eq!(parse("/a/b.sif").key(), None);
    }

    #[test]
    fn the_package_list_is_clean() {
        let list = packages();
        assert!(list.split(',').count() > 50);
        assert!(list.chars().all(|letter| letter.is_ascii_alphanumeric() || ",-+.".contains(letter)), "{list}");
        for wanted in ["xvfb", "openbox", "xdotool", "squashfs-tools", "python3"] {
            assert!(list.split(',').any(|package| package == wanted), "{wanted}");
        }
    }

    #[test]
    fn ubuntus_sources_name_the_mirror_and_nothing_else() {
        let sources = ubuntu_sources("http://mirror.site/ubuntu");
        assert_eq!(sources.lines().count(), 3);
        assert!(sources.lines().all(|line| line.starts_with("deb http://mirror.site/ubuntu jammy")), "{sources}");
        assert!(sources.lines().all(|line| line.contains(" universe")), "{sources}");
        assert!(!sources.contains('@'));
    }

    #[test]
    fn an_image_with_certificates_is_another_one() {
        let pem = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
        let certificates = Certificates::of_text(Path::new("ca.pem"), pem).expect("a certificate");
        let (one, other) = (Digest::of(b"one"), Digest::of(b"other"));
        assert_ne!(trusting_key(&one, &certificates), trusting_key(&other, &certificates));
        assert_ne!(trusting_key(&one, &certificates), trusting_key(&one, &Certificates::default()));
        let definition = BaseDefinition { source: BaseSource::Debian12, certificates };
        assert_eq!(definition.key(), None, "the image below it decides");
        let text = trusting_definition(Path::new("/i/base.sif"), Path::new("/w/certificates"));
        assert!(text.contains("\nFrom: /i/base.sif\n") && text.contains("'/w/certificates'/*.crt"), "{text}");
    }

    #[test]
    fn an_archive_that_is_not_reached_is_told_from_a_package_that_fails() {
        for line in [
            "Err:1 http://mirror.invalid/ubuntu jammy InRelease",
            "E: Failed to fetch http://mirror.site/ubuntu/dists/jammy/InRelease  Could not resolve 'mirror.site'",
            "E: The repository 'http://mirror.site jammy Release' does not have a Release file.",
        ] {
            assert!(says_unreachable(&format!("I: running apt-get update...\n{line}\nE: failed\n")), "{line}");
        }
        assert!(!says_unreachable("E: Unable to locate package nonsuch\nE: run_install failed\n"));
    }
}

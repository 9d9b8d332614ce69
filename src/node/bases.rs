//! Which base image an env stands on: what the command line says, else the settings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use longhaul_apptainer::{BaseDefinition, BaseSource, Certificates};

use crate::error::NodeError;
use crate::places::{absolute, expand};
use crate::settings::BaseSettings;

/// The base images that are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bases {
    /// What envs stand on, and verifiers.
    pub usual: BaseDefinition,
    /// Envs that stand on another one, by name.
    pub of_envs: BTreeMap<String, BaseDefinition>,
    /// The files with the certificates that are trusted in all of them, and by the model gateway.
    pub certificate_files: Vec<PathBuf>,
}

impl Bases {
    /// Reads each `--base`, and the settings where none says.
    ///
    /// # Errors
    ///
    /// Two name the image for the same env, or the settings' certificates cannot be read.
    pub fn new(given: &[String], settings: &BaseSettings) -> Result<Self, NodeError> {
        let mut usual = None;
        let mut of_envs: BTreeMap<&str, &str> = BTreeMap::new();
        for text in given {
            let (env, image) = split(text);
            let before = match env {
                None => usual.replace(image),
                Some(env) => of_envs.insert(env, image),
            };
            if let Some(before) = before {
                let what = env.map(|env| format!(" for {env}")).unwrap_or_default();
                return Err(NodeError::Usage(format!("--base names two images{what}: {before} and {image}")));
            }
        }
        for (env, image) in &settings.envs {
            of_envs.entry(env).or_insert(image);
        }
        let paths = certificate_files(settings)?;
        let certificates = Certificates::read(&paths).map_err(NodeError::Certificates)?;
        let definition = |image: &str| -> Result<BaseDefinition, NodeError> {
            let source = match BaseSource::parse(image, &settings.ubuntu_mirror) {
                BaseSource::Sif(path) => BaseSource::Sif(expand(&path)?),
                source => source,
            };
            Ok(BaseDefinition { source, certificates: certificates.clone() })
        };
        let usual = definition(usual.unwrap_or(&settings.image))?;
        let of_envs = of_envs
            .into_iter()
            .map(|(env, image)| Ok((env.to_owned(), definition(image)?)))
            .collect::<Result<_, NodeError>>()?;
        Ok(Self { usual, of_envs, certificate_files: paths })
    }
}

/// The files with the certificates that are trusted beside the usual ones.
///
/// # Errors
///
/// Nothing says where the user's home is.
pub fn certificate_files(settings: &BaseSettings) -> Result<Vec<PathBuf>, NodeError> {
    settings.certificates.iter().map(|path| expand(path)).collect()
}

/// What `--base` says: of which env, if of one, and the image.
fn split(text: &str) -> (Option<&str>, &str) {
    let is_name = |env: &str| {
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        !env.is_empty() && env.bytes().all(letter)
    };
    match text.split_once('=') {
        Some((env, image)) if is_name(env) => (Some(env), image),
        _ => (None, text),
    }
}

/// A `--base` that means the same in another folder: what is no file here is a name.
///
/// # Errors
///
/// This process's own folder is gone.
pub fn anywhere(text: &str) -> Result<String, NodeError> {
    let (env, image) = split(text);
    let file = Path::new(image);
    let image = if file.exists() { absolute(file)?.display().to_string() } else { image.to_owned() };
    Ok(env.map_or_else(|| image.clone(), |env| format!("{env}={image}")))
}

/// The variables by which programs that look at certificates of their own find those of the image.
#[must_use]
pub fn certificate_variables(settings: &BaseSettings) -> BTreeMap<String, String> {
    const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
    let names = ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"];
    if settings.certificates.is_empty() {
        return BTreeMap::new();
    }
    names.map(|name| (name.to_owned(), BUNDLE.to_owned())).into()
}

#[cfg(test)]
mod tests {
    use longhaul_apptainer::base::UBUNTU_ARCHIVE;

    use super::*;
    use crate::error::Explained as _;

    fn settings() -> BaseSettings {
        crate::settings::load(None).expect("the defaults").base
    }

    fn of(given: &[&str], settings: &BaseSettings) -> Result<Bases, NodeError> {
        Bases::new(&given.iter().map(|&text| text.to_owned()).collect::<Vec<_>>(), settings)
    }

    #[test]
    fn the_command_line_wins_over_the_settings_image_by_image() {
        let mut settings = settings();
        settings.envs = [("a_env", "a.sif"), ("b_env", "ubuntu-22.04")]
            .map(|(env, image)| (env.to_owned(), image.to_owned()))
            .into();
        let none = of(&[], &settings).expect("bases");
        assert_eq!(none.usual, BaseDefinition::default());
        assert_eq!(none.of_envs["a_env"].source, BaseSource::Sif("a.sif".into()));
        assert_eq!(none.of_envs["b_env"].source, BaseSource::Ubuntu2204 { mirror: UBUNTU_ARCHIVE.to_owned() });
        let given = of(&["a_env=debian-12", "x.sif", "c_env=docker://y/z"], &settings).expect("bases");
        assert_eq!(given.usual.source, BaseSource::Sif("x.sif".into()));
        assert_eq!(given.of_envs["a_env"].source, BaseSource::Debian12);
        assert_eq!(given.of_envs["b_env"], none.of_envs["b_env"]);
        assert_eq!(given.of_envs["c_env"].source, BaseSource::Registry("docker://y/z".into()));
    }

    #[test]
    fn two_images_for_one_env_are_refused() {
        for given in [["x.sif", "y.sif"], ["a_env=x.sif", "a_env=x.sif"]] {
            let error = of(&given, &settings()).expect_err("two").to_string();
            assert!(error.starts_with("--base names two images"), "{error}");
        }
    }

    #[test]
    fn a_path_may_have_an_equals_sign() {
        assert_eq!(split("./a=b.sif"), (None, "./a=b.sif"));
        assert_eq!(split("docker://x/y?a=b"), (None, "docker://x/y?a=b"));
        assert_eq!(split("a_env=/i/b=c.sif"), (Some("a_env"), "/i/b=c.sif"));
        assert_eq!(split("=x.sif"), (None, "=x.sif"));
        assert_eq!(anywhere("a_env=ubuntu-22.04").expect("a folder"), "a_env=ubuntu-22.04");
        let here = absolute(Path::new("Cargo.toml")).expect("a folder");
        assert_eq!(anywhere("a_env=Cargo.toml").expect("a folder"), format!("a_env={}", here.display()));
    }

    #[test]
    fn certificates_are_read_and_told_to_hooks() {
        let folder = tempfile::tempdir().expect("folder");
        let file = folder.path().join("ca.pem");
        let mut settings = settings();
        assert!(certificate_variables(&settings).is_empty());
        settings.certificates = vec![file.clone()];
        let error = of(&[], &settings).expect_err("there is no file");
        assert_eq!(error.exit(), crate::exit::Exit::Input);
        std::fs::write(&file, "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n").expect("writes");
        let bases = of(&["a_env=x.sif"], &settings).expect("bases");
        assert!(!bases.usual.certificates.is_empty());
        assert_eq!(bases.usual.certificates, bases.of_envs["a_env"].certificates);
        assert_eq!(bases.certificate_files, [file], "the gateway trusts them too");
        assert!(certificate_variables(&settings).contains_key("SSL_CERT_FILE"));
    }
}

//! What of a machine sandboxes stand on: Apptainer, folders, the allocation, base images.

use std::path::{Path, PathBuf};

use longhaul_apptainer::{Apptainer, BaseDefinition, BaseImage, BaseSource, Limits, base, filesystem};
use longhaul_core::digest::Digest;
use longhaul_slurm::Allocation;
use nix::sys::stat::{Mode, umask};

use crate::bases::Bases;
use crate::cli::LayerPlaceArgs;
use crate::error::NodeError;
use crate::settings::Settings;
use crate::{output, places};

/// This process's own program, whatever became of the path that it was started from.
pub const THIS_PROGRAM: &str = "/proc/self/exe";

/// What of a machine sandboxes stand on.
#[derive(Debug)]
pub struct Machine {
    /// Apptainer.
    pub apptainer: Apptainer,
    /// The layer folder.
    pub layers: PathBuf,
    /// The folder for sandboxes, caches and spools.
    pub scratch: PathBuf,
    /// The allocation that this process is in, if it is in one.
    pub allocation: Option<Allocation>,
    pub(crate) bases: Bases,
}

/// Finds out what there is.
///
/// # Errors
///
/// Apptainer is not there, nothing says where layers and scratch are, or scratch is where no
/// sandbox can be.
pub async fn machine(place: &LayerPlaceArgs, settings: &Settings) -> Result<Machine, NodeError> {
    let machine = found(place, settings).await?;
    // Workers look again; but who runs something is told before anything is stored.
    filesystem::fit_for_tops(&machine.scratch).map_err(|error| NodeError::Machine(Box::new(error)))?;
    Ok(machine)
}

/// As [`machine`], wherever scratch is: to clean up, too, what was left there.
pub(crate) async fn found(place: &LayerPlaceArgs, settings: &Settings) -> Result<Machine, NodeError> {
    // What sandboxes see of folders and files must not hang on how private a person is: below
    // an overlay whose top is closed to others, no account inside gets anywhere. What is secret
    // is made with its own mode.
    umask(Mode::S_IWGRP | Mode::S_IWOTH);
    let allocation =
        Allocation::parse(|name| std::env::var(name).ok()).map_err(|error| NodeError::Machine(Box::new(error)))?;
    let tmp = allocation.as_ref().and_then(|allocation| allocation.tmp.clone());
    let layers = places::layers(place.layers.as_deref(), settings)?;
    let scratch = places::scratch(place.scratch.as_deref(), settings, tmp.as_deref())?;
    let bases = Bases::new(&place.bases, &settings.base)?;
    let apptainer = Apptainer::detect().await.map_err(|error| NodeError::Machine(Box::new(error)))?;
    let apptainer = apptainer.with_limits(call_limits(settings));
    scratch_folder(&scratch)?;
    Ok(Machine { apptainer, layers, scratch, allocation, bases })
}

/// How long what Apptainer is called for may take.
pub(crate) fn call_limits(settings: &Settings) -> Limits {
    let (start, build) = (settings.worker.start_limit.to_std(), settings.base.build_limit.to_std());
    Limits { start, build, ..Limits::default() }
}

impl Machine {
    fn folder(&self) -> PathBuf {
        self.layers.join("images")
    }

    /// What an env stands on; what most do, if none is named.
    fn definition(&self, env: Option<&str>) -> &BaseDefinition {
        env.and_then(|env| self.bases.of_envs.get(env)).unwrap_or(&self.bases.usual)
    }

    /// The name under which a program finds the image of an env beside itself; none if it is
    /// not a built-in one.
    #[must_use]
    pub fn shipped_name(&self, env: Option<&str>) -> Option<String> {
        let definition = self.definition(env);
        definition.source.built_in()?;
        definition.key().as_ref().map(places::shipped_name)
    }

    /// The key of the definition of an env's image; none for a file of its own.
    #[must_use]
    pub fn definition_key(&self, env: Option<&str>) -> Option<Digest> {
        self.definition(env).key()
    }

    /// Whether the usual base image was made before.
    #[must_use]
    pub fn has_image(&self) -> bool {
        self.has(&self.bases.usual)
    }

    fn has(&self, definition: &BaseDefinition) -> bool {
        let made = |key| self.folder().join(format!("{key}.sif")).exists();
        with_shipped(definition).source.key().is_none_or(made)
    }

    /// The image that most envs stand on; built if it is not there.
    ///
    /// # Errors
    ///
    /// It is not there and cannot be built.
    pub async fn image(&self) -> Result<BaseImage, NodeError> {
        self.image_of(None).await
    }

    /// The image that an env stands on; built if it is not there.
    ///
    /// # Errors
    ///
    /// It is not there and cannot be built.
    pub async fn image_of(&self, env: Option<&str>) -> Result<BaseImage, NodeError> {
        let definition = self.definition(env);
        if !self.has(definition) {
            output::note("making the base image; this takes some minutes, once");
        }
        base::ensure(&self.apptainer, &with_shipped(definition), &self.folder(), &self.scratch)
            .await
            .map_err(|error| NodeError::Machine(Box::new(error)))
    }

    /// Every image that an env may stand on; built where it is not there.
    ///
    /// # Errors
    ///
    /// One is not there and cannot be built.
    pub async fn images(&self) -> Result<(), NodeError> {
        self.image().await?;
        for env in self.bases.of_envs.keys() {
            self.image_of(Some(env)).await?;
        }
        Ok(())
    }
}

/// A built-in image that came with this program is a file that is there.
pub(crate) fn with_shipped(definition: &BaseDefinition) -> BaseDefinition {
    let key = definition.source.built_in().and_then(|_| definition.source.key());
    match key.as_ref().and_then(places::shipped_image) {
        Some(file) => BaseDefinition { source: BaseSource::Sif(file), certificates: definition.certificates.clone() },
        None => definition.clone(),
    }
}

/// The scratch folder: others may pass through it but not list it. The folders of workers in
/// it are private; the tools that make a base image run as another id of ours and have to pass.
fn scratch_folder(path: &Path) -> Result<(), NodeError> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
    let failed = |doing| move |source| NodeError::File { path: path.to_owned(), doing, source };
    std::fs::DirBuilder::new().recursive(true).mode(0o711).create(path).map_err(failed("made"))?;
    let owner = std::fs::metadata(path).map_err(failed("examined"))?.uid();
    if owner == nix::unistd::getuid().as_raw() {
        return std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o711)).map_err(failed("opened"));
    }
    let source = std::io::Error::new(std::io::ErrorKind::PermissionDenied, "it belongs to another user");
    Err(failed("used")(source))
}

/// This machine's name.
#[must_use]
pub fn hostname() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_else(|| "localhost".to_owned())
}

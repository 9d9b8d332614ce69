//! The base images of a worker: the usual one, and others that envs by name stand on.
//!
//! The usual one is there before the worker has a session. Another one is made, or only
//! looked at, when the first of its envs needs it: a worker that never gets such an env does not
//! wait for it. Images that differ have different content, which is the parent of every layer's
//! key over them: no layer is ever shared between two.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use longhaul_apptainer::base::{self, BaseError};
use longhaul_apptainer::{Apptainer, BaseDefinition, BaseSource, ToolError};
use longhaul_core::plan::LayerKind;
use tokio::sync::OnceCell;

use super::container::is_full;
use super::{LayerBasis, SandboxError};
use crate::config::WorkerConfig;

/// A base image that is there.
#[derive(Clone, Debug)]
pub(super) struct Base {
    /// Its file.
    pub(super) image: PathBuf,
    /// What the keys of layers over it depend on.
    pub(super) basis: LayerBasis,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub(super) enum BasesError {
    /// It is not there and cannot be made.
    #[error(transparent)]
    Base(#[from] BaseError),
    /// No container starts over it.
    #[error(transparent)]
    Tool(#[from] ToolError),
}

/// One image that some envs stand on.
#[derive(Debug)]
struct Other {
    definition: BaseDefinition,
    ready: OnceCell<Base>,
}

/// The base images of a worker.
#[derive(Debug)]
pub(super) struct Bases {
    apptainer: Apptainer,
    images: PathBuf,
    scratch: PathBuf,
    usual: Base,
    others: Vec<Other>,
    /// Which of the others an env stands on.
    of_envs: BTreeMap<String, usize>,
}

impl Bases {
    pub(super) async fn open(apptainer: &Apptainer, config: &WorkerConfig) -> Result<Self, BasesError> {
        let images = config.layers.join("images");
        let definition = BaseSource::Sif(config.image.clone()).into();
        let usual = make(apptainer, &definition, &images, &config.scratch).await?;
        let (others, of_envs) = grouped(&config.bases);
        let others = others.into_iter().map(|definition| Other { definition, ready: OnceCell::new() }).collect();
        Ok(Self { apptainer: apptainer.clone(), images, scratch: config.scratch.clone(), usual, others, of_envs })
    }

    /// The image that verifiers and all other envs stand on.
    pub(super) const fn usual(&self) -> &Base {
        &self.usual
    }

    /// The image that an env stands on; made if it is not there.
    pub(super) async fn of(&self, env: &str) -> Result<&Base, SandboxError> {
        let Some(other) = self.of_envs.get(env).and_then(|index| self.others.get(*index)) else {
            return Ok(&self.usual);
        };
        let making = || make(&self.apptainer, &other.definition, &self.images, &self.scratch);
        other.ready.get_or_try_init(making).await.map_err(|error| {
            let message = crate::chain(&error);
            if is_full(&message) {
                return SandboxError::Disk(message);
            }
            SandboxError::Layer { kind: LayerKind::Base, of: env.to_owned(), message, log_tail: None }
        })
    }
}

async fn make(
    apptainer: &Apptainer,
    definition: &BaseDefinition,
    images: &Path,
    scratch: &Path,
) -> Result<Base, BasesError> {
    let image = base::ensure(apptainer, definition, images, scratch).await?;
    let overlay_driver = apptainer.overlay_driver(&image.path, scratch).await?;
    let basis = LayerBasis { base: image.content, arch: base::ARCH.to_owned(), overlay_driver };
    Ok(Base { image: image.path, basis })
}

/// Each definition once, and which one an env has: pure.
fn grouped(bases: &BTreeMap<String, BaseDefinition>) -> (Vec<BaseDefinition>, BTreeMap<String, usize>) {
    let mut definitions: Vec<BaseDefinition> = Vec::new();
    let mut of_envs = BTreeMap::new();
    for (env, definition) in bases {
        let index = definitions.iter().position(|known| known == definition).unwrap_or_else(|| {
            definitions.push(definition.clone());
            definitions.len() - 1
        });
        of_envs.insert(env.clone(), index);
    }
    (definitions, of_envs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envs_that_name_the_same_image_wait_for_one() {
        let definition = |text: &str| BaseDefinition::from(BaseSource::parse(text, base::UBUNTU_ARCHIVE));
        let bases = [("a_env", "ubuntu-22.04"), ("b_env", "x.sif"), ("c_env", "ubuntu-22.04")]
            .map(|(env, text)| (env.to_owned(), definition(text)));
        let (definitions, of_envs) = grouped(&BTreeMap::from(bases));
        assert_eq!(definitions, [definition("ubuntu-22.04"), definition("x.sif")]);
        let of_envs: Vec<_> = of_envs.iter().map(|(env, index)| (env.as_str(), *index)).collect();
        assert_eq!(of_envs, [("a_env", 0), ("b_env", 1), ("c_env", 0)]);
    }
}

//! The files of envs, frozen as a run would freeze them, in a folder of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use longhaul_core::digest::Digest;
use longhaul_core::plan::{EnvPlan, HookPolicy, Tree, TreeNode};
use serde::de::DeserializeOwned;

use crate::benchmark::{
    Agent, BlobError, Blobs, Extent, HookPolicies, Limits, ModelTerms, OnRefusal, Planned, Request, plan,
};
use crate::commands::run::Picked;
use crate::error::CliError;
use crate::output;

/// Blobs in a folder, by digest: a benchmark's data need not fit into memory.
#[derive(Debug)]
pub(super) struct Frozen {
    folder: tempfile::TempDir,
}

impl Blobs for Frozen {
    fn put(&mut self, digest: Digest, bytes: &[u8]) -> Result<(), BlobError> {
        let path = self.blob(&digest);
        if !path.exists() {
            fs::write(path, bytes)?;
        }
        Ok(())
    }
}

impl Frozen {
    /// Freezes the envs of the picked tasks.
    pub(super) fn new(
        picked: &Picked,
        policies: &HookPolicies,
        scratch: &Path,
    ) -> Result<(Self, Vec<EnvPlan>), CliError> {
        let failed = |source| CliError::File { path: scratch.to_owned(), doing: "written", source };
        let folder = tempfile::Builder::new().prefix("frozen-").tempdir_in(scratch).map_err(failed)?;
        for name in ["blobs", "trees"] {
            fs::create_dir(folder.path().join(name)).map_err(failed)?;
        }
        let mut frozen = Self { folder };
        // An env is the same for all its tasks; the first one stands for them.
        let mut seen = BTreeSet::new();
        let tasks: Vec<_> = picked.tasks.iter().filter(|task| seen.insert(task.env.clone())).cloned().collect();
        let request = Request {
            name: "layers".to_owned(),
            tasks: &tasks,
            agents: &[Agent::Idle],
            samples: 1,
            limits: Limits::default(),
            retry: longhaul_core::plan::RetryPolicy {
                max_attempts: 1,
                max_cut_offs: 1,
                backoff: longhaul_core::time::Millis(0),
                resume: longhaul_core::resume::ResumePolicy::Restart,
                snapshots: longhaul_core::snapshot::SnapshotPolicy::OFF,
            },
            hook_policies: policies,
            seed: 0,
            on_refusal: OnRefusal::PassOver,
            // A layer is built without any.
            gpus: None,
            layers_from: None,
            earlier: None,
            extent: Extent::Start,
            models: &ModelTerms::default(),
        };
        let planned: Planned =
            plan(&picked.benchmark, &request, &mut frozen).map_err(|error| CliError::Plan(Box::new(error)))?;
        for env in &planned.passed_over {
            output::note(&output::escape(&format!("warning: {} is left out: {}", env.env, env.reason)));
        }
        let envs = planned.run.envs.iter().map(|env| frozen.json(&env.plan)).collect::<Result<Vec<EnvPlan>, _>>()?;
        Ok((frozen, envs))
    }

    fn blob(&self, digest: &Digest) -> PathBuf {
        self.folder.path().join("blobs").join(digest.to_string())
    }

    fn read(&self, digest: &Digest) -> Result<Vec<u8>, CliError> {
        let path = self.blob(digest);
        fs::read(&path).map_err(|source| CliError::File { path, doing: "read", source })
    }

    fn json<T: DeserializeOwned>(&self, digest: &Digest) -> Result<T, CliError> {
        serde_json::from_slice(&self.read(digest)?)
            .map_err(|source| CliError::Record { what: "a plan".to_owned(), source })
    }

    /// The folder of a tree; made when it is asked for first. `own` is a name for a copy
    /// that may be written to.
    pub(super) fn tree(&self, digest: &Digest, own: Option<&str>) -> Result<PathBuf, CliError> {
        let name = own.map_or_else(|| digest.to_string(), |own| format!("{digest}-{own}"));
        let root = self.folder.path().join("trees").join(name);
        if root.exists() {
            return Ok(root);
        }
        let tree: Tree = self.json(digest)?;
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| CliError::File { path, doing: "written", source }
        };
        fs::create_dir(&root).map_err(failed(&root))?;
        let mut made = BTreeMap::new();
        for entry in &tree.entries {
            let path = root.join(&entry.path);
            if let Err(reason) = longhaul_worker::blobs::check_entry(entry, &made) {
                return Err(failed(&path)(io::Error::new(io::ErrorKind::InvalidData, reason)));
            }
            made.insert(entry.path.clone(), matches!(entry.node, TreeNode::Dir));
            match &entry.node {
                TreeNode::Dir => fs::create_dir(&path).map_err(failed(&path))?,
                TreeNode::Link { target } => symlink(target, &path).map_err(failed(&path))?,
                TreeNode::File { executable, chunks, .. } => {
                    let mode = if *executable { 0o755 } else { 0o644 };
                    let mut file: File = OpenOptions::new()
                        .write(true)
                        .create_new(true)
                        .mode(mode)
                        .open(&path)
                        .map_err(failed(&path))?;
                    for chunk in chunks {
                        file.write_all(&self.read(chunk)?).map_err(failed(&path))?;
                    }
                }
            }
        }
        Ok(root)
    }

    /// An empty folder: what env hooks see where tasks would be.
    pub(super) fn no_tasks(&self) -> Result<PathBuf, CliError> {
        let path = self.folder.path().join("trees").join("no-tasks");
        fs::create_dir_all(&path).map_err(|source| CliError::File { path: path.clone(), doing: "made", source })?;
        Ok(path)
    }
}

/// What a layer that rests on a tolerated failure is called in a table.
pub(super) const fn policy_name(policy: HookPolicy) -> &'static str {
    match policy {
        HookPolicy::Strict => "strict",
        HookPolicy::Tolerate => "tolerate",
    }
}

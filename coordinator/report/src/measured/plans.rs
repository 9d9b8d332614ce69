//! The frozen plans of a run's episodes, each read once however many episodes share it.

use std::collections::BTreeMap;
use std::sync::Arc;

use longhaul_core::digest::{Digest, DigestBuilder};
use longhaul_core::endpoint::GatewayPlan;
use longhaul_core::imported::ImportedEpisode;
use longhaul_core::judge::CHECKLIST_FILE;
use longhaul_core::plan::{EnvPlan, EpisodePlan, Scoring, TaskPlan, Tree, TreeNode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::view::Trajectories;

/// The file of the task itself, whose content is the spec.
const SPEC: &str = "task.json";

/// The plans of one episode, as far as they are there and can be read: a store may hold plans of
/// a newer program, and what they would say is then not known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frozen {
    pub(crate) episode: Option<EpisodePlan>,
    pub(crate) task: Option<Arc<TaskFacts>>,
    pub(crate) env: Option<Arc<EnvFacts>>,
    pub(crate) gateway: Option<Arc<GatewayPlan>>,
    /// What is known of an imported episode, which has no plan.
    pub(crate) imported: Option<ImportedEpisode>,
}

/// A task's plan, and the digests of its files by what they are for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TaskFacts {
    pub(crate) plan: TaskPlan,
    pub(crate) files: Option<FileFacts>,
}

/// The digests of a task's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileFacts {
    pub(crate) verifier: Option<Digest>,
    pub(crate) checklist: Option<Digest>,
    /// Of all others together: hooks, and what they bring.
    pub(crate) scripts: Digest,
}

/// An env's plan, and a digest of it that does not depend on which layers were pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EnvFacts {
    pub(crate) plan: EnvPlan,
    pub(crate) digest: Digest,
}

/// Plans by digest.
pub(crate) struct Plans<'a, T> {
    from: &'a T,
    tasks: BTreeMap<Digest, Option<Arc<TaskFacts>>>,
    envs: BTreeMap<Digest, Option<Arc<EnvFacts>>>,
    gateways: BTreeMap<Digest, Option<Arc<GatewayPlan>>>,
}

impl<'a, T: Trajectories> Plans<'a, T> {
    pub(crate) const fn new(from: &'a T) -> Self {
        Self { from, tasks: BTreeMap::new(), envs: BTreeMap::new(), gateways: BTreeMap::new() }
    }

    /// The plans of the episode whose plan is that blob.
    pub(crate) fn of(&mut self, plan: &Digest) -> Result<Frozen, T::Error> {
        let Some(episode) = read::<EpisodePlan, T>(self.from, plan)? else {
            return Ok(Frozen { imported: read(self.from, plan)?, ..Frozen::default() });
        };
        let task = self.task(&episode.task)?;
        let env = match &task {
            Some(task) => self.env(&task.plan.env)?,
            None => None,
        };
        let gateway = match &episode.gateway {
            Some(digest) => self.gateway(digest)?,
            None => None,
        };
        Ok(Frozen { episode: Some(episode), task, env, gateway, imported: None })
    }

    /// Lets go of everything once it is more than so many tasks: of a run with a task for each
    /// episode nothing is read twice.
    pub(crate) fn forget_beyond(&mut self, tasks: usize) {
        if self.tasks.len() > tasks {
            self.tasks.clear();
            self.envs.clear();
        }
    }

    fn task(&mut self, digest: &Digest) -> Result<Option<Arc<TaskFacts>>, T::Error> {
        once(&mut self.tasks, digest, || {
            let Some(plan) = read::<TaskPlan, T>(self.from, digest)? else { return Ok(None) };
            let files = read::<Tree, T>(self.from, &plan.files)?.map(|tree| file_facts(&tree, &plan.scoring));
            Ok(Some(TaskFacts { plan, files }))
        })
    }

    fn env(&mut self, digest: &Digest) -> Result<Option<Arc<EnvFacts>>, T::Error> {
        once(&mut self.envs, digest, || {
            let plan = read::<EnvPlan, T>(self.from, digest)?;
            Ok(plan.map(|plan| {
                let asked = EnvPlan { pins: Vec::new(), ..plan.clone() };
                EnvFacts { digest: json_digest(&asked).unwrap_or(*digest), plan }
            }))
        })
    }

    fn gateway(&mut self, digest: &Digest) -> Result<Option<Arc<GatewayPlan>>, T::Error> {
        once(&mut self.gateways, digest, || read(self.from, digest))
    }
}

/// What is made of the plan of that digest; made at the first call.
fn once<V, E>(
    known: &mut BTreeMap<Digest, Option<Arc<V>>>,
    digest: &Digest,
    make: impl FnOnce() -> Result<Option<V>, E>,
) -> Result<Option<Arc<V>>, E> {
    if let Some(known) = known.get(digest) {
        return Ok(known.clone());
    }
    let made = make()?.map(Arc::new);
    known.insert(*digest, made.clone());
    Ok(made)
}

fn read<P: DeserializeOwned, T: Trajectories>(from: &T, digest: &Digest) -> Result<Option<P>, T::Error> {
    Ok(from.blob(digest)?.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// The digest of a value's JSON.
pub(super) fn json_digest<V: Serialize>(value: &V) -> Option<Digest> {
    serde_json::to_vec(value).ok().map(|bytes| Digest::of(&bytes))
}

fn file_facts(tree: &Tree, scoring: &Scoring) -> FileFacts {
    let (program, checklist) = match scoring {
        Scoring::Program { file, .. } => (Some(file.as_str()), CHECKLIST_FILE),
        Scoring::Checklist { checklist } => (None, checklist.as_str()),
        Scoring::Both { file, checklist, .. } => (Some(file.as_str()), checklist.as_str()),
        Scoring::Rounds | Scoring::None { .. } => (None, CHECKLIST_FILE),
    };
    // As specs write them: `./check.py` is `check.py`.
    let (program, checklist) = (program.map(plain), plain(checklist));
    let (mut verifier, mut judged_by) = (None, None);
    let mut rest = DigestBuilder::new("longhaul-scripts-1");
    for entry in &tree.entries {
        match &entry.node {
            TreeNode::File { chunks, .. } if program == Some(entry.path.as_str()) => {
                verifier = Some(content(chunks));
            }
            TreeNode::File { chunks, .. } if entry.path == checklist => judged_by = Some(content(chunks)),
            TreeNode::File { .. } if entry.path == SPEC => {}
            node => {
                rest = rest.field("path", &entry.path).field("node", serde_json::to_vec(node).unwrap_or_default());
            }
        }
    }
    FileFacts { verifier, checklist: judged_by, scripts: rest.finish() }
}

fn plain(name: &str) -> &str {
    name.trim_start_matches("./")
}

/// The digest of a file: its own where it is in one piece, else one over its pieces.
fn content(chunks: &[Digest]) -> Digest {
    if let [one] = chunks {
        return *one;
    }
    let pieces = DigestBuilder::new("longhaul-file-1");
    chunks.iter().fold(pieces, |pieces, chunk| pieces.field("piece", chunk.as_bytes())).finish()
}

#[cfg(test)]
mod tests {
    use longhaul_core::plan::TreeEntry;

    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let entry = |(path, text): &(&str, &str)| TreeEntry {
            path: (*path).to_owned(),
            node: TreeNode::File {
                executable: false,
                size: text.len() as u64,
                chunks: vec![Digest::of(text.as_bytes())],
            },
        };
        Tree { entries: files.iter().map(entry).collect() }
    }

    #[test]
    fn an_edited_file_changes_the_digest_of_what_it_is_for_and_no_other() {
        let scoring = Scoring::Program { file: "./verifier.py".to_owned(), function: "verify".to_owned() };
        let facts = |setup, verifier, checklist| {
            let files =
                [("setup.sh", setup), ("task.json", "{}"), ("verifier.py", verifier), (CHECKLIST_FILE, checklist)];
            file_facts(&tree(&files), &scoring)
        };
        let one = facts("true", "a", "[]");
        assert_eq!((one.verifier, one.checklist), (Some(Digest::of(b"a")), Some(Digest::of(b"[]"))));
        let edited = facts("true", "b", "[]");
        assert_eq!((edited.scripts, edited.checklist), (one.scripts, one.checklist));
        assert_ne!(edited.verifier, one.verifier);
        let setup = facts("false", "a", "[]");
        assert_eq!((setup.verifier, setup.checklist), (one.verifier, one.checklist));
        assert_ne!(setup.scripts, one.scripts);
    }

    #[test]
    fn a_file_in_pieces_has_a_digest_over_them() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        assert_eq!(content(&[a]), a);
        assert_ne!(content(&[a, b]), content(&[b, a]));
    }
}

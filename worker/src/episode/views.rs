//! What a sandbox sees of the benchmark: its mounts, and of its task a view without what the
//! agent must not know.

use std::path::{Path, PathBuf};

use longhaul_core::hidden::{HIDDEN, named, plain};
use longhaul_core::outcome::Fault;
use longhaul_core::plan::{EnvPlan, Scoring, TaskPlan};

use super::{blob_fault, disk_fault};
use crate::blobs::{BlobClient, BlobError, HeldTree, link_view};
use crate::sandbox::View;

/// What of a task's folder its sandbox does not see.
fn hidden(task: &TaskPlan) -> Vec<PathBuf> {
    let (program, checklist) = match &task.scoring {
        Scoring::Program { file, .. } => (Some(file.as_str()), None),
        Scoring::Checklist { checklist } => (None, Some(checklist.as_str())),
        Scoring::Both { file, checklist, .. } => (Some(file.as_str()), Some(checklist.as_str())),
        Scoring::Rounds | Scoring::None { .. } => (None, None),
    };
    // Its program and its checklist are none of the agent's business also where something else decides,
    // and hooks of rounds say what is looked at.
    let named = named(&task.spec, task.rounds.as_ref());
    let hidden = HIDDEN.into_iter().chain(program).chain(checklist).map(plain).chain(named);
    hidden.filter(|path| !path.is_empty()).map(PathBuf::from).collect()
}

/// These below a folder, and what those of them lead to that are links.
fn with_targets(root: &Path, mut hidden: Vec<PathBuf>) -> Vec<PathBuf> {
    let Ok(root) = root.canonicalize() else { return hidden };
    let target = |path: &PathBuf| Some(root.join(path).canonicalize().ok()?.strip_prefix(&root).ok()?.to_owned());
    // What leads to the folder itself hides nothing of it.
    let targets: Vec<PathBuf> = hidden.iter().filter_map(target).filter(|path| !path.as_os_str().is_empty()).collect();
    hidden.extend(targets);
    hidden
}

/// Views with what they stand on, held.
pub(crate) struct Views {
    pub(crate) views: Vec<View>,
    /// The trees must not be evicted while they are bound.
    _held: Vec<HeldTree>,
}

/// The env's mounts. A writable one is a copy of its own below `scratch`, also for a layer's
/// build: the benchmark is never written.
pub(crate) async fn mounts(env: &EnvPlan, blobs: &BlobClient, scratch: &Path) -> Result<Views, Fault> {
    let mut views = Vec::new();
    let mut held = Vec::new();
    for (index, mount) in env.mounts.iter().enumerate() {
        let tree = blobs.folder(mount.tree).await.map_err(|error| blob_fault(&error))?;
        let source = if mount.writable {
            let own = scratch.join("mounts").join(index.to_string());
            in_background(tree.path().to_owned(), own.clone(), true, Vec::new()).await?;
            own
        } else {
            tree.path().to_owned()
        };
        views.push(View { source, target: mount.target.clone(), writable: mount.writable });
        held.push(tree);
    }
    Ok(Views { views, _held: held })
}

/// The tasks folder of a sandbox: only the one task, without what is hidden; empty for a layer.
pub(crate) async fn tasks(
    env: &EnvPlan,
    task: Option<(&TaskPlan, &HeldTree)>,
    scratch: &Path,
) -> Result<Option<View>, Fault> {
    let Some(target) = &env.tasks_target else { return Ok(None) };
    let folder = scratch.join("tasks");
    std::fs::create_dir_all(&folder).map_err(|error| disk_fault(&folder, &error))?;
    if let Some((task, files)) = task {
        let hidden = with_targets(files.path(), hidden(task));
        in_background(files.path().to_owned(), folder.join(&task.name.task), false, hidden).await?;
    }
    Ok(Some(View { source: folder, target: target.clone(), writable: false }))
}

async fn in_background(from: PathBuf, to: PathBuf, copy: bool, hidden: Vec<PathBuf>) -> Result<(), Fault> {
    let made = tokio::task::spawn_blocking(move || link_view(&from, &to, copy, &hidden)).await;
    made.unwrap_or(Err(BlobError::GivenUp)).map_err(|error| blob_fault(&error))
}

#[cfg(test)]
mod tests {
    use longhaul_core::digest::Digest;
    use serde_json::json;

    use super::*;
    use crate::testing::plans;

    #[test]
    fn the_hooks_of_rounds_are_hidden_where_there_are_rounds() {
        let plain = plans::task(Digest::of(b"env"), Digest::of(b"files"));
        assert!(!hidden(&plain).contains(&PathBuf::from("rounds")), "a folder of that name may be anything");
        let rounds = json!({"rounds": [{"kind": "open", "goal": "g", "read": "hooks/read.sh", "assertions": []}]});
        let task =
            TaskPlan { scoring: Scoring::Rounds, rounds: Some(serde_json::from_value(rounds).unwrap()), ..plain };
        let hidden = hidden(&task);
        for name in ["rounds", "hooks/read.sh", "task.json"] {
            assert!(hidden.contains(&PathBuf::from(name)), "{name} is seen: {hidden:?}");
        }
    }

    #[test]
    fn a_link_hides_what_it_leads_to() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["rounds", "lib"] {
            std::fs::create_dir(root.path().join(folder)).unwrap();
        }
        std::fs::write(root.path().join("lib/board.sh"), "x").unwrap();
        std::os::unix::fs::symlink("../lib/board.sh", root.path().join("rounds/read.sh")).unwrap();
        std::os::unix::fs::symlink("..", root.path().join("rounds/all")).unwrap();
        let named = ["rounds/read.sh", "rounds/all", "rounds", "none.sh"].map(PathBuf::from);
        let found = with_targets(root.path(), named.to_vec());
        assert!(
            found.contains(&PathBuf::from("lib/board.sh")) && named.iter().all(|path| found.contains(path)),
            "{found:?}"
        );
        assert!(!found.contains(&PathBuf::new()), "{found:?}");
    }

    #[test]
    fn what_scores_a_task_is_hidden_whatever_it_is_called() {
        let task = TaskPlan {
            scoring: Scoring::Checklist { checklist: "./judge/mine.json".to_owned() },
            spec: json!({"success": {"spec": {"program": "check.py::verify"}}}),
            ..plans::task(Digest::of(b"env"), Digest::of(b"files"))
        };
        let hidden = hidden(&task);
        for name in ["verifier.py", "vlm_checklist.json", "judge/mine.json", "check.py"] {
            assert!(hidden.contains(&PathBuf::from(name)), "{name} is seen: {hidden:?}");
        }
        let both =
            Scoring::Both { file: "other.py".to_owned(), function: "f".to_owned(), checklist: "list.json".to_owned() };
        let hidden = super::hidden(&TaskPlan { scoring: both, ..task.clone() });
        assert!(hidden.contains(&PathBuf::from("other.py")) && hidden.contains(&PathBuf::from("list.json")));
        // As a spec writes it whose first name is empty.
        for named in [json!({"program": "", "target": "other.py::verify"}), json!({"target": " other.py ::verify"})] {
            let spec = json!({"success": {"mode": "multi", "spec": named}});
            let scoring = Scoring::None { reason: "nothing scores it".to_owned() };
            let hidden = super::hidden(&TaskPlan { scoring, spec, ..task.clone() });
            assert!(hidden.contains(&PathBuf::from("other.py")), "{hidden:?}");
        }
        // Also where no judge looks at it.
        let mode = "vlm_checklist";
        for scoring in [
            Scoring::None { reason: "no judge".to_owned() },
            Scoring::Program { file: "check.py".to_owned(), function: "verify".to_owned() },
        ] {
            for spec in [json!("judge/mine.json"), json!({"vlm_checklist": {"checklist_path": "./judge/mine.json"}})] {
                let spec = json!({"success": {"mode": mode, "spec": spec}});
                let hidden = super::hidden(&TaskPlan { scoring: scoring.clone(), spec, ..task.clone() });
                assert!(hidden.contains(&PathBuf::from("judge/mine.json")), "{hidden:?}");
            }
        }
    }
}

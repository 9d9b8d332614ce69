//! Plans: what a run needs of its benchmark, frozen when it was submitted.
//!
//! A plan names files by digest only, so an edited clone, or one that a node does not
//! see, changes nothing. Plans are stored and delivered as blobs of JSON.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agent::{AgentPlan, AgentSpec, AuditPlan};
use crate::budget::{EpisodeBudget, RunBudgets, StallPolicy};
use crate::digest::{Digest, DigestBuilder};
use crate::ids::TaskName;
use crate::judge::JudgePlan;
use crate::money::Money;
use crate::resume::ResumePolicy;
use crate::rounds::RoundsPlan;
use crate::snapshot::SnapshotPolicy;
use crate::time::Millis;

/// The size of the pieces that files are stored and sent in, in bytes.
pub const CHUNK_BYTES: usize = 2 * 1024 * 1024;

/// One file, folder or link of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeEntry {
    /// The path below the tree's root, with `/` between its parts; never absolute, no `..`.
    pub path: String,
    /// What is there.
    #[serde(flatten)]
    pub node: TreeNode,
}

/// What a tree holds at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum TreeNode {
    /// A folder.
    Dir,
    /// A file, in pieces of [`CHUNK_BYTES`], each a blob.
    File {
        /// Whether it may be executed.
        executable: bool,
        /// Its size in bytes.
        size: u64,
        /// The blobs that make it up, in order.
        chunks: Vec<Digest>,
    },
    /// A symbolic link.
    Link {
        /// Where it points, as written.
        target: String,
    },
}

/// A tree of files: the manifest of a bundle, itself a blob of JSON, sorted by path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// The entries, sorted by path; parents come before what is in them.
    pub entries: Vec<TreeEntry>,
}

/// A folder of the benchmark that is mounted into the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPlan {
    /// The absolute path inside the sandbox.
    pub target: String,
    /// The tree that is found there.
    pub tree: Digest,
    /// Whether the sandbox gets a copy of its own that it may write to.
    pub writable: bool,
}

/// An account that hooks may rely on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountPlan {
    /// Its name.
    pub name: String,
    /// Its numeric id, if the spec asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Groups beside its own.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Its login shell.
    pub shell: String,
    /// Whether `sudo` works without a password.
    pub sudo: bool,
    /// Its password, which everybody who reads the benchmark knows; none is set if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// Variables of its login environment.
    #[serde(default)]
    pub env_vars: std::collections::BTreeMap<String, String>,
}

/// What an env asks of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Processors, in thousandths.
    pub cpu_millis: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Graphics processors.
    pub gpus: u32,
}

/// What becomes of a layer whose hook exits with a failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookPolicy {
    /// It makes no layer: a fault with the end of its log.
    #[default]
    Strict,
    /// It passes, and every verdict that rests on it says so.
    Tolerate,
}

/// An env as a run needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvPlan {
    /// The env's folder name.
    pub name: String,
    /// The `id` of env.json, shown to verifiers.
    pub id: String,
    /// What it asks of a node.
    pub resources: Resources,
    /// Pixels across.
    pub width: u16,
    /// Pixels down.
    pub height: u16,
    /// Whether the sandbox has a way out to the network.
    pub net: bool,
    /// Mounts, `/workspace/tasks` not among them: that is made for each task.
    pub mounts: Vec<MountPlan>,
    /// Where the tasks are seen inside, if the env mounts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks_target: Option<String>,
    /// Accounts.
    pub accounts: Vec<AccountPlan>,
    /// The hook whose result is the install layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_start: Option<String>,
    /// The hook whose result is the configure layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_start: Option<String>,
    /// The hook that runs before each task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset: Option<String>,
    /// The env's own folder without its tasks, for verifiers.
    pub files: Digest,
    /// What becomes of a layer whose hook fails.
    #[serde(default)]
    pub hook_policy: HookPolicy,
    /// The layers that its episodes have to stand on, base included; whatever has the right
    /// keys if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pins: Vec<LayerPin>,
}

/// A layer that an earlier run stood on and that is to be used again, to the byte: what a hook
/// installs differs from day to day, so the key alone does not say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerPin {
    /// Which of the env's layers.
    pub kind: LayerKind,
    /// Its key; for the base, its content.
    pub key: Digest,
    /// The digest of its file; its key where its hook runs again for each attempt.
    pub content: Digest,
}

/// How a task is scored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Scoring {
    /// A Python function of the task's own folder.
    Program {
        /// The file, relative to the task's folder.
        file: String,
        /// The function in it.
        function: String,
    },
    /// A judge, by a checklist of the task's own folder.
    Checklist {
        /// The file, relative to the task's folder.
        checklist: String,
    },
    /// Both: the judge decides, and what the program finds is kept beside it.
    Both {
        /// The file of the program, relative to the task's folder.
        file: String,
        /// The function in it.
        function: String,
        /// The file of the checklist.
        checklist: String,
    },
    /// The assertions of the task's own rounds.
    Rounds,
    /// Nothing trustworthy scores it; the episode is settled as unverified.
    None {
        /// Why: no verifier, a stub, a mode that is not understood.
        reason: String,
    },
}

/// A task as a run needs it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskPlan {
    /// Its name.
    pub name: TaskName,
    /// The `id` of task.json, shown to verifiers.
    pub id: String,
    /// What the agent is asked to do.
    pub description: String,
    /// Its env: the blob of an [`EnvPlan`].
    pub env: Digest,
    /// The task's whole folder; what the sandbox sees of it is a view without secrets.
    pub files: Digest,
    /// The hook that prepares the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_task: Option<String>,
    /// A further script that runs after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_script: Option<String>,
    /// The hook that exports what the verifier reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_task: Option<String>,
    /// How long the task's hooks may run.
    pub hook_time: Millis,
    /// How long the screen is left alone after the export hook, at most.
    pub export_settle: Millis,
    /// How it is scored.
    pub scoring: Scoring,
    /// The `metadata` of task.json, for the verifier.
    pub metadata: Value,
    /// The whole of task.json, for the verifier.
    pub spec: Value,
    /// The splits of the benchmark that list it, for tables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub splits: Vec<String>,
    /// Its rounds, if it is a sequence of them; their hooks are among its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<RoundsPlan>,
    /// The hook that opens its programs again over files that were saved, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<String>,
}

/// An episode as a worker gets it: the blob that a lease names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpisodePlan {
    /// The task: the blob of a [`TaskPlan`].
    pub task: Digest,
    /// The agent, ready to start.
    pub agent: AgentPlan,
    /// Which repetition this is, from 0.
    pub sample: u32,
    /// What it may use.
    pub budget: EpisodeBudget,
    /// A number for whatever is random in the episode.
    pub seed: u64,
    /// The models that it may call: the blob of a [`GatewayPlan`](crate::endpoint::GatewayPlan).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Digest>,
    /// Who looks when the agent says that it is done; nobody if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<AuditPlan>,
    /// What is done about steps without effect.
    #[serde(default)]
    pub stall: StallPolicy,
    /// Who judges by a checklist, and answers verifiers that ask a model; nobody if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judge: Option<JudgePlan>,
    /// When its sandbox's top is saved.
    #[serde(default, skip_serializing_if = "SnapshotPolicy::is_off")]
    pub snapshots: SnapshotPolicy,
}

/// One episode of a run as the coordinator keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpisodeEntry {
    /// The task.
    pub task: TaskName,
    /// The agent: an index into [`RunPlan::agents`].
    pub agent: u32,
    /// Which repetition this is, from 0.
    pub sample: u32,
    /// The blob of the [`EpisodePlan`].
    pub plan: Digest,
    /// The env: an index into [`RunPlan::envs`].
    pub env: u32,
    /// The most dollars that all of its attempts may spend together; no cap if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cost: Option<Money>,
}

/// An env of a run as the coordinator keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvEntry {
    /// The env's folder name.
    pub name: String,
    /// The blob of the [`EnvPlan`].
    pub plan: Digest,
    /// What an episode in it asks of a node: what the env asks for, and where an agent of the
    /// run is a program with a sandbox of its own, the memory of that one too.
    pub resources: Resources,
}

/// How often faults are tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// The most attempts of one episode that end in a fault of its own; losses that are
    /// nobody's fault (preemption) do not count.
    pub max_attempts: u32,
    /// How many attempts of an episode may be cut off by the end of an allocation, each of
    /// which had at least half of the longest walltime on offer, before it is set aside.
    #[serde(default = "max_cut_offs")]
    pub max_cut_offs: u32,
    /// The first wait before another attempt; doubled with each further one.
    pub backoff: Millis,
    /// What is done about an attempt that was cut off.
    #[serde(default, skip_serializing_if = "ResumePolicy::is_default")]
    pub resume: ResumePolicy,
    /// When tops are saved for that.
    #[serde(default, skip_serializing_if = "SnapshotPolicy::is_off")]
    pub snapshots: SnapshotPolicy,
}

/// What held for every run before it could be said.
const fn max_cut_offs() -> u32 {
    3
}

/// What a person asked for, frozen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunPlan {
    /// A name for people.
    pub name: String,
    /// Where the benchmark was, for people; nothing is read from there again.
    pub benchmark: String,
    /// The agents.
    pub agents: Vec<AgentSpec>,
    /// The envs.
    pub envs: Vec<EnvEntry>,
    /// The episodes, in the order in which they are started.
    pub episodes: Vec<EpisodeEntry>,
    /// How faults are tried again.
    pub retry: RetryPolicy,
    /// Caps on dollars over more than one episode.
    #[serde(default, skip_serializing_if = "RunBudgets::is_default")]
    pub budgets: RunBudgets,
    /// The models that it may call: the blob of a [`GatewayPlan`](crate::endpoint::GatewayPlan).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Digest>,
    /// When samples of a task are enough; all of them are run if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
}

/// Samples of a task are begun, one after another for each agent, only while it has fewer
/// successes than this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Until {
    /// How many samples have to pass.
    pub successes: u32,
}

/// The first part of every layer key: what the bytes of a layer depend on beside the
/// hook and its files. Bumped when the meaning of a layer's content changes.
pub const LAYER_FORMAT: &str = "longhaul-layer-2";

/// Which of an env's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// An image: what every env stands on.
    Base,
    /// What the pre_start hook leaves.
    Install,
    /// What the post_start hook leaves.
    Configure,
}

impl LayerKind {
    /// The name used in keys, tables and files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Install => "install",
            Self::Configure => "configure",
        }
    }
}

/// The key of a layer: a digest over every input of its content.
///
/// `parent` is the content digest of the base image for an install layer, and the key
/// of the install layer (or that digest, where there is none) for a configure layer;
/// so a changed install script changes both. Tasks are hidden from env hooks and are
/// not part of the key: otherwise an edited verifier would rebuild an env.
#[must_use]
pub fn layer_key(kind: LayerKind, parent: &Digest, arch: &str, overlay_driver: &str, env: &EnvPlan) -> Digest {
    let hook = match kind {
        LayerKind::Base => None,
        LayerKind::Install => env.pre_start.as_deref(),
        LayerKind::Configure => env.post_start.as_deref(),
    };
    let mut builder = DigestBuilder::new(LAYER_FORMAT)
        .field("kind", kind.name())
        .field("parent", parent.as_bytes())
        .field("arch", arch)
        .field("overlay", overlay_driver)
        .field("hook", hook.unwrap_or_default())
        .field("screen", format!("{}x{}", env.width, env.height))
        .field("net", if env.net { "yes" } else { "no" });
    for mount in &env.mounts {
        builder = builder
            .field("mount", &mount.target)
            .field("writable", if mount.writable { "yes" } else { "no" })
            .field("tree", mount.tree.as_bytes());
    }
    for account in &env.accounts {
        // Its JSON is the canonical text of an account: fields in declared order, maps sorted.
        builder = builder.field("account", serde_json::to_string(account).unwrap_or_default());
    }
    builder.field("policy", format!("{:?}", env.hook_policy)).finish()
}

//! Provenance: what a verdict rests on, by digest, and in what two episodes differ.

use std::collections::BTreeSet;

use longhaul_core::agent::{AgentPlan, AuditPlan};
use longhaul_core::budget::{EpisodeBudget, StallPolicy};
use longhaul_core::call::CallRecord;
use longhaul_core::digest::Digest;
use longhaul_core::ids::AttemptId;
use longhaul_core::imported::ImportedEpisode;
use longhaul_core::judge::JudgePlan;
use longhaul_core::notes::LayerUse;
use longhaul_core::plan::{LayerKind, Scoring};
use longhaul_core::time::Timestamp;
use longhaul_store::AttemptRecord;
use serde::Serialize;

use super::plans::{Frozen, json_digest};

/// What a verdict rests on. What is not known is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Provenance {
    /// The spec of the task: the content of task.json.
    pub task: Option<Digest>,
    /// The task's files beside spec, verifier and checklist: its hooks, and what they bring.
    pub scripts: Option<Digest>,
    /// How it was scored, in words.
    pub scoring: Option<String>,
    /// The verifier's file.
    pub verifier: Option<Digest>,
    /// The checklist's file.
    pub checklist: Option<Digest>,
    /// What was asked of the env: screen, network, resources, accounts, mounts, hooks.
    pub env: Option<Digest>,
    /// The env's own folder without its tasks.
    pub env_files: Option<Digest>,
    /// The layers it stood on, base first.
    pub layers: Vec<LayerUse>,
    /// Why the configure hook ran for this attempt in place of its layer, if it did.
    pub configure_ran: Option<String>,
    /// Who judges by the checklist, and how.
    pub judge: Option<JudgePlan>,
    /// The agent with its settings.
    pub agent: Option<AgentPlan>,
    /// A digest of the agent's settings.
    pub agent_settings: Option<Digest>,
    /// Who looks when the agent says that it is done.
    pub audit: Option<AuditPlan>,
    /// What is done about steps without effect.
    pub stall: Option<StallPolicy>,
    /// What it might use.
    pub budget: Option<EpisodeBudget>,
    /// A digest of the prices of its models.
    pub prices: Option<Digest>,
    /// The date of the price table.
    pub prices_of: Option<String>,
    /// The endpoints: name, vendor and protocol.
    pub endpoints: Vec<String>,
    /// The models that answered, as their vendors name them, with the vendors' fingerprints.
    pub models: BTreeSet<String>,
    /// The version of the program that ran it.
    pub version: Option<String>,
    /// The number behind whatever was random.
    pub seed: Option<u64>,
    /// The attempt that settled it, or the last one.
    pub attempt: Option<AttemptId>,
    /// Its node.
    pub node: Option<String>,
    /// Its worker.
    pub worker: Option<String>,
    /// When its lease was granted.
    pub started: Option<Timestamp>,
    /// When its end was accepted.
    pub finished: Option<Timestamp>,
    /// What is known of it, if it was imported: nothing else is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imported: Option<ImportedEpisode>,
}

/// A part of the provenance whose difference makes a comparison doubtful.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The spec of the task.
    Task,
    /// The task's hooks and files.
    Scripts,
    /// How it is scored, or the verifier's file.
    Verifier,
    /// The checklist.
    Checklist,
    /// Who judges by it, and how.
    Judge,
    /// The env, or its files.
    Env,
    /// The base image.
    Base,
    /// What was installed.
    Install,
    /// What was configured.
    Configure,
    /// Budgets, and what is done about stalls.
    Budget,
    /// Prices.
    Prices,
    /// The program's version.
    Version,
    /// The agent's settings.
    Agent,
    /// The models that answered.
    Models,
}

impl Part {
    /// The words for it in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Task => "task.json",
            Self::Scripts => "hooks and files of the task",
            Self::Verifier => "verifier",
            Self::Checklist => "checklist",
            Self::Judge => "judge",
            Self::Env => "env",
            Self::Base => "base image",
            Self::Install => "install layer",
            Self::Configure => "configure layer",
            Self::Budget => "budget",
            Self::Prices => "prices",
            Self::Version => "version of longhaul",
            Self::Agent => "settings of the agent",
            Self::Models => "models that answered",
        }
    }

    /// Whether it is the agent's own: two agents are to differ in it.
    #[must_use]
    pub const fn is_agents(self) -> bool {
        matches!(self, Self::Agent | Self::Models)
    }
}

impl Provenance {
    pub(super) fn of(frozen: &Frozen, attempt: Option<&AttemptRecord>, calls: &[CallRecord]) -> Self {
        let mut found = Self::default();
        if let Some(task) = &frozen.task {
            found.task = json_digest(&task.plan.spec);
            found.scoring = Some(scoring(&task.plan.scoring));
            if let Some(files) = &task.files {
                found.scripts = Some(files.scripts);
                found.verifier = files.verifier;
                found.checklist = files.checklist;
            }
        }
        if let Some(env) = &frozen.env {
            found.env = Some(env.digest);
            found.env_files = Some(env.plan.files);
        }
        if let Some(episode) = &frozen.episode {
            found.agent_settings = json_digest(&episode.agent);
            found.agent = Some(episode.agent.clone());
            found.audit.clone_from(&episode.audit);
            found.judge.clone_from(&episode.judge);
            found.stall = Some(episode.stall);
            found.budget = Some(episode.budget);
            found.seed = Some(episode.seed);
        }
        if let Some(gateway) = &frozen.gateway {
            found.prices = json_digest(&gateway.prices);
            found.prices_of = Some(gateway.prices_of.clone());
            let endpoint = |plan: &longhaul_core::endpoint::EndpointPlan| {
                format!("{} ({}, {})", plan.name, plan.vendor, plan.protocol)
            };
            found.endpoints = gateway.endpoints.iter().map(endpoint).collect();
        }
        found.models = calls.iter().filter_map(model).collect();
        if let Some(imported) = &frozen.imported {
            found.attempt = attempt.map(|attempt| attempt.id);
            (found.started, found.finished) = (imported.started, imported.ended);
            found.seed = imported.seed.and_then(|seed| u64::try_from(seed).ok());
            found.imported = Some(imported.clone());
        } else if let Some(attempt) = attempt {
            found.attempt = Some(attempt.id);
            found.node = Some(attempt.hostname.clone());
            found.worker = Some(attempt.worker.to_string());
            found.started = Some(attempt.started);
            if let Some(finish) = &attempt.finish {
                found.finished = Some(finish.at);
                found.layers.clone_from(&finish.notes.layers);
                found.configure_ran.clone_from(&finish.notes.configure_ran);
                found.version = Some(finish.notes.version.clone()).filter(|version| !version.is_empty());
            }
        }
        found
    }

    /// The content of a layer; none where it stood on none, or it is not known.
    #[must_use]
    pub fn layer(&self, kind: LayerKind) -> Option<Digest> {
        self.layers.iter().find(|layer| layer.kind == kind).map(|layer| layer.content)
    }

    /// In which parts two episodes of one task differ. A part that is not known of one of them
    /// is no difference.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut compare = |part: Part, differs: bool| {
            if differs && !parts.contains(&part) {
                parts.push(part);
            }
        };
        compare(Part::Task, differ(&self.task, &other.task));
        compare(Part::Scripts, differ(&self.scripts, &other.scripts));
        // A file that is there on one side only is a difference: it is known that it is not there.
        let both_files = self.scripts.is_some() && other.scripts.is_some();
        compare(Part::Verifier, differ(&self.scoring, &other.scoring));
        compare(Part::Verifier, both_files && self.verifier != other.verifier);
        compare(Part::Checklist, both_files && self.checklist != other.checklist);
        compare(Part::Judge, self.agent.is_some() && other.agent.is_some() && self.judge != other.judge);
        compare(Part::Env, differ(&self.env, &other.env) || differ(&self.env_files, &other.env_files));
        for (part, kind) in [
            (Part::Base, LayerKind::Base),
            (Part::Install, LayerKind::Install),
            (Part::Configure, LayerKind::Configure),
        ] {
            compare(part, differ(&self.layer(kind), &other.layer(kind)));
        }
        compare(Part::Budget, differ(&self.budget, &other.budget) || differ(&self.stall, &other.stall));
        compare(Part::Prices, differ(&self.prices, &other.prices));
        compare(Part::Version, differ(&self.version, &other.version));
        compare(Part::Agent, differ(&self.agent_settings, &other.agent_settings));
        compare(Part::Agent, self.agent.is_some() && other.agent.is_some() && self.audit != other.audit);
        let answered = !self.models.is_empty() && !other.models.is_empty();
        compare(Part::Models, answered && self.models != other.models);
        parts
    }
}

fn differ<V: PartialEq>(one: &Option<V>, other: &Option<V>) -> bool {
    matches!((one, other), (Some(one), Some(other)) if one != other)
}

fn scoring(scoring: &Scoring) -> String {
    match scoring {
        Scoring::Program { file, function } => format!("program {file}::{function}"),
        Scoring::Checklist { checklist } => format!("checklist {checklist}"),
        Scoring::Both { file, function, checklist } => format!("checklist {checklist}, program {file}::{function}"),
        Scoring::Rounds => "rounds of the task".to_owned(),
        Scoring::None { reason } => format!("nothing: {reason}"),
    }
}

fn model(call: &CallRecord) -> Option<String> {
    let name = call.model_reported.as_ref()?;
    Some(match &call.fingerprint {
        Some(fingerprint) => format!("{name} {fingerprint}"),
        None => name.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Provenance {
        let layer = |kind| LayerUse {
            kind,
            key: Digest::of(b"key"),
            content: Digest::of(b"content"),
            built: false,
            tolerated_exit: None,
        };
        Provenance {
            task: Some(Digest::of(b"task")),
            scripts: Some(Digest::of(b"scripts")),
            verifier: Some(Digest::of(b"verifier")),
            env: Some(Digest::of(b"env")),
            layers: vec![layer(LayerKind::Base), layer(LayerKind::Install)],
            agent: Some(AgentPlan::Idle),
            prices: Some(Digest::of(b"prices")),
            version: Some("0.1.0".to_owned()),
            models: BTreeSet::from(["m 1".to_owned()]),
            ..Provenance::default()
        }
    }

    #[test]
    fn each_part_that_differs_is_named_once() {
        assert_eq!(known().differences(&known()), []);
        let other = Provenance {
            verifier: None,
            checklist: Some(Digest::of(b"checklist")),
            scoring: Some("another".to_owned()),
            prices: Some(Digest::of(b"raised")),
            models: BTreeSet::from(["m 2".to_owned()]),
            ..known()
        };
        let parts = known().differences(&other);
        assert_eq!(parts, [Part::Verifier, Part::Checklist, Part::Prices, Part::Models]);
        assert!(Part::Models.is_agents() && !Part::Prices.is_agents());
    }

    #[test]
    fn a_layer_that_was_built_anew_differs_though_its_key_is_the_same() {
        let mut other = known();
        other.layers[1].content = Digest::of(b"tomorrow's mirror");
        assert_eq!(known().differences(&other), [Part::Install]);
    }

    #[test]
    fn what_is_not_known_is_no_difference() {
        assert_eq!(known().differences(&Provenance::default()), []);
    }
}

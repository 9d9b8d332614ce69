//! What an episode's verdict rests on, by digest.

use longhaul_core::ids::EpisodeId;
use longhaul_core::time::Timestamp;
use longhaul_proto::v1;
use longhaul_report::Provenance;
use serde::Serialize;

use crate::client::Source;
use crate::error::CliError;
use crate::output::{self, Format, escape_line};
use crate::{reading, show};

/// What is said of what is not known.
const UNKNOWN: &str = "not known";

/// Shows it.
pub(super) async fn show(
    source: Source,
    id: EpisodeId,
    episode: v1::GetEpisodeResponse,
    format: Format,
) -> Result<(), CliError> {
    let view = reading::view(id, &episode)?;
    let title = format!("{id}  {}  {}, sample {}", view.task, view.agent, view.sample);
    let found = reading::blocking(source, move |source| longhaul_report::provenance(source, &view)).await??;
    match format {
        Format::Json => output::json(&found),
        Format::Human => output::data(&text(&title, &found)),
    }
    .map_err(CliError::Output)
}

fn text(title: &str, found: &Provenance) -> String {
    let digest = |digest: Option<longhaul_core::digest::Digest>| digest.map(|digest| digest.to_string());
    let at = |at: Option<Timestamp>| at.map(|at| show::time(at.0));
    let mut lines = vec![escape_line(title)];
    let mut line = |name: &str, value: Option<String>| {
        lines.push(format!("  {name:<16}{}", escape_line(value.as_deref().unwrap_or(UNKNOWN))));
    };
    if let Some(imported) = &found.imported {
        line("imported from", Some(format!("{}, {}", imported.imported.name(), imported.folder)));
        line("its env", imported.env_id.clone());
        line("its task", imported.task_id.clone());
        line("scored there by", imported.scored_by.clone());
        for note in &imported.notes {
            line("note", Some(note.clone()));
        }
    }
    line("task.json", digest(found.task));
    line("scripts", digest(found.scripts));
    line("scored by", found.scoring.clone());
    line("verifier", digest(found.verifier).or_else(|| absent(found)));
    line("checklist", digest(found.checklist).or_else(|| absent(found)));
    if let Some(judge) = &found.judge {
        line("judge", Some(compact(judge)));
    }
    line("env", digest(found.env));
    line("env files", digest(found.env_files));
    for layer in &found.layers {
        line(layer.kind.name(), Some(format!("{}  (key {})", layer.content, layer.key)));
    }
    if found.layers.is_empty() {
        line("layers", None);
    }
    if let Some(reason) = &found.configure_ran {
        line("configure ran", Some(reason.clone()));
    }
    line("agent", found.agent.as_ref().map(compact));
    line("settings", digest(found.agent_settings));
    if let Some(audit) = &found.audit {
        line("audited by", Some(compact(audit)));
    }
    line("budget", found.budget.as_ref().map(compact));
    line("on stalls", found.stall.as_ref().map(compact));
    for endpoint in &found.endpoints {
        line("endpoint", Some(endpoint.clone()));
    }
    if let Some(prices) = found.prices {
        let date = found.prices_of.clone().unwrap_or_default();
        line("prices", Some(format!("{prices}  (of {date})")));
    }
    for model in &found.models {
        line("model", Some(model.clone()));
    }
    line("longhaul", found.version.clone());
    line("seed", found.seed.map(|seed| seed.to_string()));
    line("attempt", found.attempt.map(|attempt| attempt.to_string()));
    line("node", found.node.clone());
    line("worker", found.worker.clone());
    line("started", at(found.started));
    line("ended", at(found.finished));
    lines.push(String::new());
    lines.join("\n")
}

/// Where the task's files are known, a file that is not among them is known not to be there.
fn absent(found: &Provenance) -> Option<String> {
    found.scripts.map(|_| "none".to_owned())
}

fn compact<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| UNKNOWN.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use longhaul_core::agent::AgentPlan;
    use longhaul_core::budget::{EpisodeBudget, StallPolicy};
    use longhaul_core::digest::Digest;
    use longhaul_core::notes::LayerUse;
    use longhaul_core::plan::LayerKind;
    use longhaul_core::time::Millis;

    use super::*;

    #[test]
    fn what_is_known_is_shown_whole_and_the_rest_as_not_known() {
        let layer = |kind, content: &[u8]| LayerUse {
            kind,
            key: Digest::of(b"key"),
            content: Digest::of(content),
            built: true,
            tolerated_exit: None,
        };
        let found = Provenance {
            task: Some(Digest::of(b"task")),
            scripts: Some(Digest::of(b"scripts")),
            scoring: Some("nothing: a stub".to_owned()),
            layers: vec![layer(LayerKind::Base, b"base"), layer(LayerKind::Install, b"install")],
            agent: Some(AgentPlan::Idle),
            budget: Some(EpisodeBudget::of(500, Millis(3_600_000))),
            stall: Some(StallPolicy::Report),
            models: BTreeSet::from(["evil\u{1b}[2J".to_owned()]),
            ..Provenance::default()
        };
        insta::assert_snapshot!(text("0abc/3  calc_env/sum  idle, sample 0", &found));
    }
}

//! `--dry-run`: what would run and what it needs; nothing is started or written.

use serde_json::json;

use super::pick::Wanted;
use crate::benchmark::{EnvPreview, OnRefusal, preview};
use crate::cli::RunArgs;
use crate::error::CliError;
use crate::output::{self, Format, Table, Tone, cut};
use crate::places;
use crate::settings::Settings;
use crate::units::{show_duration, show_size};

/// The most tasks that are listed.
const TASKS_SHOWN: usize = 20;

pub(super) fn show(wanted: &Wanted, args: &RunArgs, settings: &Settings) -> Result<(), CliError> {
    let envs = preview(&wanted.picked.benchmark, &wanted.picked.tasks);
    match args.format {
        Format::Json => output::json(&as_json(wanted, &envs)),
        Format::Human => output::data(&as_text(wanted, &envs, args, settings)?),
    }
    .map_err(CliError::Output)
}

fn as_json(wanted: &Wanted, envs: &[EnvPreview]) -> serde_json::Value {
    json!({
        "name": wanted.name,
        "episodes": wanted.episodes(),
        "tasks": wanted.picked.tasks,
        "refused": wanted.picked.refused.iter().map(|(task, reason)| json!({ "task": task, "reason": reason })).collect::<Vec<_>>(),
        "quarantined": wanted.picked.quarantined,
        "agents": wanted.agents.iter().map(|agent| agent.name()).collect::<Vec<_>>(),
        "samples": wanted.samples,
        "envs": envs.iter().map(|env| json!({
            "env": env.env,
            "tasks": env.tasks,
            "cpu_millis": env.resources.cpu_millis,
            "memory_mib": env.resources.memory_mib,
            "gpus": env.resources.gpus,
            "net": env.net,
            "needs": env.needs,
            "refused": env.refused,
        })).collect::<Vec<_>>(),
    })
}

fn as_text(wanted: &Wanted, envs: &[EnvPreview], args: &RunArgs, settings: &Settings) -> Result<String, CliError> {
    let colours = output::stdout_colours();
    let agents: Vec<&str> = wanted.agents.iter().map(crate::benchmark::Agent::name).collect();
    let limits = &wanted.limits;
    let steps = limits
        .steps
        .map_or_else(|| format!("as each task says, else {}", limits.default_steps), |steps| steps.to_string());
    let mut lines = vec![
        format!(
            "{} episodes: {} tasks x {} agents x {} samples",
            wanted.episodes(),
            wanted.picked.tasks.len(),
            agents.len(),
            wanted.samples
        ),
        format!("agents   {}", output::escape_line(&agents.join(", "))),
        format!("budget   steps: {steps}; time: {}", show_duration(limits.time)),
        format!("attempts at most {} that end in a fault of their own", wanted.retry.max_attempts),
    ];
    let venue = &args.venue;
    match &venue.coordinator {
        Some(access) => lines.push(format!("where    the coordinator of {}", access.display())),
        None => {
            lines.push(format!("store    {}", places::store(venue.store.as_deref(), settings)?.display()));
            lines.push(format!("layers   {}", places::layers(venue.place.layers.as_deref(), settings)?.display()));
        }
    }
    lines.push(String::new());
    let mut table = Table::new(&["env", "tasks", "cpus", "memory", "network", "needs", ""]);
    for env in envs {
        let needs: Vec<&str> = env.needs.iter().map(|need| need.name()).collect();
        let (verdict, tone) = match (&env.refused, wanted.on_refusal) {
            (None, _) => (String::new(), Tone::Plain),
            (Some(reason), OnRefusal::Fail) => (format!("cannot be run: {reason}"), Tone::Bad),
            (Some(reason), OnRefusal::PassOver) => (format!("left out: {reason}"), Tone::Warn),
            (Some(reason), OnRefusal::RunAnyway) => (format!("run all the same: {reason}"), Tone::Warn),
        };
        table.row([
            (env.env.clone(), Tone::Plain),
            (env.tasks.to_string(), Tone::Plain),
            (format!("{}", f64::from(env.resources.cpu_millis) / 1000.0), Tone::Plain),
            (show_size(u64::from(env.resources.memory_mib) << 20), Tone::Plain),
            (if env.net { "yes" } else { "no" }.to_owned(), Tone::Plain),
            (needs.join(", "), Tone::Plain),
            (verdict, tone),
        ]);
    }
    let mut text = lines.join("\n");
    text.push('\n');
    text.push_str(&table.render(colours));
    text.push('\n');
    for task in wanted.picked.tasks.iter().take(TASKS_SHOWN) {
        text.extend([&cut(&output::escape_line(&task.to_string()), 100), "\n"]);
    }
    if wanted.picked.tasks.len() > TASKS_SHOWN {
        text.extend([
            "and ",
            &(wanted.picked.tasks.len() - TASKS_SHOWN).to_string(),
            " more (--format json lists all)\n",
        ]);
    }
    Ok(text)
}

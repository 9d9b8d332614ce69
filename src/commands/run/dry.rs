//! `--dry-run`: what would run and what it needs; nothing is started or written.

use longhaul_core::budget::StallPolicy;
use longhaul_core::ids::TaskName;
use longhaul_core::judge::Verify;
use serde_json::json;

use super::cost::{Cost, Earlier, Likely, Most};
use super::pick::Wanted;
use crate::benchmark::{EnvPreview, OnRefusal, PassedOver, PlanError, Preset, RoundsInfo, preview, ready};
use crate::cli::RunArgs;
use crate::error::CliError;
use crate::output::{self, Format, Table, Tone, cut};
use crate::places;
use crate::runfile::show_stall;
use crate::settings::Settings;
use crate::show;
use crate::units::{show_duration, show_size};

/// The most tasks that are listed.
const TASKS_SHOWN: usize = 20;

pub(super) fn show(wanted: &Wanted, args: &RunArgs, settings: &Settings, earlier: &Earlier) -> Result<(), CliError> {
    let envs = preview(&wanted.picked.benchmark, &wanted.picked.tasks, wanted.gpus);
    let cost = Cost::of(wanted, earlier);
    match args.format {
        Format::Json => output::json(&as_json(wanted, &envs, &cost)),
        Format::Human => output::data(&as_text(wanted, &envs, args, settings, &cost)?),
    }
    .map_err(CliError::Output)
}

/// `--check`: that everything was checked, in a line.
pub(super) fn checked(wanted: &Wanted, format: Format) -> Result<(), CliError> {
    let (tasks, agents, samples) = (wanted.picked.tasks.len(), wanted.agents.len(), wanted.samples);
    ready(&wanted.picked.benchmark, &wanted.picked.tasks, &wanted.agents, &wanted.models)
        .map_err(|error| CliError::Plan(Box::new(error)))?;
    let envs = preview(&wanted.picked.benchmark, &wanted.picked.tasks, wanted.gpus);
    let refused: Vec<&EnvPreview> = envs.iter().filter(|env| env.refused.is_some()).collect();
    if let Some(env) = refused.first().filter(|_| wanted.on_refusal == OnRefusal::Fail) {
        let reason = env.refused.clone().unwrap_or_default();
        let passed_over = PassedOver { env: env.env.clone(), tasks: env.tasks, reason };
        return Err(CliError::Plan(Box::new(PlanError::Refused(vec![passed_over]))));
    }
    match format {
        Format::Json => output::json(
            &json!({ "episodes": wanted.episodes(), "tasks": tasks, "agents": agents, "samples": samples }),
        ),
        Format::Human => output::data(&format!(
            "checked: {} episodes: {tasks} tasks x {agents} agents x {samples} samples\n",
            wanted.episodes()
        )),
    }
    .map_err(CliError::Output)
}

fn as_json(wanted: &Wanted, envs: &[EnvPreview], cost: &Cost) -> serde_json::Value {
    json!({
        "name": wanted.name,
        "episodes": wanted.episodes(),
        "tasks": wanted.picked.tasks,
        "refused": wanted.picked.refused.iter().map(|(task, reason)| json!({ "task": task, "reason": reason })).collect::<Vec<_>>(),
        "quarantined": wanted.picked.quarantined,
        "rounds": rounds(wanted).iter().map(|(task, rounds)| json!({
            "task": task,
            "rounds": rounds.rounds,
            "assertions": rounds.assertions,
            "asks_judge": rounds.asks_judge,
            "caps_dollars": rounds.caps_dollars,
        })).collect::<Vec<_>>(),
        "agents": wanted.agents.iter().map(|agent| agent.name()).collect::<Vec<_>>(),
        "samples": wanted.samples,
        "preset": wanted.preset.map(Preset::name),
        "budget": budget_json(wanted),
        "verify": wanted.models.verify.name(),
        "judge": wanted.models.judge,
        "cost": {
            "most": most_json(cost.most),
            "likely": cost.likely.map(likely_json),
            "agents": cost.agents.iter().map(|agent| json!({
                "agent": agent.agent,
                "most": most_json(agent.most),
                "likely": agent.likely.map(likely_json),
            })).collect::<Vec<_>>(),
        },
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

/// The tasks that are sequences of rounds.
fn rounds(wanted: &Wanted) -> Vec<(&TaskName, RoundsInfo)> {
    let info = |name: &TaskName| wanted.picked.benchmark.task(name)?.1.state.as_ref().ok()?.rounds;
    wanted.picked.tasks.iter().filter_map(|name| Some((name, info(name)?))).collect()
}

/// What there is of rounds, in a line.
fn rounds_line(wanted: &Wanted) -> Option<String> {
    let found = rounds(wanted);
    let sum = |of: fn(&RoundsInfo) -> usize| found.iter().map(|(_, rounds)| of(rounds)).sum::<usize>();
    let asking = found.iter().filter(|(_, rounds)| rounds.asks_judge).count();
    let judge = match (asking, wanted.models.judge.is_some()) {
        (0, _) => String::new(),
        (_, true) => format!("; {asking} ask the judge"),
        (_, false) => format!("; {asking} ask a judge, and none is named: the run would be refused"),
    };
    let (rounds, assertions) = (sum(|rounds| rounds.rounds), sum(|rounds| rounds.assertions));
    (!found.is_empty())
        .then(|| format!("rounds   {} tasks in {rounds} rounds, {assertions} assertions{judge}", found.len()))
}

fn budget_json(wanted: &Wanted) -> serde_json::Value {
    let (limits, models) = (&wanted.limits, &wanted.models);
    json!({
        "steps": limits.steps,
        "default_steps": limits.default_steps,
        "time_millis": limits.time.0,
        "tokens": limits.tokens,
        "episode_dollars": limits.cost.map(show::dollars),
        "run_dollars": models.budgets.run.map(show::dollars),
        "judge_dollars": models.budgets.judge.map(show::dollars),
        "agent_dollars": (0_u32..).zip(&wanted.agents)
            .map(|(index, agent)| (agent.name().to_owned(), json!(models.budgets.agent(index).map(show::dollars))))
            .collect::<serde_json::Map<_, _>>(),
    })
}

fn most_json(most: Most) -> serde_json::Value {
    match most {
        Most::Nothing => json!({ "kind": "nothing" }),
        Most::Capped(money) => json!({ "kind": "capped", "dollars": show::dollars(money) }),
        Most::Steps(money) => json!({ "kind": "steps", "dollars": show::dollars(money) }),
        Most::Unbounded => json!({ "kind": "unbounded" }),
    }
}

fn likely_json(likely: Likely) -> serde_json::Value {
    json!({ "dollars": show::dollars(likely.total), "episodes": likely.episodes })
}

fn most_text(most: Most) -> String {
    match most {
        Most::Nothing => "nothing: no model is called".to_owned(),
        Most::Capped(money) => format!("at most {}", show::cents(money)),
        Most::Steps(money) => {
            format!("not capped: up to {} if every step is one call of the largest size", show::cents(money))
        }
        Most::Unbounded => "not capped, and nothing bounds it".to_owned(),
    }
}

fn likely_text(likely: Likely) -> String {
    let episodes = if likely.episodes == 1 { "episode" } else { "episodes" };
    format!("likely {}, by {} earlier {episodes} in the store", show::cents(likely.total), likely.episodes)
}

/// What may be spent, in lines.
fn money_lines(wanted: &Wanted, cost: &Cost) -> Vec<String> {
    let (limits, models) = (&wanted.limits, &wanted.models);
    let mut lines = Vec::new();
    let mut scopes: Vec<String> = limits.cost.iter().map(|cap| format!("{cap} an episode")).collect();
    for (index, agent) in (0_u32..).zip(&wanted.agents) {
        let cap = models.budgets.agent(index);
        scopes.extend(cap.map(|cap| format!("{cap} the agent {}", output::escape_line(agent.name()))));
    }
    scopes.extend(models.budgets.run.map(|cap| format!("{cap} the run")));
    scopes.extend(models.budgets.judge.map(|cap| format!("{cap} the judge")));
    if !scopes.is_empty() {
        lines.push(format!("dollars  {}", scopes.join("; ")));
    }
    if let Some(gateway) = &models.gateway {
        lines.push(format!("prices   of {}", output::escape_line(&gateway.prices_of)));
        let likely = cost.likely.map(|likely| format!("; {}", likely_text(likely))).unwrap_or_default();
        lines.push(format!("cost     {}{likely}", most_text(cost.most)));
        if cost.agents.len() > 1 {
            for agent in &cost.agents {
                let likely = agent.likely.map(|likely| format!("; {}", likely_text(likely))).unwrap_or_default();
                lines.push(format!(
                    "         {}: {}{likely}",
                    output::escape_line(&agent.agent),
                    most_text(agent.most)
                ));
            }
        }
    }
    if let Some(audit) = &models.audit {
        let model = output::escape_line(&format!("{}:{}", audit.endpoint, audit.model));
        lines.push(format!("audit    by {model}, at most {} in an episode", audit.most));
    }
    if let Some(judge) = &models.judge {
        let model = output::escape_line(&format!("{}:{}", judge.endpoint, judge.model));
        let cap = if models.budgets.judge.is_some() { "" } else { ", which nothing caps: use --judge-budget" };
        lines.push(format!("judge    by {model} ({} of them), paid apart{cap}", judge.judges));
    }
    if models.verify != Verify::default() {
        lines.push(format!("verify   {}", models.verify));
    }
    if models.stall != StallPolicy::default() {
        lines.push(format!("stalls   {}", show_stall(models.stall)));
    }
    if let Some(until) = models.until {
        lines.push(format!("until    {} samples of a task have passed; no further one is begun then", until.successes));
    }
    lines
}

fn as_text(
    wanted: &Wanted,
    envs: &[EnvPreview],
    args: &RunArgs,
    settings: &Settings,
    cost: &Cost,
) -> Result<String, CliError> {
    let colours = output::stdout_colours();
    let agents: Vec<&str> = wanted.agents.iter().map(crate::benchmark::Agent::name).collect();
    let limits = &wanted.limits;
    let steps = limits
        .steps
        .map_or_else(|| format!("as each task says, else {}", limits.default_steps), |steps| steps.to_string());
    let tokens = limits.tokens.map(|tokens| format!("; tokens: {tokens}")).unwrap_or_default();
    let mut lines = vec![
        format!(
            "{} episodes: {} tasks x {} agents x {} samples",
            wanted.episodes(),
            wanted.picked.tasks.len(),
            agents.len(),
            wanted.samples
        ),
        format!("agents   {}", output::escape_line(&agents.join(", "))),
        format!("budget   steps: {steps}; time: {}{tokens}", show_duration(limits.time)),
        format!("attempts at most {} that end in a fault of their own", wanted.retry.max_attempts),
    ];
    if let Some(preset) = wanted.preset {
        lines.insert(1, format!("preset   {}", preset.name()));
    }
    lines.extend(rounds_line(wanted));
    lines.extend(money_lines(wanted, cost));
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

//! What is said of findings, as tables and facts: the same numbers in every form.

use longhaul_core::measure::{
    At, By, Comparison, Conclusion, CurvePoint, Endings, EqualBudget, FailureClass, Group, GroupCoverage, Treatment,
    Workflow,
};
use longhaul_core::money::Money;
use longhaul_core::stats::{Agreement, Interval};
use longhaul_core::text::named;

use super::sheet::{Facts, Sheet};
use super::words::{
    NOTHING, chance, count, dollars, ends, hours, many, odds, of, or_nothing, over, percent, plain_ends, point_ends,
    points, seconds, some,
};
use crate::findings::{Findings, SideFound, Together};
use crate::side::Difference;

/// How many names of tasks a line has.
const NAMED: usize = 5;

/// The sides: what they are, and how their episodes were settled.
pub(super) fn sides(found: &Findings) -> Sheet {
    let mut sheet = Sheet::new(&[
        "agent",
        "run",
        "episodes",
        "tasks",
        "envs",
        "passed",
        "failed",
        "unverified",
        "faulted",
        "cancelled",
        "not started",
        "unsettled",
    ]);
    for side in &found.sides {
        let measures = &side.measures;
        let tally = &measures.tally;
        sheet.rows.push(vec![
            side.label.clone(),
            side.run.to_string(),
            side.episodes.to_string(),
            measures.tasks.to_string(),
            measures.envs.to_string(),
            tally.passed.to_string(),
            tally.failed.to_string(),
            some(tally.unverified),
            faults(side),
            some(tally.cancelled),
            some(tally.not_started),
            some(tally.unsettled),
        ]);
    }
    sheet.without_empty()
}

fn faults(side: &SideFound) -> String {
    if side.faults.is_empty() {
        return NOTHING.to_owned();
    }
    let classes: Vec<String> = side.faults.iter().map(|(class, count)| format!("{count} {class}")).collect();
    classes.join(", ")
}

/// What was reached: rates, what faults could change of them, and scores.
pub(super) fn reached(found: &Findings) -> Sheet {
    let mut sheet = Sheet::new(&[
        "agent",
        "passed",
        "pass rate",
        "Wilson",
        "resampled",
        "if faults failed, passed",
        "score",
        "score resampled",
        "of k samples any, all",
        "checks",
        "workflows",
    ]);
    for side in &found.sides {
        let measures = &side.measures;
        let (rate, score) = (measures.pass_rate.as_ref(), measures.score.as_ref());
        // Where we found everything out, there is nothing to bound.
        let bounds = measures.pass_bounds.filter(|_| measures.tally.unknown() > 0);
        let workflow = measures.workflow.as_ref();
        sheet.rows.push(vec![
            side.label.clone(),
            or_nothing(rate, of),
            or_nothing(rate, |rate| percent(rate.value)),
            or_nothing(rate.and_then(|rate| rate.wilson), ends),
            or_nothing(rate.and_then(|rate| rate.clustered), |clustered| ends(clustered.interval)),
            or_nothing(bounds, ends),
            or_nothing(score, |score| format!("{:.1}", score.value)),
            or_nothing(score.and_then(|score| score.clustered), |clustered| plain_ends(clustered.interval)),
            or_nothing(measures.samples.iter().rfind(|samples| samples.k > 1), |samples| {
                format!("{}: {}, {}", samples.k, percent(samples.any), percent(samples.all))
            }),
            or_nothing(workflow.and_then(|workflow| workflow.assertions.as_ref()), |rate| percent(rate.value)),
            or_nothing(workflow, |workflow| percent(workflow.full.value)),
        ]);
    }
    sheet.without_empty()
}

/// What it took: for an episode, and for a success.
pub(super) fn took(found: &Findings) -> Sheet {
    let mut sheet = Sheet::new(&[
        "agent",
        "dollars",
        "$ / episode",
        "$ / success",
        "judging",
        "unconfirmed",
        "steps / episode",
        "steps / success",
        "time / episode",
        "time / success",
        "node-hours",
        "hours / success",
    ]);
    for side in &found.sides {
        let amounts = &side.measures.amounts;
        let paid = |money: Money| Some(money).filter(|money| !money.is_zero());
        sheet.rows.push(vec![
            side.label.clone(),
            or_nothing(amounts.dollars.known(), dollars),
            or_nothing(amounts.dollars.per_episode, dollars),
            or_nothing(amounts.dollars.per_success, dollars),
            or_nothing(paid(amounts.judge_dollars), dollars),
            or_nothing(paid(amounts.unconfirmed), dollars),
            or_nothing(amounts.steps.per_episode, count),
            or_nothing(amounts.steps.per_success, count),
            or_nothing(amounts.seconds.per_episode, seconds),
            or_nothing(amounts.seconds.per_success, seconds),
            or_nothing(amounts.node_hours.known(), hours),
            or_nothing(amounts.node_hours.per_success, hours),
        ]);
    }
    sheet.without_empty()
}

/// How episodes ended.
pub(super) fn ended(found: &Findings) -> Sheet {
    let mut sheet = Sheet::new(&[
        "agent",
        "by the agent",
        "steps",
        "dollars",
        "tokens",
        "time",
        "stalls",
        "not recorded",
        "left too early",
        "resumed",
        "steps without effect",
    ]);
    for side in &found.sides {
        let endings = &side.measures.endings;
        sheet.rows.push(vec![
            side.label.clone(),
            endings.agent.to_string(),
            some(endings.steps),
            some(endings.budget),
            some(endings.tokens),
            some(endings.time),
            some(endings.stall),
            some(endings.unknown),
            some(endings.early),
            some(endings.resumed),
            stalls(endings),
        ]);
    }
    sheet.without_empty()
}

/// How far judges agree with each other, and with programs.
pub(super) fn judges(found: &Findings) -> Sheet {
    let mut sheet = Sheet::new(&[
        "agent",
        "items",
        "same mark",
        "alpha of items",
        "episodes",
        "same verdict",
        "alpha of verdicts",
        "with a program",
        "same as it",
        "kappa",
    ]);
    for side in &found.sides {
        let Some(judges) = &side.judges else { continue };
        let share = |agreement: &Agreement| percent(agreement.same);
        let alpha = |agreement: Option<Agreement>| or_nothing(agreement.and_then(|one| one.alpha), coefficient);
        sheet.rows.push(vec![
            side.label.clone(),
            or_nothing(judges.items.as_ref(), |items| items.units.to_string()),
            or_nothing(judges.items.as_ref(), share),
            alpha(judges.items),
            or_nothing(judges.verdicts.as_ref(), |verdicts| verdicts.units.to_string()),
            or_nothing(judges.verdicts.as_ref(), share),
            alpha(judges.verdicts),
            or_nothing(judges.program, |program| program.episodes.to_string()),
            or_nothing(judges.program, |program| percent(program.same as f64 / program.episodes as f64)),
            or_nothing(judges.program.and_then(|program| program.kappa), coefficient),
        ]);
    }
    sheet.without_empty()
}

fn coefficient(value: f64) -> String {
    format!("{value:+.2}")
}

fn stalls(endings: &Endings) -> String {
    let (stalls, steps) = (endings.failed_stalls + endings.passed_stalls, endings.failed_steps + endings.passed_steps);
    if steps == 0 { NOTHING.to_owned() } else { percent(stalls as f64 / steps as f64) }
}

/// What is known of the difference of two sides, in one line.
pub(super) fn conclusion(pair: &Comparison) -> String {
    let over_envs = match pair.over_envs {
        Some(true) => ", also over envs",
        Some(false) => "; over other envs it may be otherwise",
        None => "",
    };
    match pair.conclusion {
        Conclusion::A => format!("{} passes more{over_envs}", pair.a),
        Conclusion::B => format!("{} passes more{over_envs}", pair.b),
        Conclusion::Alike => "alike: if there is a difference, it is too small to matter".to_owned(),
        Conclusion::NotEnough => "not enough episodes to tell".to_owned(),
    }
}

/// Two sides, line by line.
pub(super) fn pair(pair: &Comparison, margin: f64) -> Facts {
    let mut facts: Facts = Vec::new();
    let reach = &pair.reach;
    let common = many(pair.common_tasks, "common task");
    facts.push(("compared", format!("{common}; {} in which both have a verdict", many(reach.pairs, "pair"))));
    if let Some(pass) = &pair.pass {
        let resampled = pass
            .clustered
            .as_ref()
            .map(|clustered| format!("; resampled {} {}", over(clustered), point_ends(clustered.interval)));
        facts.push((
            "pass rate",
            format!(
                "{} against {}: {} points ({}{})",
                percent(pass.a.value),
                percent(pass.b.value),
                points(pass.difference),
                point_ends(pass.newcombe),
                resampled.unwrap_or_default()
            ),
        ));
        let table = &pass.table;
        facts.push((
            "pairs",
            format!(
                "both passed {}, {} alone {}, {} alone {}, neither {}",
                table.both, pair.a, table.a_only, pair.b, table.b_only, table.neither
            ),
        ));
        let corrected = pair
            .adjusted
            .map(|adjusted| format!(", {} corrected for {}", chance(adjusted.holm), many(adjusted.of, "comparison")));
        facts.push(("exact test", format!("{}{}", chance(pass.test.p), corrected.unwrap_or_default())));
        let effect = format!("odds ratio {}, Cohen's h {:+.2}", odds(pass.odds_ratio), pass.cohen_h);
        facts.push(("effect", effect));
        if pass.unknown > 0 {
            let unknown = many(pass.unknown, "more pair");
            let bounds = point_ends(pass.bounds);
            facts.push(("faults", format!("{unknown} had a fault or no verdict: with all of them, {bounds} points")));
        }
    }
    if let Some(score) = &pair.score {
        let interval = score.clustered.map(|clustered| {
            let Interval { low, high } = clustered.interval;
            format!(" ({low:+.1} to {high:+.1} resampled {})", over(&clustered))
        });
        let effect = score.standardized.map(|effect| format!(", {effect:+.2} standard deviations"));
        facts.push((
            "score",
            format!(
                "{:.1} against {:.1}: {:+.1}{}{}",
                score.a.value,
                score.b.value,
                score.difference,
                interval.unwrap_or_default(),
                effect.unwrap_or_default()
            ),
        ));
    }
    if let Some(workflow) = &pair.workflow {
        let full = |flow: &Workflow| percent(flow.full.value);
        let checks = |flow: &Workflow| or_nothing(flow.assertions.as_ref(), |rate| percent(rate.value));
        let order = if workflow.order_differs { "; they order the agents differently" } else { "" };
        facts.push((
            "workflows",
            format!(
                "full {} against {}, checks {} against {}{order}",
                full(&workflow.a),
                full(&workflow.b),
                checks(&workflow.a),
                checks(&workflow.b)
            ),
        ));
    }
    facts.extend(stopped(pair));
    // Where nobody paid, there is nothing to hold equal.
    if let Some(equal) = pair.equal_dollars.as_ref().filter(|equal| equal.a.at != At::Dollars(Money::ZERO)) {
        facts.push(("equal dollars", equal_dollars(equal)));
    }
    facts.push(("cost", cost(pair)));
    facts.push(("could be seen", could_be_seen(pair, margin)));
    facts.push(("known", conclusion(pair)));
    facts
}

/// Episodes that a budget stopped, in three ways.
fn stopped(pair: &Comparison) -> Facts {
    let Some(stopped) = pair.stopped.filter(|stopped| stopped.a + stopped.b > 0) else { return Vec::new() };
    let treated = |treatment: &Treatment| match (treatment.a, treatment.b, treatment.interval) {
        (Some(a), Some(b), Some(interval)) => format!(
            "{} against {}, {} points, {} ({})",
            percent(a),
            percent(b),
            point_ends(interval),
            chance(treatment.test.p),
            many(treatment.table.pairs(), "pair")
        ),
        _ => "no pair is left".to_owned(),
    };
    vec![
        ("stopped by budgets", format!("{} of {}, {} of {}", stopped.a, pair.a, stopped.b, pair.b)),
        ("  as failed", treated(&stopped.as_failed)),
        (
            "  as unknown",
            format!(
                "{} % against {} %, {} points",
                ends(stopped.censored_a),
                ends(stopped.censored_b),
                point_ends(stopped.censored_difference)
            ),
        ),
        ("  left out", treated(&stopped.left_out)),
    ]
}

fn equal_dollars(equal: &EqualBudget) -> String {
    let at = match equal.a.at {
        At::Dollars(money) => dollars(money),
        At::Steps(steps) => format!("{steps} steps"),
    };
    let reached = |point: &CurvePoint| {
        if point.unknown == 0 {
            percent(point.low)
        } else {
            format!("{} %", ends(Interval { low: point.low, high: point.high }))
        }
    };
    let score = equal
        .score
        .map(|score| format!("; score {:.1} against {:.1} where both ended within it", score.a.value, score.b.value));
    format!(
        "within {at} an episode {} against {}, {} points{}",
        reached(&equal.a),
        reached(&equal.b),
        point_ends(equal.difference),
        score.unwrap_or_default()
    )
}

fn cost(pair: &Comparison) -> String {
    let (a, b) = (&pair.amounts_a, &pair.amounts_b);
    format!(
        "for a success {} against {}, {} steps against {}",
        or_nothing(a.dollars.per_success, dollars),
        or_nothing(b.dollars.per_success, dollars),
        or_nothing(a.steps.per_success, count),
        or_nothing(b.steps.per_success, count)
    )
}

fn could_be_seen(pair: &Comparison, margin: f64) -> String {
    let reach = &pair.reach;
    let smallest = match reach.detectable {
        Some(difference) => format!("differences of {:.1} points and more", difference * 100.0),
        None => "no difference at all".to_owned(),
    };
    let needed = reach.needed.map(|pairs| format!("; {} points take {pairs} pairs", count(margin * 100.0)));
    format!("{smallest}{}", needed.unwrap_or_default())
}

/// What ordered rounds came to, for a side whose tasks have them.
pub(super) fn rounds(side: &SideFound) -> Facts {
    let Some(workflow) = &side.measures.workflow else { return Vec::new() };
    let joint = &workflow.joint;
    let both_kinds = joint.both + joint.business_only + joint.visible_only + joint.neither + joint.broken;
    if workflow.open.is_none() && both_kinds == 0 {
        return Vec::new();
    }
    let listed = |counts: Vec<(String, u64)>| {
        let counts: Vec<String> = counts.into_iter().map(|(name, count)| format!("{name} {count}")).collect();
        if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
    };
    let mut facts: Facts = vec![("workflows", of(&workflow.full))];
    if let Some(open) = &workflow.open {
        facts.push(("open", format!("{} ({})", of(open), percent(open.value))));
    }
    let stages = workflow.stages.iter().map(|(kind, count)| (kind.to_string(), *count)).collect();
    facts.push(("first failing round", listed(stages)));
    let classes = workflow.classes.iter().map(|(class, count)| (failing(*class).to_owned(), *count)).collect();
    facts.push(("failed for", listed(classes)));
    if both_kinds > 0 {
        facts.push((
            "business, visible",
            format!(
                "both {}, business only {}, visible only {}, neither {}, broken {}",
                joint.both, joint.business_only, joint.visible_only, joint.neither, joint.broken
            ),
        ));
    }
    facts
}

const fn failing(class: FailureClass) -> &'static str {
    match class {
        FailureClass::GenerationError => "no answer",
        FailureClass::RoundError => "a broken round",
        FailureClass::BusinessAndVisible => "business and visible",
        FailureClass::BusinessOnly => "business only",
        FailureClass::VisibleOnly => "visible only",
        FailureClass::Rest => "the rest",
    }
}

/// What agents solve together.
pub(super) fn coverage(found: &Findings) -> Facts {
    let coverage = &found.comparisons.coverage;
    if found.sides.len() < 2 || coverage.tasks == 0 {
        return Vec::new();
    }
    let mut facts: Facts = vec![("tasks", format!("{} on which each has a verdict", coverage.tasks))];
    let each: Vec<String> = coverage
        .agents
        .iter()
        .map(|agent| format!("{} {} ({} alone)", agent.agent, agent.solved, agent.alone))
        .collect();
    facts.push(("solved", each.join(", ")));
    if let Some(pair) = &coverage.best_pair {
        facts.push(("best two", format!("{} and {} together {}", pair.agents[0], pair.agents[1], pair.solved)));
    }
    facts.push(("any", coverage.union.to_string()));
    let nobody = &coverage.nobody;
    let names = if nobody.is_empty() { String::new() } else { format!(": {}", named(nobody, NAMED)) };
    facts.push(("nobody", format!("{}{names}", nobody.len())));
    // Envs are many, and stand in the heat map.
    for Together { by, groups } in &found.together {
        let name = match by {
            By::Agent | By::Env => continue,
            By::Split => "by split",
            By::Difficulty => "by difficulty",
            By::Family => "by family",
        };
        let groups: Vec<String> = groups.iter().map(group_coverage).collect();
        facts.push((name, groups.join("; ")));
    }
    facts
}

fn group_coverage(group: &GroupCoverage) -> String {
    let GroupCoverage { name, tasks, best, best_pair, union, .. } = group;
    let pair = best_pair.as_ref().map_or_else(String::new, |pair| format!(", two {}", pair.solved));
    format!("{}: any {union} of {tasks}, one {best}{pair}", name.as_deref().unwrap_or("(none)"))
}

/// Rates by group and side: a row for each group, a column for each side.
pub(super) fn grouped(found: &Findings, groups: &[Group]) -> Vec<(String, Vec<Option<Cell>>)> {
    let mut rows: Vec<(String, Vec<Option<Cell>>)> = Vec::new();
    for group in groups {
        let name = group.key.first().cloned().flatten().unwrap_or_else(|| "(none)".to_owned());
        let Some(agent) = group.key.get(1).and_then(Option::as_deref) else { continue };
        let Some(column) = found.sides.iter().position(|side| side.label == agent) else { continue };
        if rows.last().is_none_or(|(last, _)| *last != name) {
            rows.push((name, vec![None; found.sides.len()]));
        }
        if let Some((_, cells)) = rows.last_mut() {
            cells[column] =
                group.measures.pass_rate.map(|rate| Cell { hits: rate.hits, of: rate.of, share: rate.value });
        }
    }
    rows
}

/// The rate of one group and one side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cell {
    pub(super) hits: u64,
    pub(super) of: u64,
    pub(super) share: f64,
}

impl Cell {
    pub(super) fn text(self) -> String {
        format!("{}/{}", self.hits, self.of)
    }
}

/// What is wrong with the episodes, or left out.
pub(super) fn notes(found: &Findings) -> Vec<String> {
    found.findings.iter().map(ToString::to_string).collect()
}

/// In what the tasks, envs and settings of two sides differ.
pub(super) fn differing(found: &Findings) -> Vec<String> {
    let imported = found.imported.iter().map(|one| {
        format!(
            "{}: imported from {}: nobody knows whether its tasks, envs, verifiers, budgets and settings are those of \
             others, beyond the tasks' names",
            one.side, one.folder
        )
    });
    imported.chain(found.differences.iter().map(difference)).collect()
}

fn difference(difference: &Difference) -> String {
    let (one, other) = &difference.sides;
    let part = difference.part.name();
    let of = many(difference.of as u64, "common task");
    if difference.tasks.len() == difference.of {
        return format!("{part}: not the same for {one} and {other}, on all of {of}");
    }
    let names = named(&difference.tasks, NAMED);
    format!("{part}: not the same for {one} and {other}, on {} of {of}: {names}", difference.tasks.len())
}

/// How the numbers were made, so that they can be made again.
pub(super) fn made(found: &Findings) -> String {
    let options = &found.options;
    format!(
        "Intervals hold {}; {} resamples with seed {}; differences below {} points do not matter.",
        percent(options.confidence),
        options.resamples,
        options.seed,
        count(options.margin * 100.0)
    )
}

//! Findings as a table for programs: a line for each side.

use longhaul_core::measure::Clustered;
use longhaul_core::money::Money;
use longhaul_core::stats::Interval;

use crate::findings::{Findings, SideFound};

/// A column: its head, and what of a side stands in it.
type Column = (&'static str, fn(&SideFound) -> String);

/// The columns. Shares are from 0 to 1; empty is not known. What judging cost is empty also where
/// it came to nothing: a side does not say which.
const COLUMNS: [Column; 31] = [
    ("label", |side| text(&side.label)),
    ("agent", |side| text(&side.agent)),
    ("run", |side| side.run.to_string()),
    ("episodes", |side| side.episodes.to_string()),
    ("tasks", |side| side.measures.tasks.to_string()),
    ("envs", |side| side.measures.envs.to_string()),
    ("passed", |side| side.measures.tally.passed.to_string()),
    ("failed", |side| side.measures.tally.failed.to_string()),
    ("unverified", |side| side.measures.tally.unverified.to_string()),
    ("faulted", |side| side.measures.tally.faulted.to_string()),
    ("cancelled", |side| side.measures.tally.cancelled.to_string()),
    ("not_started", |side| side.measures.tally.not_started.to_string()),
    ("unsettled", |side| side.measures.tally.unsettled.to_string()),
    ("pass_rate", |side| number(side.measures.pass_rate.map(|rate| rate.value))),
    ("pass_rate_low", |side| number(wilson(side).map(|interval| interval.low))),
    ("pass_rate_high", |side| number(wilson(side).map(|interval| interval.high))),
    ("pass_rate_if_faults_failed", |side| number(side.measures.pass_bounds.map(|bounds| bounds.low))),
    ("pass_rate_if_faults_passed", |side| number(side.measures.pass_bounds.map(|bounds| bounds.high))),
    ("score", |side| number(side.measures.score.map(|score| score.value))),
    ("score_low", |side| number(score(side).map(|clustered| clustered.interval.low))),
    ("score_high", |side| number(score(side).map(|clustered| clustered.interval.high))),
    ("dollars", |side| money(side.measures.amounts.dollars.known())),
    ("dollars_per_episode", |side| money(side.measures.amounts.dollars.per_episode)),
    ("dollars_per_success", |side| money(side.measures.amounts.dollars.per_success)),
    ("judge_dollars", |side| money(Some(side.measures.amounts.judge_dollars).filter(|paid| !paid.is_zero()))),
    ("steps_per_episode", |side| number(side.measures.amounts.steps.per_episode)),
    ("steps_per_success", |side| number(side.measures.amounts.steps.per_success)),
    ("tokens_per_episode", |side| number(side.measures.amounts.tokens.per_episode)),
    ("seconds_per_episode", |side| number(side.measures.amounts.seconds.per_episode)),
    ("node_hours_per_episode", |side| number(side.measures.amounts.node_hours.per_episode)),
    ("left_too_early", |side| side.measures.endings.early.to_string()),
];

/// Findings as comma-separated values.
#[must_use]
pub fn csv(found: &Findings) -> String {
    let mut out = COLUMNS.map(|(name, _)| name).join(",");
    out.push('\n');
    for side in &found.sides {
        out.push_str(&COLUMNS.map(|(_, value)| value(side)).join(","));
        out.push('\n');
    }
    out
}

fn wilson(side: &SideFound) -> Option<Interval> {
    side.measures.pass_rate.and_then(|rate| rate.wilson)
}

fn score(side: &SideFound) -> Option<Clustered> {
    side.measures.score.and_then(|score| score.clustered)
}

fn number(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn money(value: Option<Money>) -> String {
    value.map(|money| money.to_string().trim_start_matches('$').to_owned()).unwrap_or_default()
}

/// A name of any origin: quoted, and no formula to whoever opens the table.
fn text(name: &str) -> String {
    let name = longhaul_core::text::escape_line(name);
    let guarded = if name.starts_with(['=', '+', '-', '@']) { format!("'{name}") } else { name };
    if guarded.contains(['"', ',']) { format!("\"{}\"", guarded.replace('"', "\"\"")) } else { guarded }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_cell_and_no_formula() {
        assert_eq!(text("a,\"b\"\n"), "\"a,\"\"b\"\" \"");
        assert_eq!(text("=HYPERLINK(1)"), "'=HYPERLINK(1)");
        assert_eq!(text("plain:model"), "plain:model");
    }
}

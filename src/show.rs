//! Runs and episodes as tables and as JSON: what `run`, `status`, `show` and `watch` share.

use longhaul_core::judge::VerdictParts;
use longhaul_core::money::Money;
use longhaul_core::outcome::{Settlement, Verdict};
use longhaul_core::time::Millis;
use longhaul_proto::v1;
use serde_json::{Value, json};

use crate::error::CliError;
use crate::output::{Table, Tone, cut};
use crate::units;
pub use crate::units::show_time as time;

/// The most of a verifier's feedback or a fault's message that a table shows.
const REASON_WIDTH: usize = 70;

/// A point in time for programs, if there is one.
fn instant(millis: u64) -> Option<String> {
    let millis = i64::try_from(millis).ok().filter(|millis| *millis > 0)?;
    jiff::Timestamp::from_millisecond(millis).ok().map(|at| at.to_string())
}

/// Where a live attempt is.
#[must_use]
pub fn phase(attempt: &v1::LiveAttempt) -> &str {
    attempt.phase.as_ref().map_or("leased", |phase| phase.name.as_str())
}

/// What a live attempt waits for, if it does, and since when.
#[must_use]
pub fn waits(reason: &str, since_millis: u64) -> Option<String> {
    let since = Some(time(since_millis)).filter(|since| !since.is_empty());
    let since = since.map(|since| format!(", since {since}")).unwrap_or_default();
    (!reason.is_empty()).then(|| format!("waits: {reason}{since}"))
}

/// How a state is shown.
#[must_use]
pub fn tone(state: &str) -> Tone {
    match state {
        "passed" => Tone::Good,
        "failed" => Tone::Bad,
        "faulted" | "unverified" | "cancelled" | "not started" => Tone::Warn,
        _ => Tone::Dim,
    }
}

/// How many episodes are settled.
#[must_use]
pub const fn settled(run: &v1::RunSummary) -> u32 {
    run.passed + run.failed + run.unverified + run.cancelled + run.faulted + run.not_started
}

/// The settled episodes in words: `3 passed, 1 faulted`.
#[must_use]
pub fn counts(run: &v1::RunSummary) -> String {
    let words = [
        (run.passed, "passed"),
        (run.failed, "failed"),
        (run.unverified, "unverified"),
        (run.faulted, "faulted"),
        (run.not_started, "not started"),
        (run.cancelled, "cancelled"),
    ];
    let shown: Vec<String> =
        words.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
    if shown.is_empty() { "none settled".to_owned() } else { shown.join(", ") }
}

/// What a run has spent, and of how much, for people; nothing if it spends no money.
#[must_use]
pub fn money(run: &v1::RunSummary) -> Option<String> {
    let spent = Money::from_nanos(run.spent_nanos);
    match run.cap_nanos.map(Money::from_nanos) {
        // Rounding alone never shows more than the cap.
        Some(cap) if spent <= cap => Some(format!("{} of {cap}", rounded(spent).min(cap))),
        Some(cap) => Some(format!("{} of {cap}", rounded(spent))),
        None => (!spent.is_zero()).then(|| cents(spent)),
    }
}

/// An amount for tables: to the cent, rounded up; below a cent to four decimals.
#[must_use]
pub fn cents(amount: Money) -> String {
    rounded(amount).to_string()
}

fn rounded(amount: Money) -> Money {
    let (cent, fine) = (10_000_000, 100_000);
    let unit = if amount.nanos() < cent { fine } else { cent };
    Money::from_nanos(amount.nanos().div_ceil(unit).saturating_mul(unit))
}

/// Runs, the newest last.
#[must_use]
pub fn runs_table(runs: &[v1::RunSummary], colours: bool) -> String {
    if runs.is_empty() {
        return "no run was submitted yet\n".to_owned();
    }
    let mut table = Table::new(&["run", "name", "submitted", "settled", "verdicts"]);
    for run in runs {
        let state = format!("{}/{}", settled(run), run.episodes);
        let tone = if run.settled_at_millis > 0 { Tone::Plain } else { Tone::Warn };
        table.row([
            (run.run_id.clone(), Tone::Plain),
            (cut(&run.name, 40), Tone::Plain),
            (time(run.submitted_at_millis), Tone::Plain),
            (state, tone),
            (counts(run), Tone::Plain),
        ]);
    }
    table.render(colours)
}

/// That the pictures of a run were dropped, if they were.
#[must_use]
pub fn dropped(run: &v1::RunSummary) -> Option<String> {
    let at = Some(run.dropped_at_millis).filter(|at| *at > 0)?;
    Some(format!("the pictures of run {} were dropped {} (`longhaul store prune`)", run.run_id, time(at)))
}

/// A run for programs.
#[must_use]
pub fn run_json(run: &v1::RunSummary) -> Value {
    json!({
        "run": run.run_id,
        "name": run.name,
        "benchmark": run.benchmark,
        "submitted_at": instant(run.submitted_at_millis),
        "settled_at": instant(run.settled_at_millis),
        "episodes": run.episodes,
        "queued": run.queued,
        "active": run.active,
        "passed": run.passed,
        "failed": run.failed,
        "unverified": run.unverified,
        "cancelled": run.cancelled,
        "faulted": run.faulted,
        "not_started": run.not_started,
        "cap_dollars": run.cap_nanos.map(|cap| dollars(Money::from_nanos(cap))),
        "spent_dollars": dollars(Money::from_nanos(run.spent_nanos)),
        "pictures_dropped_at": instant(run.dropped_at_millis),
    })
}

/// An amount for programs: its exact digits, as a text.
#[must_use]
pub fn dollars(amount: Money) -> String {
    amount.to_string().trim_start_matches('$').to_owned()
}

/// The settlement of an episode, if it has one.
///
/// # Errors
///
/// It cannot be understood.
pub fn settlement(row: &v1::EpisodeRow) -> Result<Option<Settlement>, CliError> {
    if row.settlement_json.is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(&row.settlement_json)
        .map(Some)
        .map_err(|source| CliError::Record { what: format!("episode {}", row.episode_id), source })
}

/// Score, what ended it, and why, for a row.
fn explain(settlement: &Settlement) -> (String, String, String) {
    match settlement {
        Settlement::Verdict(verdict) => (score(verdict.score), verdict.ended_by.to_string(), verdict.feedback.clone()),
        Settlement::Unverified { ended_by, reason, .. } => (String::new(), ended_by.to_string(), reason.clone()),
        Settlement::Cancelled => (String::new(), String::new(), String::new()),
        Settlement::NotStarted { reason } => (String::new(), String::new(), reason.clone()),
        Settlement::Faulted(fault) => (String::new(), fault.class.to_string(), fault.message.clone()),
    }
}

/// The word for a verdict.
#[must_use]
pub const fn word(passed: bool) -> &'static str {
    if passed { "passed" } else { "failed" }
}

/// A score without more digits than it has.
#[must_use]
pub fn score(score: f64) -> String {
    if score.fract() == 0.0 { format!("{score:.0}") } else { format!("{score:.2}") }
}

/// The episodes of a run with their verdicts.
///
/// # Errors
///
/// A settlement cannot be understood.
pub fn episodes_table(rows: &[v1::EpisodeRow], colours: bool) -> Result<String, CliError> {
    let many_samples = rows.iter().any(|row| row.sample > 0);
    let any_spent = rows.iter().any(|row| row.spent_nanos > 0);
    let mut head = vec!["#", "task", "agent"];
    if many_samples {
        head.push("sample");
    }
    head.extend(["verdict", "score", "steps"]);
    if any_spent {
        head.push("spent");
    }
    head.extend(["attempts", "ended by", "why"]);
    let mut table = Table::new(&head);
    // How far programs and judges agree, where both looked at an episode.
    let (mut agree, mut both) = (0, 0);
    for row in rows {
        let settlement = settlement(row)?;
        if let Some(Settlement::Verdict(Verdict { parts: Some(parts), .. })) = &settlement
            && let Some(same) = parts.agree()
        {
            both += 1;
            agree += u32::from(same);
        }
        let (score, ended_by, why) = settlement.as_ref().map(explain).unwrap_or_default();
        let why = waits(&row.waiting, row.waiting_since_millis).unwrap_or(why);
        let index = row.episode_id.rsplit('/').next().unwrap_or_default();
        let mut cells =
            vec![(index.to_owned(), Tone::Dim), (row.task.clone(), Tone::Plain), (cut(&row.agent, 24), Tone::Plain)];
        if many_samples {
            cells.push((row.sample.to_string(), Tone::Plain));
        }
        cells.extend([
            (row.state.clone(), tone(&row.state)),
            (score, Tone::Plain),
            (steps(row.steps, settlement.as_ref().and_then(parts)).to_string(), Tone::Plain),
        ]);
        if any_spent {
            cells.push((cents(Money::from_nanos(row.spent_nanos)), Tone::Plain));
        }
        cells.extend([
            (row.attempts.to_string(), if row.attempts > 1 { Tone::Warn } else { Tone::Plain }),
            (ended_by, Tone::Plain),
            (cut(why.lines().next().unwrap_or_default(), REASON_WIDTH), Tone::Dim),
        ]);
        table.row(cells);
    }
    let mut text = table.render(colours);
    text.extend((both > 0).then(|| format!("\nprogram and checklist agree on {agree} of {both} episodes\n")));
    Ok(text)
}

/// What a settlement was made of.
fn parts(settlement: &Settlement) -> Option<&VerdictParts> {
    match settlement {
        Settlement::Verdict(Verdict { parts, .. }) | Settlement::Unverified { parts, .. } => parts.as_deref(),
        Settlement::Cancelled | Settlement::Faulted(_) | Settlement::NotStarted { .. } => None,
    }
}

/// The agent's steps of so many records after the first: what opens a further round is none.
#[must_use]
pub fn steps(records: u32, parts: Option<&VerdictParts>) -> u32 {
    let rounds = parts.map(|parts| parts.rounds.as_slice()).unwrap_or_default();
    if rounds.is_empty() { records } else { rounds.iter().map(|round| round.steps).sum() }
}

/// The agent's steps of a row; one whose settlement cannot be understood says what it recorded.
#[must_use]
pub fn steps_of(row: &v1::EpisodeRow) -> u32 {
    let settlement = settlement(row).ok().flatten();
    steps(row.steps, settlement.as_ref().and_then(parts))
}

/// An episode for programs.
///
/// # Errors
///
/// Its settlement cannot be understood.
pub fn episode_json(row: &v1::EpisodeRow) -> Result<Value, CliError> {
    let settlement = settlement(row)?;
    Ok(json!({
        "episode": row.episode_id,
        "task": row.task,
        "agent": row.agent,
        "sample": row.sample,
        "state": row.state,
        "settlement": settlement,
        "attempts": row.attempts,
        "steps": steps(row.steps, settlement.as_ref().and_then(parts)),
        "spent_dollars": dollars(Money::from_nanos(row.spent_nanos)),
        "settled_at": instant(row.settled_at_millis),
        "waiting": Some(&row.waiting).filter(|reason| !reason.is_empty()),
        "waiting_since": instant(row.waiting_since_millis),
    }))
}

/// The layers that a run's attempts rested on: built for it, or there before.
#[must_use]
pub fn layers_table(rows: &[v1::LayerRow], colours: bool) -> String {
    let mut table = Table::new(&["layer", "env", "key", "size", "in this run"]);
    for row in rows {
        let (made, tone) = if row.run_builds > 0 {
            (format!("built in {}", units::show_duration(Millis(row.build_millis))), Tone::Warn)
        } else {
            ("reused".to_owned(), Tone::Good)
        };
        let uses = if row.run_uses == 1 { "1 attempt".to_owned() } else { format!("{} attempts", row.run_uses) };
        let reran = if row.reran_because.is_empty() {
            String::new()
        } else {
            format!("; its hook ran for each: {}", cut(&row.reran_because, REASON_WIDTH))
        };
        let size = if row.bytes > 0 { units::show_size(row.bytes) } else { String::new() };
        table.row([
            (row.kind.clone(), Tone::Plain),
            (row.env.clone(), Tone::Plain),
            (key(&row.key), Tone::Dim),
            (size, Tone::Plain),
            (format!("{made}, {uses}{reran}"), tone),
        ]);
    }
    table.render(colours)
}

fn key(bytes: &[u8]) -> String {
    longhaul_proto::convert::digest("key", bytes).map(|digest| digest.short()).unwrap_or_default()
}

/// A layer for programs.
#[must_use]
pub fn layer_json(row: &v1::LayerRow) -> Value {
    json!({
        "key": longhaul_proto::convert::digest("key", &row.key).ok(),
        "kind": row.kind,
        "env": row.env,
        "state": row.state,
        "bytes": row.bytes,
        "build_millis": row.build_millis,
        "builds": row.builds,
        "uses": row.uses,
        "run_builds": row.run_builds,
        "run_uses": row.run_uses,
        "reran_because": Some(&row.reran_because).filter(|reason| !reason.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use longhaul_core::judge::{ProgramPart, Scorer};
    use longhaul_core::outcome::EndedBy;

    use super::*;

    fn row(index: u32, settlement: Option<Settlement>) -> v1::EpisodeRow {
        v1::EpisodeRow {
            episode_id: format!("0000000000001/{index}"),
            task: "calc_env/sum".to_owned(),
            agent: "idle".to_owned(),
            state: settlement.as_ref().map_or("queued", |settlement| settlement.kind().name()).to_owned(),
            settlement_json: settlement
                .map(|settlement| serde_json::to_vec(&settlement).expect("JSON"))
                .unwrap_or_default()
                .into(),
            ..v1::EpisodeRow::default()
        }
    }

    #[test]
    fn a_table_of_verdicts_shows_why_and_cannot_be_commanded() {
        let verdict = Verdict {
            passed: false,
            score: 12.5,
            feedback: "cell \u{1b}[31mB2\nis empty".to_owned(),
            details: Value::Null,
            ended_by: EndedBy::Steps,
            parts: None,
        };
        let rows = [row(0, Some(Settlement::Verdict(verdict.clone()))), row(1, None)];
        let text = episodes_table(&rows, false).expect("a table");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].contains("failed") && lines[1].contains("12.50") && lines[1].contains("steps"), "{text}");
        assert!(lines[1].ends_with("cell \\u{1b}[31mB2"), "{text}");
        assert!(lines[2].contains("queued"), "{text}");
        // A program without a verdict agrees with nobody, and disagrees with nobody.
        let program = Some(ProgramPart::Unverified { reason: "a stub".to_owned() });
        let parts = VerdictParts { decided_by: Scorer::Checklist, program, checklist: None, rounds: Vec::new() };
        let verdict = Verdict { parts: Some(Box::new(parts)), ..verdict };
        let text = episodes_table(&[row(0, Some(Settlement::Verdict(verdict)))], false).expect("a table");
        assert!(!text.contains("agree"), "{text}");
    }

    #[test]
    fn what_opens_a_further_round_is_no_step_of_the_agent() {
        let round = |number: u32, steps: u32| {
            serde_json::from_value(json!({ "number": number, "kind": "open", "steps": steps, "assertions": [] }))
                .expect("a round")
        };
        let rounds = vec![round(1, 20), round(2, 12)];
        let parts = VerdictParts { decided_by: Scorer::Program, program: None, checklist: None, rounds };
        let settlement = Settlement::Unverified {
            reason: "a stub".to_owned(),
            ended_by: EndedBy::Steps,
            fault: None,
            parts: Some(Box::new(parts)),
        };
        // Its records after the first, the openings of two rounds among them.
        let recorded = v1::EpisodeRow { steps: 34, ..row(0, Some(settlement)) };
        assert_eq!(steps_of(&recorded), 32);
        assert_eq!(steps_of(&v1::EpisodeRow { steps: 34, ..row(0, None) }), 34);
    }

    #[test]
    fn what_a_live_attempt_waits_for_is_where_others_have_their_reason() {
        let waiting = "endpoint vendor: no key named `X`".to_owned();
        let live = v1::EpisodeRow { waiting, state: "active".to_owned(), ..row(0, None) };
        let text = episodes_table(std::slice::from_ref(&live), false).expect("a table");
        assert!(text.contains("waits: endpoint vendor: no key named `X`"), "{text}");
        assert_eq!(episode_json(&live).expect("JSON")["waiting"], live.waiting);
        assert_eq!(waits("", 5), None);
        assert!(waits("x", 1_700_000_000_000).expect("a reason").starts_with("waits: x, since 2023-"));
    }

    #[test]
    fn money_is_shown_to_the_cent_and_never_beyond_its_cap_by_rounding() {
        let run = |cap_nanos: Option<u64>, spent_nanos| {
            money(&v1::RunSummary { cap_nanos, spent_nanos, ..v1::RunSummary::default() })
        };
        assert_eq!(run(None, 0), None);
        assert_eq!(run(None, 1_234_567_891).as_deref(), Some("$1.24"));
        assert_eq!(run(None, 4_321).as_deref(), Some("$0.0001"));
        assert_eq!(run(Some(5_000_000_000), 0).as_deref(), Some("$0.00 of $5.00"));
        assert_eq!(run(Some(15_000_000), 14_900_000).as_deref(), Some("$0.015 of $0.015"));
        assert_eq!(run(Some(15_000_000), 15_000_001).as_deref(), Some("$0.02 of $0.015"));
    }

    #[test]
    fn counts_name_only_what_there_is() {
        let run = v1::RunSummary { passed: 2, faulted: 1, ..v1::RunSummary::default() };
        assert_eq!(counts(&run), "2 passed, 1 faulted");
        assert_eq!(settled(&run), 3);
    }
}

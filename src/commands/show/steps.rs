//! `longhaul show --steps`: a trajectory, with the attempts that took its steps.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_core::ids::AttemptId;
use longhaul_core::step::{ActionOutcome, StepRecord};
use longhaul_core::time::Millis;
use longhaul_store::Line;
use serde::Serialize;

use crate::client::Source;
use crate::error::CliError;
use crate::output::{self, Format, Table, Tone, cut, escape_line};
use crate::{reading, show, units};

/// The most of an answer or an error that a row of steps shows.
const CELL_WIDTH: usize = 90;

/// A step with the number of the attempt that took it.
#[derive(Debug, Serialize)]
struct Taken<'a> {
    #[serde(flatten)]
    step: &'a StepRecord,
    attempt: u32,
    /// The limit that the output of one of its calls was cut to, to fit a budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    shortened_to: Option<u64>,
}

/// What an attempt goes on from, and how it came there.
pub(super) fn kept_lines(line: &Line) -> Vec<String> {
    let kept = &line.kept;
    let from = format!("after step {} of attempt {}", kept.steps.saturating_sub(1), kept.parent);
    let Some(resumed) = &line.resumed else {
        return vec![format!("  resumes   {from}; it does not stand there")];
    };
    let some = |count: u32, words: String| if count > 0 { words } else { String::new() };
    let answered = some(resumed.answered, format!("; {} calls answered from the record", resumed.answered));
    let differing = some(resumed.differing, format!(", {} of them asked in other words", resumed.differing));
    let took = units::show_duration(resumed.took);
    let text = format!("  resumed   {from}, by {} in {took}{answered}{differing}", resumed.way);
    let remarks = resumed.remarks.iter().map(|remark| format!("  remark    {}", escape_line(remark)));
    std::iter::once(text).chain(remarks).collect()
}

/// Shows the steps of the trajectory that ends with an attempt's, or its own alone.
///
/// # Errors
///
/// They cannot be read.
pub(super) async fn show(source: &Source, attempt: AttemptId, own: bool, format: Format) -> Result<(), CliError> {
    let taken = reading::taken(source, attempt, own).await?;
    let shortened = shortened(source, &taken).await?;
    let cut_to = |by: &AttemptId, step: &StepRecord| {
        step.calls.iter().filter_map(|call| shortened.get(&(*by, *call)).copied()).min()
    };
    if format == Format::Json {
        let taken = taken.iter();
        let steps: Vec<_> =
            taken.map(|(by, step)| Taken { step, attempt: by.number, shortened_to: cut_to(by, step) }).collect();
        return output::json(&steps).map_err(CliError::Output);
    }
    let resumed = taken.iter().any(|(by, _)| *by != attempt);
    let mut head = vec!["step", "at", "answer", "outcome", "rested", "agent", "inject", "rest", "capture"];
    if resumed {
        head.insert(1, "attempt");
    }
    let rounds = taken.iter().any(|(_, record)| record.round.is_some());
    if rounds {
        head.insert(1, "round");
    }
    let mut table = Table::new(&head);
    for (by, record) in &taken {
        let mut answer = record.answer.as_ref().map_or_else(|| opening_text(record), answer_text);
        if let Some(most) = cut_to(by, record) {
            answer = format!("(output cut to {most} tokens) {answer}");
        }
        let errors: Vec<&str> = record
            .outcomes
            .iter()
            .filter_map(|outcome| match outcome {
                ActionOutcome::Done => None,
                ActionOutcome::Error(error) => Some(error.as_str()),
            })
            .collect();
        // Of imported steps it is not known what became of their actions.
        let unknown = record.outcomes.is_empty() && record.answer.as_ref().is_some_and(|said| !said.actions.is_empty());
        let (outcome, tone) = match (unknown, errors.is_empty()) {
            (true, _) => ("not recorded".to_owned(), Tone::Dim),
            (false, true) => ("done".to_owned(), Tone::Plain),
            (false, false) => (errors.join("; "), Tone::Bad),
        };
        let timing = &record.timing;
        let spent = |length: Millis| (units::show_duration(length), Tone::Dim);
        let mut cells = vec![(record.number.to_string(), Tone::Plain)];
        if rounds {
            cells.push((record.round.map(|round| round.to_string()).unwrap_or_default(), Tone::Plain));
        }
        if resumed {
            cells.push((by.number.to_string(), if *by == attempt { Tone::Plain } else { Tone::Dim }));
        }
        cells.extend([
            (show::time(record.at.0), Tone::Dim),
            (cut(&answer, CELL_WIDTH), Tone::Plain),
            (cut(&outcome, CELL_WIDTH), tone),
            (if record.rested { "yes" } else { "no" }.to_owned(), Tone::Plain),
            spent(timing.agent),
            spent(timing.inject),
            spent(timing.rest),
            spent(timing.capture),
        ]);
        table.row(cells);
    }
    output::data(&table.render(output::stdout_colours())).map_err(CliError::Output)
}

/// The calls of steps whose output was cut to fit a budget, and to how much.
async fn shortened(
    source: &Source,
    taken: &[(AttemptId, StepRecord)],
) -> Result<BTreeMap<(AttemptId, u32), u64>, CliError> {
    let attempts: BTreeSet<AttemptId> =
        taken.iter().filter(|(_, step)| !step.calls.is_empty()).map(|(by, _)| *by).collect();
    let mut shortened = BTreeMap::new();
    for attempt in attempts {
        let calls = reading::calls(source, attempt).await?;
        shortened.extend(calls.iter().filter_map(|(call, _)| Some(((attempt, call.number), call.shortened_to?))));
    }
    Ok(shortened)
}

/// A step that only looks: the first one, or one that opens a round with its goal.
fn opening_text(record: &StepRecord) -> String {
    match &record.told {
        Some(goal) => format!("(asked for: {goal})"),
        None => "(first observation)".to_owned(),
    }
}

fn answer_text(answer: &longhaul_core::agent::Answer) -> String {
    let actions: Vec<String> = answer.actions.iter().map(ToString::to_string).collect();
    let text = answer.text.as_deref().unwrap_or_default();
    let done = if answer.done { "done" } else { "" };
    [text, &actions.join(" "), done].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(" | ")
}

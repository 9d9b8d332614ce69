//! The model calls of an attempt.

use longhaul_core::call::{CallRecord, CallTotals, Certainty, Purpose};
use longhaul_core::ids::AttemptId;
use serde_json::{Value, json};

use crate::client::Source;
use crate::error::CliError;
use crate::output::{self, Format, Table, Tone, cut};
use crate::{show, units};

/// The most of an error that a row shows.
const ERROR_WIDTH: usize = 60;

/// Shows them: a line each.
pub(super) async fn show(source: &Source, attempt: AttemptId, format: Format) -> Result<(), CliError> {
    let rows = source.calls(attempt).await?;
    let read = |json: &[u8]| {
        serde_json::from_slice::<CallRecord>(json)
            .map_err(|source| CliError::Record { what: format!("a model call of attempt {attempt}"), source })
    };
    if format == Format::Json {
        let mut all: Vec<Value> = Vec::with_capacity(rows.len());
        for row in &rows {
            all.push(json!({ "late": row.late, "call": read(&row.record_json)? }));
        }
        return output::json(&all).map_err(CliError::Output);
    }
    let mut table = Table::new(&[
        "call",
        "step",
        "at",
        "for",
        "endpoint",
        "model",
        "tokens in",
        "out",
        "cost",
        "took",
        "what happened",
    ]);
    for row in &rows {
        let call = read(&row.record_json)?;
        let usage = call.usage.unwrap_or_default();
        let (happened, tone) = happened(&call, row.late);
        table.row([
            (call.number.to_string(), Tone::Plain),
            (call.step.to_string(), Tone::Plain),
            (show::time(call.at.0), Tone::Dim),
            (purpose(call.purpose).to_owned(), Tone::Plain),
            (cut(&call.endpoint, 24), Tone::Plain),
            (cut(call.model_reported.as_deref().unwrap_or(&call.model), 32), Tone::Plain),
            (usage.tokens().saturating_sub(usage.output).to_string(), Tone::Plain),
            (usage.output.to_string(), Tone::Plain),
            (call.settled.to_string(), if call.overshoot().is_zero() { Tone::Plain } else { Tone::Bad }),
            (units::show_duration(call.took), Tone::Dim),
            (cut(&happened, ERROR_WIDTH), tone),
        ]);
    }
    output::data(&table.render(output::stdout_colours())).map_err(CliError::Output)
}

const fn purpose(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Agent => "agent",
        Purpose::Audit => "audit",
        Purpose::Judge => "judge",
    }
}

fn happened(call: &CallRecord, late: bool) -> (String, Tone) {
    let mut words = Vec::new();
    if let Some(of) = call.retry_of {
        words.push(format!("call {of} again"));
    }
    match call.certainty {
        Certainty::Reported => {}
        Certainty::Unconfirmed => words.push("not confirmed: counts whole".to_owned()),
        Certainty::Released => words.push("not billed".to_owned()),
    }
    if !call.overshoot().is_zero() {
        words.push(format!("billed {} beyond its bound", call.overshoot()));
    }
    if let Some(most) = call.shortened_to {
        words.push(format!("output cut to {most} tokens"));
    }
    if late {
        words.push("late".to_owned());
    }
    if let Some(status) = call.status.filter(|status| *status != 200) {
        words.push(format!("status {status}"));
    }
    words.extend(call.error.clone());
    let tone = if call.error.is_some() || late { Tone::Warn } else { Tone::Dim };
    (words.join("; "), tone)
}

/// The calls of an attempt in one line, if it made any.
pub(super) fn line(totals: &CallTotals) -> Option<String> {
    if totals.calls == 0 {
        return None;
    }
    let unconfirmed = if totals.unconfirmed.is_zero() {
        String::new()
    } else {
        format!(", {} of it not confirmed by the vendor", totals.unconfirmed)
    };
    let calls = totals.calls;
    Some(format!("  calls     {calls}, {} tokens, {}{unconfirmed}", totals.usage.tokens(), totals.settled))
}

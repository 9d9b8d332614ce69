//! The model calls of an attempt.

use longhaul_core::call::{CallRecord, CallTotals, Certainty, Purpose};
use longhaul_core::ids::AttemptId;
use longhaul_gateway::join;
use longhaul_report::Trajectories as _;
use serde_json::{Value, json};

use crate::client::Source;
use crate::error::CliError;
use crate::output::{self, Format, Table, Tone, cut};
use crate::{reading, show, units};

/// The most of an error that a row shows.
const ERROR_WIDTH: usize = 60;

/// Shows them: a line each.
pub(super) async fn show(source: &Source, attempt: AttemptId, format: Format) -> Result<(), CliError> {
    let calls = reading::calls(source, attempt).await?;
    if format == Format::Json {
        let all: Vec<Value> = calls.iter().map(|(call, late)| json!({ "late": late, "call": call })).collect();
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
    for (call, late) in &calls {
        let usage = call.usage.unwrap_or_default();
        let (happened, tone) = happened(call, *late);
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
    if let Some(service) = &call.service {
        words.push(format!("served as {service}"));
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

/// What was sent in a call, or what came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    /// The request.
    Request,
    /// The answer.
    Response,
}

/// The body of a call, byte by byte as it went over the wire.
pub(super) async fn body(source: Source, attempt: AttemptId, number: u32, half: Half) -> Result<Vec<u8>, CliError> {
    let calls = reading::calls(&source, attempt).await?;
    let part = |part: String| CliError::NoSuchPart {
        whole: format!("attempt {attempt}"),
        part,
        have: calls.last().map(|(last, _)| format!("calls 0 to {}", last.number)).into_iter().collect(),
    };
    let found = calls.iter().find(|(call, _)| call.number == number);
    let (call, _) = found.ok_or_else(|| part(format!("call {number}")))?;
    let skeleton = match half {
        Half::Request => call.request,
        Half::Response => call.response.ok_or_else(|| part(format!("answer to call {number}: none came")))?,
    };
    let what = format!("call {number} of attempt {attempt}");
    let bytes = super::blob(&source, &skeleton, attempt.episode.run, &what).await?;
    let dropped = show::dropped(&source.run(&attempt.episode.run.to_string()).await?);
    // Which blobs there are is known only from others of them: each is fetched when it is named.
    let read = move |source: &reading::Reading| {
        let mut refused = None;
        let joined = join(&bytes, |digest| {
            source.blob(digest).unwrap_or_else(|error| {
                refused = Some(error);
                None
            })
        });
        match refused {
            Some(error) => Err(error),
            None => joined.map_err(|source| match dropped {
                Some(said) => {
                    CliError::NoSuchPart { whole: what, part: format!("whole body any more: {said}"), have: Vec::new() }
                }
                None => CliError::Body { what, source },
            }),
        }
    };
    reading::blocking(source, read).await?
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

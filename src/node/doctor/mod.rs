//! `longhaul doctor`: what this machine has of what sandboxes need, and how to get the rest.
//!
//! Looking ([`look`]) and judging ([`judge`]) are apart: what is said for given facts is
//! pure, and tested by value.

mod facts;
mod judge;
mod look;

use std::fmt::Write as _;

use serde::Serialize;

use crate::cli::DoctorArgs;
use crate::error::NodeError;
use crate::exit::Exit;
use crate::output::{self, Format, Tone, escape_line, paint};
use crate::places;
use crate::settings::Settings;

pub use facts::{Disk, Facts, Range, User};
pub use judge::judge;
pub use look::look;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is there.
    Good,
    /// Something works less well without it.
    Warning,
    /// Sandboxes cannot run without it.
    Missing,
}

/// Who can mend something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// The caller.
    You,
    /// Whoever administers the machine.
    Administrator,
}

/// How something is mended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fix {
    /// Who can do it.
    pub who: Who,
    /// What to do; for an administrator, the text to send.
    pub text: String,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What it is.
    pub name: &'static str,
    /// How it came out.
    pub outcome: Outcome,
    /// What was found.
    pub found: String,
    /// How to mend it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<Fix>,
    /// What still works as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without: Option<&'static str>,
}

/// What `--format json` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    outcome: Outcome,
    checks: &'a [Check],
}

/// Looks at this machine and says what it found.
///
/// # Errors
///
/// The folders cannot be told, or stdout cannot be written.
pub async fn run(args: &DoctorArgs, settings: &Settings) -> Result<Exit, NodeError> {
    let facts = look(
        &places::store(args.store.as_deref(), settings)?,
        &places::layers(args.place.layers.as_deref(), settings)?,
        &places::scratch(args.place.scratch.as_deref(), settings, None)?,
    )
    .await;
    let checks = judge(&facts);
    let outcome = checks.iter().map(|check| check.outcome).max().unwrap_or(Outcome::Good);
    match args.format {
        Format::Json => output::json(&Report { outcome, checks: &checks }),
        Format::Human => output::data(&render(&checks, output::stdout_colours())),
    }
    .map_err(NodeError::Output)?;
    Ok(if outcome == Outcome::Missing { Exit::Machine } else { Exit::Success })
}

/// The checks for people: a line each, and below it what is to be done.
#[must_use]
pub fn render(checks: &[Check], colours: bool) -> String {
    let width = checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let (sign, tone) = match check.outcome {
            Outcome::Good => ("ok     ", Tone::Good),
            Outcome::Warning => ("warning", Tone::Warn),
            Outcome::Missing => ("missing", Tone::Bad),
        };
        // A string takes whatever is written to it.
        let _ = writeln!(text, "{}  {:width$}  {}", paint(sign, tone, colours), check.name, escape_line(&check.found));
        if let Some(fix) = &check.fix {
            let who = match fix.who {
                Who::You => "To mend it:",
                Who::Administrator => "Only an administrator can mend it. A text to send:",
            };
            let _ = writeln!(text, "           {who}");
            for line in fix.text.lines() {
                let _ = writeln!(text, "             {}", escape_line(line));
            }
        }
        if let Some(without) = check.without {
            let _ = writeln!(text, "           Without it: {without}");
        }
    }
    let missing = checks.iter().filter(|check| check.outcome == Outcome::Missing).count();
    let _ = match missing {
        0 => writeln!(text, "\nThis machine can run sandboxes."),
        count => {
            writeln!(text, "\nThis machine cannot run sandboxes yet: {count} of {} things are missing.", checks.len())
        }
    };
    text
}

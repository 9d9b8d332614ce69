//! Parquet: `runs`, `episodes`, `attempts`, `steps` and `calls`, a file each, for pandas, DuckDB
//! and whatever else reads tables.
//!
//! Amounts of money are whole billionths of a dollar, and beside them the same number as a decimal
//! of dollars: sums of either are exact. What is not known is null and never zero.

mod rows;
mod table;

use std::rc::Rc;

use self::rows::{AttemptRow, CallRow, EpisodeRow, RunRow, StepRow};
use self::table::{Field, Table};
use super::files::{Pictures, Staging};
use super::source::Source;
use super::{Attempts, ExportError, Exported};
use crate::measured::Plans;
use crate::view::Trajectories;

/// A column of a table, for documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnInfo {
    /// The table.
    pub table: &'static str,
    /// The column.
    pub name: &'static str,
    /// Its type.
    pub kind: &'static str,
    /// Whether it may be null.
    pub optional: bool,
    /// What it says, and in which unit.
    pub about: &'static str,
}

/// Every column of the tables, in order.
#[must_use]
pub fn columns() -> Vec<ColumnInfo> {
    fn of<R>(table: &'static str, fields: Vec<Field<R>>) -> impl Iterator<Item = ColumnInfo> {
        fields.into_iter().map(move |field| ColumnInfo {
            table,
            name: field.name,
            kind: field.kind.name(),
            optional: field.optional,
            about: field.about,
        })
    }
    let (runs, episodes) = (of("runs", rows::runs()), of("episodes", rows::episodes()));
    let (attempts, steps) = (of("attempts", rows::attempts()), of("steps", rows::steps()));
    runs.chain(episodes).chain(attempts).chain(steps).chain(of("calls", rows::calls())).collect()
}

/// The files.
struct Tables {
    runs: Table<RunRow>,
    episodes: Table<EpisodeRow>,
    attempts: Table<AttemptRow>,
    steps: Table<StepRow>,
    calls: Table<CallRow>,
}

pub(super) fn write<T: Trajectories>(
    sources: &[Source<'_, T>],
    attempts: Attempts,
    screenshots: bool,
    staging: &Staging,
) -> Result<Exported, ExportError> {
    let folder = staging.folder();
    let mut tables = Tables {
        runs: Table::create(folder, "runs", rows::runs())?,
        episodes: Table::create(folder, "episodes", rows::episodes())?,
        attempts: Table::create(folder, "attempts", rows::attempts())?,
        steps: Table::create(folder, "steps", rows::steps())?,
        calls: Table::create(folder, "calls", rows::calls())?,
    };
    let mut pictures = Pictures::new(folder.join("screenshots"));
    let mut exported = Exported::default();
    for source in sources {
        let mut plans = Plans::new(source.from());
        let mut episodes = 0;
        source.each(|episode| {
            let episode = Rc::new(episode);
            let measured = source.measured(&mut plans, &episode)?;
            for (attempt, step) in source.taken(&episode, attempts)? {
                if screenshots {
                    pictures.add(&step.screen.png, || source.screen(attempt, &step))?;
                }
                tables.steps.push(&StepRow { episode: Rc::clone(&episode), attempt, step })?;
                exported.steps += 1;
            }
            // Of every attempt, whichever steps were asked for: all of them were paid.
            for attempt in &episode.attempts {
                for (call, late) in source.calls(attempt.id)? {
                    tables.calls.push(&CallRow { episode: Rc::clone(&episode), attempt: attempt.id, call, late })?;
                }
                tables.attempts.push(&AttemptRow { episode: Rc::clone(&episode), attempt: attempt.clone() })?;
            }
            tables.episodes.push(&EpisodeRow { episode, measured })?;
            episodes += 1;
            Ok(())
        })?;
        tables.runs.push(&RunRow { run: source.view().clone(), episodes })?;
        exported.episodes += episodes;
    }
    exported.screenshots = pictures.count();
    let Tables { runs, episodes, attempts, steps, calls } = tables;
    runs.finish()?;
    episodes.finish()?;
    attempts.finish()?;
    steps.finish()?;
    calls.finish()?;
    Ok(exported)
}

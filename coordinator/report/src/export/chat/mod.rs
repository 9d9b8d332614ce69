//! Training sets: conversations with pictures, in the form of TRL's vision datasets.
//!
//! ```text
//! train.jsonl     a row a line
//! images/         the screenshots, by digest
//! about.json      what was asked for, what was left out, and why
//! ```
//!
//! A row has the path of each picture in `images`, in the order of the placeholders in its
//! messages: `prompt` and `completion` for a step, or `messages` for an episode. The words are
//! those of the generic loop that writes its calls as text, whichever agent's the trajectory is:
//! what is learned is what that loop asks for later. What a verifier or a judge said, checklists,
//! model calls and reasoning are nowhere in it.

mod talk;

use std::collections::HashSet;

use longhaul_core::functions::{Inexpressible, declared, in_text};
use longhaul_core::ids::TaskName;
use longhaul_core::outcome::Settlement;
use serde_json::{Value, json};

use self::talk::Talk;
use super::files::{Lines, Pictures, Staging, write_json};
use super::source::{Played, Source};
use super::{ExportError, Exported};
use crate::view::{EpisodeView, Trajectories};

/// What goes into a training set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatOptions {
    /// Only episodes of at most so many steps of the agent.
    pub max_steps: Option<u32>,
    /// Only the first success of each task, over all that is exported: its longer or shorter
    /// siblings do not take its place.
    pub first_success: bool,
    /// Episodes whose verdict is a failure, too.
    pub failures: bool,
    /// What a row is.
    pub rows: Rows,
    /// In what coordinates are.
    pub coordinates: Coordinates,
}

/// What a row of a training set is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// A step: what the loop would show before it, and the agent's answer.
    Steps {
        /// How many of the last screenshots it would show.
        keep_images: u32,
    },
    /// An episode, with every screenshot.
    Episodes,
}

/// In what coordinates of calls are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coordinates {
    /// Pixels of the screenshots.
    #[default]
    Pixels,
    /// Thousandths of the screen.
    Thousandths,
}

pub(super) fn write<T: Trajectories>(
    sources: &[Source<'_, T>],
    options: &ChatOptions,
    staging: &Staging,
) -> Result<Exported, ExportError> {
    let folder = staging.folder();
    let mut lines = Lines::create(folder.join("train.jsonl"))?;
    let mut pictures = Pictures::new(folder.join(IMAGES));
    let mut exported = Exported::default();
    let mut solved = HashSet::new();
    for source in sources {
        source.each(|episode| {
            if let Some(reason) = unfit(&episode, options, &mut solved) {
                exported.leave_out(reason);
                return Ok(());
            }
            if source.view().pictures_dropped_at.is_some() {
                exported.leave_out("the pictures of its run were dropped");
                return Ok(());
            }
            let Some(played) = source.played(episode)? else { return Ok(()) };
            let talk = match talk_of(&played, options) {
                Ok(talk) => talk,
                Err(reason) => {
                    exported.leave_out(reason);
                    return Ok(());
                }
            };
            for step in talk.seen() {
                pictures.add(&step.screen.png, || source.screen(played.attempt, step))?;
            }
            for row in talk.rows(options.rows) {
                lines.line(&with_names(row, &played))?;
                exported.rows += 1;
            }
            exported.episodes += 1;
            exported.steps += u64::try_from(talk.turns()).unwrap_or(u64::MAX);
            Ok(())
        })?;
    }
    lines.finish()?;
    exported.screenshots = pictures.count();
    write_json(&folder.join("about.json"), &about(sources, options, &exported))?;
    Ok(exported)
}

/// The folder of the pictures.
const IMAGES: &str = "images";

/// Why an episode is not learned from, as far as its settlement says.
fn unfit(episode: &EpisodeView, options: &ChatOptions, solved: &mut HashSet<TaskName>) -> Option<String> {
    let passed = match &episode.settlement {
        None => return Some("not settled yet".to_owned()),
        Some(Settlement::Verdict(verdict)) => verdict.passed,
        Some(other) => return Some(other.kind().to_string()),
    };
    if !passed {
        return (!options.failures).then(|| "failed".to_owned());
    }
    let is_first = solved.insert(episode.task.clone());
    (options.first_success && !is_first).then(|| "its task was solved before".to_owned())
}

/// The conversation of an episode, or why it is left out.
fn talk_of<'a>(played: &'a Played, options: &ChatOptions) -> Result<Talk<'a>, String> {
    let steps = played.answered().count();
    if let Some(most) = options.max_steps
        && steps > usize::try_from(most).unwrap_or(usize::MAX)
    {
        return Err(format!("more than {most} steps"));
    }
    if played.description().is_empty() {
        return Err("its task is not known any more".to_owned());
    }
    let talk = Talk::of(played, options.coordinates).map_err(|error: Inexpressible| error.to_string())?;
    if talk.turns() == 0 { Err("nothing was done".to_owned()) } else { Ok(talk) }
}

/// A row with whose it is; trainers leave such columns alone.
fn with_names(mut row: Value, played: &Played) -> Value {
    row["episode"] = json!(played.episode.id);
    row["task"] = json!(played.episode.task.to_string());
    row["agent"] = json!(played.episode.agent);
    row
}

fn about<T: Trajectories>(sources: &[Source<'_, T>], options: &ChatOptions, exported: &Exported) -> Value {
    let (rows, keep_images) = match options.rows {
        Rows::Steps { keep_images } => ("steps", Some(keep_images)),
        Rows::Episodes => ("episodes", None),
    };
    let coordinates = match options.coordinates {
        Coordinates::Pixels => "pixels",
        Coordinates::Thousandths => "thousandths",
    };
    json!({
        "format": "longhaul-chat-1",
        "runs": sources.iter().map(|source| json!(source.run())).collect::<Vec<_>>(),
        "rows": rows,
        "keep_images": keep_images,
        "coordinates": coordinates,
        "calls": "text",
        "max_steps": options.max_steps,
        "first_success": options.first_success,
        "failures": options.failures,
        "written": {
            "episodes": exported.episodes,
            "steps": exported.steps,
            "rows": exported.rows,
            "images": exported.screenshots,
        },
        "left_out": exported.left_out,
    })
}

/// The words before the task, for a screen of that size.
fn system(coordinates: Coordinates, width: u16, height: u16) -> String {
    let (columns, rows) = match coordinates {
        Coordinates::Pixels => (u32::from(width), u32::from(height)),
        Coordinates::Thousandths => (1000, 1000),
    };
    in_text(longhaul_core::functions::OWN_WORDS, &declared(columns, rows))
}

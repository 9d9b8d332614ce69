//! The checklist judge: a model that looks at a trajectory's screenshots and says of each item of
//! a task's checklist whether it holds.
//!
//! Here is all of it that needs no model: what a judge is asked ([`prompt`]), which screenshots it
//! sees ([`select_frames`]), what its answer says ([`read_answer`]), and what answers come to
//! ([`judge`](fn@judge)). An answer that cannot be read is an [`Unreadable`], never a score.
//!
//! The structure is the published one of Gym-Anything; `docs/verification.md` lists what differs.

mod answer;
mod frames;
mod plan;
mod prompt;
mod rubric;
mod score;
mod verify;

pub use answer::{ItemVerdict, JudgeAnswer, Unreadable, read_answer};
pub use frames::{FrameCap, FramePolicy, ParseFramePolicyError, select_frames};
pub use plan::JudgePlan;
pub use prompt::prompt;
pub use rubric::{Rubric, RubricError, RubricItem};
pub use score::{
    Agreement, Answered, Asked, ItemKind, ItemResult, JudgeResult, Judgement, ProgramPart, Score, Scorer, VerdictParts,
    judge, score,
};
pub use verify::{ParseVerifyError, Verify};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The file that holds a task's checklist, where the task does not name another.
pub const CHECKLIST_FILE: &str = "vlm_checklist.json";

/// The checklist that a task names: `success.spec` is a path, or has one as `checklist` or
/// `checklist_path`, which may be in a table `vlm_checklist`. `raw` is all of its `task.json`.
#[must_use]
pub fn named_checklist(raw: &Value) -> Option<&str> {
    let success = raw.get("success")?;
    if success.get("mode")?.as_str()? != "vlm_checklist" {
        return None;
    }
    let spec = success.get("spec")?;
    let keys = ["checklist", "checklist_path"];
    let nested = spec.get("vlm_checklist");
    spec.as_str()
        .or_else(|| nested?.as_str())
        .or_else(|| keys.iter().find_map(|key| nested?.get(*key)?.as_str()))
        .or_else(|| keys.iter().find_map(|key| spec.get(*key)?.as_str()))
}

/// What a judge says of an item, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// It does not hold.
    Fail,
    /// There is progress, but not all of it. Of integrity items it is a fail.
    Partial,
    /// It holds.
    Pass,
}

impl Mark {
    /// The word in answers, tables and exports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Partial => "partial",
            Self::Pass => "pass",
        }
    }

    /// What of an item's points it earns.
    #[must_use]
    pub const fn share(self) -> f64 {
        match self {
            Self::Fail => 0.0,
            Self::Partial => 0.5,
            Self::Pass => 1.0,
        }
    }
}

/// A text of a model, cut to at most `most` bytes.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

//! A run as another judge sees it: verdicts of a rejudgement in place of those that it was settled
//! with. What it was settled as stays what it is; the two are different sides of a comparison.

use std::collections::BTreeMap;

use longhaul_core::ids::{EpisodeId, RunId};
use longhaul_core::judge::{JudgePlan, Judgement, ProgramPart, Scorer, VerdictParts};
use longhaul_core::measure::{RoundKind, State};

use crate::measured::{Measured, MeasuredRun, checklist_round};

/// What another judge says of the episodes of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Rejudgement {
    /// What it is called in tables.
    pub name: String,
    /// The run.
    pub run: RunId,
    /// Who judged, and how.
    pub judge: JudgePlan,
    /// What came of each episode: its judgement, or why there is none.
    pub verdicts: BTreeMap<EpisodeId, Result<Judgement, String>>,
}

impl MeasuredRun {
    /// The run as it is judged there. Episodes whose agent came to no end are as they were; of others
    /// that are not judged there nothing is known.
    #[must_use]
    pub fn rejudged(mut self, by: &Rejudgement) -> Self {
        for episode in &mut self.episodes {
            episode.rejudge(by);
        }
        self
    }
}

impl Measured {
    fn rejudge(&mut self, by: &Rejudgement) {
        let Some(ended_by) = self.row.state.ended_by() else { return };
        // What judging cost is in no record of the run's.
        self.row.judge_dollars = None;
        self.provenance.judge = Some(by.judge.clone());
        self.provenance.scoring = Some(format!("another judge: {}", by.name));
        self.provenance.checklist = None;
        let judgement = match by.verdicts.get(&self.id) {
            Some(Ok(judgement)) => judgement,
            missing => {
                let reason =
                    missing.and_then(|missing| missing.as_ref().err()).map_or("it is not among them", String::as_str);
                self.why = format!("not judged in {}: {reason}", by.name);
                self.row.state = State::Unverified { ended_by };
                self.row.rounds.retain(|round| round.kind != RoundKind::Other);
                self.parts = None;
                return;
            }
        };
        let score = Some(judgement.score).filter(|score| score.is_finite());
        let program = self.program();
        self.row.state = State::Verdict { passed: judgement.passed, score, ended_by };
        // Rounds of the task's own are no judge's.
        if self.row.has_ordered_rounds() {
            // Nor do they say any more when the verdict was known.
            self.row.rounds.iter_mut().for_each(|round| round.last_step = None);
        } else {
            self.row.rounds = vec![checklist_round(judgement)];
        }
        self.why = judgement.judges.first().map(|judge| judge.reasoning.clone()).unwrap_or_default();
        self.provenance.checklist = Some(judgement.checklist);
        self.parts = Some(Box::new(VerdictParts {
            decided_by: Scorer::Checklist,
            program,
            checklist: Some(judgement.clone()),
            rounds: self.parts.as_ref().map(|parts| parts.rounds.clone()).unwrap_or_default(),
        }));
    }

    /// What the task's own program said, whether it decided or not.
    fn program(&self) -> Option<ProgramPart> {
        match &self.parts {
            Some(parts) => parts.program.clone(),
            None => match self.row.state {
                State::Verdict { passed, score, .. } => {
                    Some(ProgramPart::Scored { passed, score: score.unwrap_or_default(), feedback: self.why.clone() })
                }
                _ => None,
            },
        }
    }
}

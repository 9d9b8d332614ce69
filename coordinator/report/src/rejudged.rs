//! A run as another judge sees it: verdicts of a rejudgement in place of those that it was settled
//! with. What it was settled as stays what it is; the two are different sides of a comparison.

use std::collections::BTreeMap;

use longhaul_core::ids::{EpisodeId, RunId};
use longhaul_core::judge::{JudgePlan, Judgement, ProgramPart, Scorer, VerdictParts};
use longhaul_core::measure::{RoundKind, RoundRow, State};
use longhaul_core::rounds::{RoundResult, feedback, score};

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
    /// What came of each episode: what it says, or why it says nothing.
    pub verdicts: BTreeMap<EpisodeId, Result<Opinion, String>>,
}

/// What another judge says of an episode.
#[derive(Clone, Debug, PartialEq)]
pub struct Opinion {
    /// By a checklist; none where the rounds of the task decide.
    pub judgement: Option<Judgement>,
    /// The rounds of the task, with what a judge is asked of them decided anew; empty where nothing
    /// was asked of them.
    pub rounds: Vec<RoundResult>,
}

impl Opinion {
    /// Whether the task is passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.judgement.as_ref().map_or_else(|| score(&self.rounds).passed, |judgement| judgement.passed)
    }

    /// The score, of 100.
    #[must_use]
    pub fn score(&self) -> f64 {
        self.judgement.as_ref().map_or_else(|| score(&self.rounds).score, |judgement| judgement.score)
    }

    /// Why, in a few words; hostile until escaped.
    #[must_use]
    pub fn why(&self) -> String {
        match &self.judgement {
            Some(judgement) => judgement.judges.first().map(|judge| judge.reasoning.clone()).unwrap_or_default(),
            None => feedback(&self.rounds),
        }
    }
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
        let opinion = match by.verdicts.get(&self.id) {
            Some(Ok(opinion)) => opinion,
            missing => {
                let reason =
                    missing.and_then(|missing| missing.as_ref().err()).map_or("it is not among them", String::as_str);
                self.why = format!("not judged in {}: {reason}", by.name);
                self.row.state = State::Unverified { ended_by };
                self.row.rounds.retain(|round| round.kind != RoundKind::Other);
                self.parts = None;
                self.provenance.checklist = None;
                return;
            }
        };
        let score = Some(opinion.score()).filter(|score| score.is_finite());
        let program = self.program();
        self.row.state = State::Verdict { passed: opinion.passed(), score, ended_by };
        self.why = opinion.why();
        self.take_rounds(opinion);
        let rounds = if opinion.rounds.is_empty() {
            self.parts.as_ref().map(|parts| parts.rounds.clone()).unwrap_or_default()
        } else {
            opinion.rounds.clone()
        };
        if let Some(judgement) = &opinion.judgement {
            self.provenance.checklist = Some(judgement.checklist);
        }
        self.parts = Some(Box::new(VerdictParts {
            decided_by: if opinion.judgement.is_some() { Scorer::Checklist } else { Scorer::Rounds },
            program: program.filter(|_| opinion.judgement.is_some()),
            checklist: opinion.judgement.clone(),
            rounds,
        }));
    }

    /// The rounds as they are measured.
    fn take_rounds(&mut self, opinion: &Opinion) {
        if !opinion.rounds.is_empty() {
            let known = |number: u32| self.row.rounds.iter().find(|round| round.number == number)?.last_step;
            let row = |row: RoundRow| RoundRow { last_step: known(row.number), ..row };
            self.row.rounds = opinion.rounds.iter().map(|round| row(round.row())).collect();
        }
        // Rounds of the task's own are no checklist's, and where one decides they do not say any more
        // when the verdict was known.
        match &opinion.judgement {
            None => {}
            Some(_) if self.row.has_ordered_rounds() => {
                self.row.rounds.iter_mut().for_each(|round| round.last_step = None);
            }
            Some(judgement) => self.row.rounds = vec![checklist_round(judgement)],
        }
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

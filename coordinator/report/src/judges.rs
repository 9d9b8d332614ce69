//! How far those who judge a side agree: its judges with each other, and with the tasks' programs.

use longhaul_core::judge::{Mark, ProgramPart, VerdictParts};
use longhaul_core::stats::{Agreement, agreement, cohen_kappa};
use serde::Serialize;

/// How far those who judged the episodes of a side agree; each part is absent where there is
/// nothing to agree on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Judges {
    /// Of items of checklists, and of what rounds ask, where several judges looked at them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<Agreement>,
    /// Of whether a task is passed, each judge by itself, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdicts: Option<Agreement>,
    /// Of the checklist and the task's own program, where both came to a verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<WithProgram>,
}

/// How far checklists and programs agree.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WithProgram {
    /// The episodes of which both have a verdict.
    pub episodes: u64,
    /// Those of which both say the same.
    pub same: u64,
    /// Cohen's kappa; none where it is not defined.
    pub kappa: Option<f64>,
}

impl Judges {
    /// Over what verdicts were made of; nothing where nobody could agree with anybody.
    #[must_use]
    pub fn of<'a>(parts: impl Iterator<Item = &'a VerdictParts>) -> Option<Self> {
        let (mut items, mut verdicts, mut programs) = (Vec::new(), Vec::new(), Vec::new());
        for parts in parts {
            // What rounds ask of a judge are items as well.
            let asked = parts.rounds.iter().filter_map(|round| round.judged.as_ref());
            for judgement in parts.checklist.iter().chain(asked).filter(|judgement| judgement.judges.len() > 1) {
                let said = |index: usize| -> Vec<Option<Mark>> {
                    let marks = judgement.judges.iter().map(|judge| judge.verdicts.get(index));
                    marks.map(|verdict| verdict.map(|verdict| verdict.mark)).collect()
                };
                items.extend((0..judgement.items.len()).map(said));
            }
            let Some(judgement) = &parts.checklist else { continue };
            if judgement.judges.len() > 1 {
                verdicts.push(judgement.judges.iter().map(|judge| Some(judge.passed)).collect());
            }
            if let Some(ProgramPart::Scored { passed, .. }) = &parts.program {
                programs.push((judgement.passed, *passed));
            }
        }
        let program = (!programs.is_empty()).then(|| WithProgram {
            episodes: programs.len() as u64,
            same: programs.iter().filter(|(one, other)| one == other).count() as u64,
            kappa: cohen_kappa(&programs),
        });
        let found = Self { items: agreement(&items), verdicts: agreement(&verdicts), program };
        (found != Self::default()).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts whose judges say of two items what `judges` says (`+` holds, `-` does not), and whose
    /// program says `program`.
    fn parts(judges: &[&str], program: Option<bool>) -> VerdictParts {
        let mark = |letter| if letter == '+' { "pass" } else { "fail" };
        let judge = |marks: &&str| {
            let verdicts: Vec<_> =
                marks.chars().map(|letter| serde_json::json!({"id": "a", "mark": mark(letter)})).collect();
            serde_json::json!({
                "model": "m", "call": 0, "asked": 1, "score": 0.0, "passed": !marks.contains('-'),
                "verdicts": verdicts, "reasoning": "",
            })
        };
        let items: Vec<_> = ["a", "b"]
            .map(|id| serde_json::json!({"id": id, "kind": "completion", "points": 50.0, "mark": "pass"}))
            .into();
        let digest = longhaul_core::digest::Digest::of(b"x");
        let program =
            program.map(|passed| serde_json::json!({"kind": "scored", "passed": passed, "score": 0.0, "feedback": ""}));
        serde_json::from_value(serde_json::json!({
            "decided_by": "checklist",
            "program": program,
            "checklist": {
                "passed": !judges[0].contains('-'), "score": 0.0, "completion": 0.0, "integrity_rate": 1.0,
                "completion_threshold": 100.0, "integrity_threshold": 1.0, "items": items,
                "judges": judges.iter().map(judge).collect::<Vec<_>>(), "endpoint": "e", "model": "m",
                "frames": longhaul_core::judge::FramePolicy::Published, "shown": [], "prompt": digest, "checklist": digest,
            },
        }))
        .unwrap()
    }

    #[test]
    fn agreement_by_hand() {
        // Three episodes by two judges, two items each: ++ ++, +- ++, -- --. Of six items five are
        // the same; of three verdicts the second differs. Programs say yes, yes, no: with the first
        // judge's yes, no, no that is 2 of 3; chance (1*2 + 2*1) / 9 = 4/9; kappa
        // (2/3 - 4/9) / (1 - 4/9) = 0.4.
        let all =
            [parts(&["++", "++"], Some(true)), parts(&["+-", "++"], Some(true)), parts(&["--", "--"], Some(false))];
        let found = Judges::of(all.iter()).unwrap();
        assert_eq!(found.items.map(|items| (items.units, items.same)), Some((6, 5.0 / 6.0)));
        assert_eq!(found.verdicts.map(|verdicts| (verdicts.units, verdicts.same)), Some((3, 2.0 / 3.0)));
        let program = found.program.unwrap();
        assert_eq!((program.episodes, program.same), (3, 2));
        assert!((program.kappa.unwrap() - 0.4).abs() < 1e-12);
        assert_eq!(Judges::of([parts(&["+-"], None)].iter()), None, "one judge alone agrees with nobody");
        // What a round asked, of which the second of two items differs; there is no verdict of the whole.
        let judged = parts(&["+-", "++"], None).checklist;
        let round = serde_json::json!({"number": 1, "kind": "open", "steps": 1, "assertions": [], "judged": judged});
        let round: longhaul_core::rounds::RoundResult = serde_json::from_value(round).unwrap();
        let rounds = VerdictParts { checklist: None, rounds: vec![round], ..parts(&["+-"], None) };
        let found = Judges::of([rounds].iter()).unwrap();
        assert_eq!(found.items.map(|items| (items.units, items.same)), Some((2, 0.5)));
        assert_eq!(found.verdicts, None);
    }
}

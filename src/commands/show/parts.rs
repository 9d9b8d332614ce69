//! What a verdict was made of, where a checklist or rounds had a part in it.

use longhaul_core::judge::{ItemKind, Judgement, ProgramPart, Scorer, VerdictParts};
use longhaul_core::measure::RoundError;
use longhaul_core::rounds::RoundResult;

use super::{indent, indent_by};
use crate::output::escape_line;
use crate::show;

/// The lines of an episode that say it.
pub(super) fn lines(parts: &VerdictParts) -> Vec<String> {
    let mut lines: Vec<String> = parts.rounds.iter().flat_map(round_lines).collect();
    if !parts.rounds.is_empty() && parts.decided_by != Scorer::Rounds {
        lines.insert(0, "rounds    they do not decide".to_owned());
    }
    if let Some(judgement) = &parts.checklist {
        lines.extend(judgement_lines(judgement));
    }
    match &parts.program {
        None => {}
        Some(ProgramPart::Scored { passed, score, feedback }) => {
            let (word, score) = (show::word(*passed), show::score(*score));
            lines.push(format!("program   {word}, score {score}; it does not decide: {}", indent(feedback)));
        }
        Some(ProgramPart::Unverified { reason }) => lines.push(format!("program   no verdict: {}", indent(reason))),
    }
    lines.extend(parts.agree().map(|agree| {
        let word = if agree { "come to the same" } else { "do not agree" };
        format!("agreement program and checklist {word}")
    }));
    lines
}

/// A round, with each of its assertions: whether it holds, and why.
fn round_lines(round: &RoundResult) -> Vec<String> {
    let held = round.assertions.iter().filter(|assertion| assertion.held == Some(true)).count();
    let ended = round.ended_by.map(|ended_by| format!(", {} steps, ended by {ended_by}", round.steps));
    let broke = round.error.map(|error| {
        let error = match error {
            RoundError::Generation => "generation error",
            RoundError::Round => "round error",
        };
        format!("; {error}: {}", escape_line(round.why.as_deref().unwrap_or_default()))
    });
    let mut lines = vec![format!(
        "round {}   {}: {held} of {} hold{}{}",
        round.number,
        round.kind,
        round.assertions.len(),
        ended.unwrap_or_default(),
        broke.unwrap_or_default()
    )];
    for assertion in &round.assertions {
        let word = match assertion.held {
            Some(true) => "holds",
            Some(false) => "fails",
            None => "open ",
        };
        let (id, says, why) = (&assertion.id, escape_line(&assertion.says), escape_line(&assertion.why));
        lines.push(format!("  {word} {} {}: {says} ({why})", assertion.aspect, escape_line(id)));
    }
    lines
}

fn judgement_lines(judgement: &Judgement) -> Vec<String> {
    let Judgement { endpoint, model, shown, frames, judges, .. } = judgement;
    let mut lines = vec![format!(
        "judged by {}; {} screenshots ({frames}); completion {} of 100, integrity {:.0} %",
        escape_line(&format!("{endpoint}:{model}")),
        shown.len(),
        show::score(judgement.completion),
        judgement.integrity_rate * 100.0
    )];
    for (index, item) in judgement.items.iter().enumerate() {
        let (kind, worth) = match (item.kind, item.points) {
            (ItemKind::Completion, Some(points)) => ("", format!(" ({points})")),
            (ItemKind::Completion, None) => ("", String::new()),
            (ItemKind::Integrity, _) => ("integrity ", String::new()),
        };
        let said = judges.first().and_then(|judge| judge.verdicts.get(index));
        let evidence = said.map(|verdict| verdict.evidence.as_str()).filter(|evidence| !evidence.is_empty());
        let evidence = evidence.map(|evidence| format!(": {}", escape_line(evidence))).unwrap_or_default();
        lines.push(format!("  {kind}{}{worth} {}{evidence}", escape_line(&item.id), item.mark.name()));
    }
    if let Some(agreement) = judgement.agreement {
        let verdicts = if agreement.same_verdict { "the same verdict" } else { "different verdicts" };
        lines.push(format!(
            "judges    {} of them, {verdicts}; all say the same of {:.0} % of the items, {:.0} % of pairs do",
            judges.len(),
            agreement.unanimous * 100.0,
            agreement.pairwise * 100.0
        ));
        for (number, judge) in (1..).zip(judges) {
            let reasoning = indent_by(&judge.reasoning, 4);
            let (word, score) = (show::word(judge.passed), show::score(judge.score));
            lines.push(format!("  judge {number} (call {}): {word}, score {score}: {reasoning}", judge.call));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use longhaul_core::measure::{Aspect, RoundKind};
    use longhaul_core::outcome::EndedBy;
    use longhaul_core::rounds::AssertionResult;

    use super::*;

    #[test]
    fn rounds_are_shown_with_each_assertion_and_cannot_be_commanded() {
        let assertion = |id: &str, held| AssertionResult {
            id: id.to_owned(),
            aspect: Aspect::Business,
            says: "it is medium".to_owned(),
            held,
            why: "it is \"\u{1b}[31mlow\"".to_owned(),
        };
        let held = [("a", Some(true)), ("b", Some(false)), ("c", None)];
        let round = RoundResult {
            number: 1,
            kind: RoundKind::Revise,
            error: None,
            why: None,
            ended_by: Some(EndedBy::Agent),
            steps: 4,
            last_step: Some(4),
            reading: None,
            assertions: held.iter().map(|(id, held)| assertion(id, *held)).collect(),
            judged: None,
        };
        let broken = RoundResult {
            number: 2,
            error: Some(RoundError::Round),
            why: Some("the episode was over before it".to_owned()),
            ended_by: None,
            assertions: vec![assertion("a", Some(false))],
            ..round.clone()
        };
        let mut parts =
            VerdictParts { decided_by: Scorer::Rounds, program: None, checklist: None, rounds: vec![round, broken] };
        let said = lines(&parts);
        assert_eq!(said[0], "round 1   revise: 1 of 3 hold, 4 steps, ended by agent");
        assert_eq!(said[1], "  holds business a: it is medium (it is \"\\u{1b}[31mlow\")");
        assert!(said[2].starts_with("  fails business b") && said[3].starts_with("  open  business c"), "{said:?}");
        assert_eq!(said[4], "round 2   revise: 0 of 1 hold; round error: the episode was over before it");
        parts.decided_by = Scorer::Checklist;
        assert_eq!(lines(&parts)[0], "rounds    they do not decide");
    }
}

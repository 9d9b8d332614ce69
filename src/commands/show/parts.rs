//! What a verdict was made of, where a checklist had a part in it.

use longhaul_core::judge::{ItemKind, Judgement, ProgramPart, VerdictParts};

use super::{indent, indent_by};
use crate::output::escape_line;
use crate::show;

/// The lines of an episode that say it.
pub(super) fn lines(parts: &VerdictParts) -> Vec<String> {
    let mut lines = Vec::new();
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

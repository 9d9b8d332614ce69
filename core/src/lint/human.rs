//! The report for people: grouped and counted by code.

use std::fmt::Write as _;

use super::finding::{Finding, LintReport, TaskCounts, shown};
use crate::spec::Severity;

/// How many examples of a code are shown, unless all are asked for.
const EXAMPLES: usize = 3;

/// Writes a report for people: what there is, then each code with how often it was met
/// and a few examples (all of them with `all`), what matters most first.
#[must_use]
pub fn human(report: &LintReport, all: bool) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_report(&mut text, report, all);
    text
}

fn write_report(text: &mut String, report: &LintReport, all: bool) -> std::fmt::Result {
    let tasks = &report.tasks;
    writeln!(text, "{} envs, {} tasks: {} loaded, {} refused", report.envs, tasks.files, tasks.loaded, tasks.refused)?;
    if tasks.with_rounds > 0 {
        let TaskCounts { with_rounds, rounds, assertions, .. } = tasks;
        writeln!(text, "{with_rounds} tasks in rounds: {rounds} rounds, {assertions} assertions")?;
    }
    if !report.splits.is_empty() {
        let splits: Vec<_> = report.splits.iter().map(|(name, count)| format!("{} {count}", shown(name))).collect();
        writeln!(text, "splits: {}", splits.join(", "))?;
    }
    let mut groups: Vec<&[Finding]> = report.findings.chunk_by(|one, next| one.code == next.code).collect();
    groups.sort_by_key(|group| group.first().map(|finding| (std::cmp::Reverse(finding.severity), finding.code)));
    for group in groups {
        let Some(first) = group.first() else { continue };
        writeln!(text, "\n{} {} ({})", first.severity.name(), first.code, group.len())?;
        let shown_count = if all { group.len() } else { EXAMPLES };
        for finding in group.iter().take(shown_count) {
            writeln!(text, "  {}: {}", shown(&finding.location()), shown(&finding.message))?;
        }
        if group.len() > shown_count {
            writeln!(text, "  and {} more (--all shows them)", group.len() - shown_count)?;
        }
        // Hints of single findings may say more than fits all of them.
        let same = group.iter().all(|finding| finding.hint == first.hint);
        writeln!(text, "  hint: {}", shown(if same { &first.hint } else { first.code.hint() }))?;
    }
    let of = |severity| report.findings.iter().filter(|finding| finding.severity == severity).count();
    writeln!(text, "\n{} errors, {} warnings, {} notes", of(Severity::Error), of(Severity::Warning), of(Severity::Note))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lint::{Code, Diagnostic};

    #[test]
    fn findings_are_grouped_and_what_matters_comes_first() {
        let finding = |code, file: &str| Finding::new(file, Diagnostic::new(code, "said"));
        let mut findings: Vec<_> = (0..5).map(|index| finding(Code::StrayFile, &format!("f{index}"))).collect();
        findings.push(finding(Code::JsonSyntax, "g"));
        findings.sort();
        let report = LintReport { envs: 2, findings, ..LintReport::default() };
        let text = human(&report, false);
        assert!(text.find("error json-syntax (1)").unwrap() < text.find("note stray-file (5)").unwrap(), "{text}");
        assert!(text.contains("  f2: said\n  and 2 more"), "{text}");
        assert!(text.ends_with("1 errors, 0 warnings, 5 notes\n"), "{text}");
        assert!(human(&report, true).contains("f4: said"));
    }
}

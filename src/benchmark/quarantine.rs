//! Lists of tasks that are to be left out: what a preflight writes and a run takes.
//!
//! A line is `ENV/TASK`, with a reason after ` #` if anybody cares; empty lines and lines
//! that start with `#` are skipped.

use std::collections::BTreeMap;

use longhaul_core::ids::TaskName;

/// Tasks that are to be left out, each with the reason that its list gives (which may be empty).
pub type Quarantine = BTreeMap<TaskName, String>;

/// A line that names no task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: `{text}` is no task: write ENV/TASK, and a reason after ` #` if you like")]
pub struct QuarantineError {
    /// The line, from 1.
    pub line: usize,
    /// What it says.
    pub text: String,
}

/// Reads a list.
///
/// # Errors
///
/// The first line that names no task.
pub fn parse_quarantine(text: &str) -> Result<Quarantine, QuarantineError> {
    let mut tasks = Quarantine::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, reason) = line.split_once(" #").unwrap_or((line, ""));
        let name =
            name.trim().parse().map_err(|_| QuarantineError { line: index + 1, text: name.trim().to_owned() })?;
        tasks.insert(name, reason.trim().to_owned());
    }
    Ok(tasks)
}

/// A line of a list: reads back as this task, or is a remark if no line can name it.
#[must_use]
pub fn quarantine_line(task: &TaskName, reason: &str) -> String {
    let plain = |text: &str| text.replace(|c: char| c.is_control(), " ");
    let (name, reason) = (task.to_string(), plain(reason));
    let line = format!("{name}  # {}", reason.trim());
    match parse_quarantine(&line) {
        Ok(tasks) if tasks.len() == 1 && tasks.contains_key(task) => line,
        _ => format!("# no line can name this task: {}", plain(&line)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(env: &str, task: &str) -> TaskName {
        TaskName { env: env.to_owned(), task: task.to_owned() }
    }

    #[test]
    fn a_list_has_remarks_reasons_and_tasks() {
        let list = "# made by hand\n\n a/b \nc/d # too slow # really\ne/f#1  #\n";
        let expected = Quarantine::from([
            (task("a", "b"), String::new()),
            (task("c", "d"), "too slow # really".to_owned()),
            (task("e", "f#1"), String::new()),
        ]);
        assert_eq!(parse_quarantine(list), Ok(expected));
        let wrong = parse_quarantine("a/b\nonly_a_task # x\n").unwrap_err();
        assert_eq!((wrong.line, wrong.text.as_str()), (2, "only_a_task"));
    }

    #[test]
    fn a_line_reads_back_whatever_the_names_and_reasons_are() {
        let line = quarantine_line(&task("a", "b"), "setup_hook: it says\n x/y\u{1b}[2J # no\n");
        assert_eq!(line, "a/b  # setup_hook: it says  x/y [2J # no");
        assert_eq!(parse_quarantine(&line).unwrap().into_keys().collect::<Vec<_>>(), [task("a", "b")]);
        for name in [task("#a", "b"), task("a\nc/d", "b"), task(" a", "b"), task("a", "b #c")] {
            let line = quarantine_line(&name, "why");
            assert_eq!(parse_quarantine(&line), Ok(Quarantine::new()), "{line}");
        }
    }
}

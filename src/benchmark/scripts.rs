//! Scripts and verifiers that do not parse: asked of bash and python3 themselves.
//!
//! Nothing is run: `bash -n` and Python's `compile` only read.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use longhaul_core::lint::{Finding, leaked_block};
use longhaul_core::spec::{Code, Diagnostic, Place};
use serde::Deserialize;
use walkdir::WalkDir;

use super::check::read_text;
use super::layout::Layout;
use super::read::parallel;

/// A program that could not be asked.
#[derive(Debug, thiserror::Error)]
#[error("cannot run {program}")]
pub struct ScriptsError {
    program: &'static str,
    #[source]
    source: io::Error,
}

/// How many verifiers one python3 reads: enough that starting it costs nothing, few
/// enough that all processors have work.
const BATCH: usize = 256;

/// Reads paths that end in NUL, and writes one JSON line for each that does not compile.
const COMPILE: &str = r#"
import json, sys
for index, path in enumerate(sys.stdin.buffer.read().split(b"\0")[:-1]):
    try:
        with open(path, "rb") as file:
            compile(file.read(), "verifier", "exec", dont_inherit=True)
    except SyntaxError as error:
        print(json.dumps([index, error.lineno, error.offset, str(error.msg)]))
    except (ValueError, RecursionError, MemoryError, OSError) as error:
        print(json.dumps([index, None, None, str(error)]))
"#;

/// Finds the shell scripts and verifiers of a benchmark that do not parse, and the
/// scripts with leaked text.
///
/// # Errors
///
/// bash or python3 cannot be run.
pub fn check_scripts(layout: &Layout) -> Result<Vec<Finding>, ScriptsError> {
    let (mut shell, mut python) = (Vec::new(), Vec::new());
    for entry in WalkDir::new(layout.environments()).sort_by_file_name().into_iter().filter_map(Result::ok) {
        if !entry.file_type().is_file() {
            continue;
        }
        let name = entry.file_name().to_string_lossy();
        if name.ends_with(".sh") {
            shell.push(entry.into_path());
        } else if name == "verifier.py" {
            python.push(entry.into_path());
        }
    }
    let batches: Vec<&[PathBuf]> = python.chunks(BATCH).collect();
    let mut findings = Vec::new();
    for found in parallel(&shell, |path| check_shell(layout, path)) {
        findings.extend(found?);
    }
    for found in parallel(&batches, |batch| check_python(layout, batch)) {
        findings.extend(found?);
    }
    Ok(findings)
}

fn check_shell(layout: &Layout, path: &Path) -> Result<Vec<Finding>, ScriptsError> {
    let name = layout.name(path);
    let mut findings = Vec::new();
    match read_text(path) {
        Ok(text) => findings.extend(leaked_block(&text).map(|diagnostic| Finding::new(&name, diagnostic))),
        Err(diagnostic) => {
            findings.push(Finding::new(&name, diagnostic));
            return Ok(findings);
        }
    }
    let output = Command::new("bash")
        .arg("-n")
        .arg("--")
        .arg(path)
        .env_remove("BASH_ENV")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|source| ScriptsError { program: "bash", source })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let (line, message) = shell_error(&said);
        let place = line.map(|line| Place { line, column: 1 });
        findings.push(Finding::new(name, Diagnostic::new(Code::ScriptSyntax, message).at(place)));
    }
    Ok(findings)
}

/// The first error that bash wrote: `PATH: line N: MESSAGE`.
fn shell_error(said: &str) -> (Option<u32>, String) {
    let first = said.lines().next().unwrap_or("bash says nothing");
    let parsed = first.rsplit_once(": line ").and_then(|(_, rest)| {
        let (number, message) = rest.split_once(": ")?;
        Some((number.parse().ok()?, message.to_owned()))
    });
    match parsed {
        Some((line, message)) => (Some(line), message),
        None => (None, first.to_owned()),
    }
}

#[derive(Deserialize)]
struct CompileError(usize, Option<u32>, Option<u32>, String);

fn check_python(layout: &Layout, paths: &[PathBuf]) -> Result<Vec<Finding>, ScriptsError> {
    let failed = |source| ScriptsError { program: "python3", source };
    let mut child = Command::new("python3")
        .args(["-I", "-S", "-W", "ignore", "-c", COMPILE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    // Closed when it goes out of scope, which is how the reader knows that this was all.
    if let Some(mut stdin) = child.stdin.take() {
        use std::os::unix::ffi::OsStrExt as _;
        let list: Vec<u8> =
            paths.iter().flat_map(|path| path.as_os_str().as_bytes().iter().chain(b"\0")).copied().collect();
        stdin.write_all(&list).map_err(failed)?;
    }
    let output = child.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        return Err(failed(io::Error::other(format!("it ended with {}", output.status))));
    }
    let mut findings = Vec::new();
    for line in output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let CompileError(index, line, column, message) =
            serde_json::from_slice(line).map_err(|error| failed(error.into()))?;
        let Some(path) = paths.get(index) else { continue };
        let place = line.map(|line| Place { line: line.max(1), column: column.unwrap_or(1).max(1) });
        findings.push(Finding::new(layout.name(path), Diagnostic::new(Code::VerifierSyntax, message).at(place)));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn scripts_that_do_not_parse_are_found_and_none_is_run() {
        let folder = tempfile::tempdir().unwrap();
        let task = folder.path().join("environments/a/tasks/t");
        fs::create_dir_all(&task).unwrap();
        let ran = folder.path().join("ran");
        fs::write(task.join("good.sh"), format!("touch {}\n", ran.display())).unwrap();
        fs::write(task.join("bad.sh"), "echo one\nif true; then\n  echo two\n").unwrap();
        fs::write(task.join("leaked.sh"), "echo one\n\n<system-reminder>\n(read (this\n").unwrap();
        fs::write(task.join("verifier.py"), format!("open({:?}, 'w')\ndef f(:\n    pass\n", ran.display().to_string()))
            .unwrap();
        let layout = Layout::find(folder.path()).unwrap();
        let findings = check_scripts(&layout).unwrap();
        let seen: Vec<_> =
            findings.iter().map(|found| (found.code, found.file.rsplit('/').next().unwrap(), found.line)).collect();
        assert_eq!(seen[0].0, Code::ScriptSyntax);
        assert_eq!((seen[0].1, seen[1]), ("bad.sh", (Code::LeakedText, "leaked.sh", Some(3))));
        assert_eq!((seen[2].0, seen[2].1), (Code::ScriptSyntax, "leaked.sh"));
        assert_eq!(seen[3], (Code::VerifierSyntax, "verifier.py", Some(2)));
        assert_eq!(seen.len(), 4);
        assert!(!ran.exists());
    }
}

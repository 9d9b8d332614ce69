//! The repository's own files.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::account::Account;

/// The repository.
#[must_use]
pub fn repository() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests).to_owned()
}

/// Copies a folder with all that is in it, and gives the copy to the account.
///
/// # Errors
///
/// Something cannot be read or written.
pub fn copy(from: &Path, to: &Path, account: &Account) -> Result<()> {
    account.make_dir(to)?;
    for entry in std::fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target, account)?;
        } else {
            std::fs::copy(entry.path(), &target).with_context(|| format!("cannot copy {}", entry.path().display()))?;
            account.give(&target)?;
        }
    }
    Ok(())
}

/// Every file of the repository that git tracks or would track.
///
/// # Errors
///
/// Git does not say.
pub fn files() -> Result<Vec<PathBuf>> {
    let root = repository();
    let output = std::process::Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(&root)
        .output()
        .context("cannot start git")?;
    anyhow::ensure!(output.status.success(), "git: {}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout)?;
    Ok(names
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(|name| root.join(name))
        .filter(|path| path.is_file())
        .collect())
}

/// Puts results between the two marks of a document; what people wrote around them stays.
///
/// # Errors
///
/// The document is not there, or has no marks.
pub fn replace_results(document: &Path, results: &str) -> Result<()> {
    replace_section(document, "results", results)
}

/// As [`replace_results`], in a document with several such places: between the marks of this name.
///
/// # Errors
///
/// As [`replace_results`].
pub fn replace_section(document: &Path, name: &str, results: &str) -> Result<()> {
    let begin = format!("<!-- {name}, written by the program that measures -->");
    let end = format!("<!-- end of {name} -->");
    let text = std::fs::read_to_string(document).with_context(|| format!("no {}", document.display()))?;
    let (before, rest) = text.split_once(&begin).with_context(|| format!("{} has no `{begin}`", document.display()))?;
    let (_, after) = rest.split_once(&end).with_context(|| format!("{} has no `{end}`", document.display()))?;
    std::fs::write(document, format!("{before}{begin}\n\n{}\n\n{end}{after}", results.trim()))?;
    Ok(())
}

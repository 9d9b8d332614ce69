//! The programs that read the exports.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn interpreter() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").expect("a home")).join(".cache"));
    let python = cache.join("longhaul/export-venv/bin/python");
    assert!(python.exists(), "{} is missing: run scripts/prepare-tests export", python.display());
    python
}

/// What a script of this folder finds in an export.
pub(crate) fn read(script: &str, export: &Path) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats").join(script);
    let output = Command::new(interpreter()).arg("-B").arg(script).arg(export).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "it cannot be read:\n{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

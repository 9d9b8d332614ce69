//! What lint looks at beside the specs: hooks, verifiers, checklists, audits, needs.

use std::path::{Path, PathBuf};

use longhaul_core::lint::{Finding, Needs, VerifierVerdict, judge_verifier};
use longhaul_core::spec::{Code, Diagnostic, EnvSpec, Success, TaskSpec, parse_audit, parse_checklist};
use longhaul_core::text::chain;
use longhaul_worker::round_files::{RoundFilesError, round_files};

use super::layout::{Layout, MountSource};
use super::read::{Env, ReadTask, names_in, read_file};

/// The mounts of an env, with what they are on this disk.
#[derive(Debug)]
pub(super) struct Mounts {
    /// Target, and source if it is there.
    mounts: Vec<(String, Option<PathBuf>)>,
}

impl Mounts {
    pub(super) fn new(layout: &Layout, env_dir: &Path, spec: &EnvSpec) -> Self {
        let mounts = spec.mounts.iter().map(|mount| {
            let source = match layout.mount_source(env_dir, &mount.source) {
                MountSource::Found(path) => Some(path),
                MountSource::Missing | MountSource::Outside => None,
            };
            (normal(&mount.target).0, source)
        });
        Self { mounts: mounts.collect() }
    }

    /// The files that a hook names, by the paths that it sees them under; those that are
    /// on no mount are the system's own and left out. A file that is not there is none.
    pub(super) fn files_of(&self, hook: &str) -> Vec<(String, Option<PathBuf>)> {
        let words = hook.split(|letter: char| letter.is_whitespace() || "'\";&|()<>`".contains(letter));
        let mut files = Vec::new();
        for word in words.filter(|word| !word.is_empty()) {
            let (path, on_drive) = normal(word);
            // The longest target wins, as it does when it is mounted.
            let mount = self
                .mounts
                .iter()
                .filter_map(|(target, source)| Some((target.len(), source, below(&path, target, on_drive)?)))
                .max_by_key(|(length, _, _)| *length);
            match mount {
                Some((_, source, rest)) => {
                    let found = source.as_ref().map(|source| source.join(rest)).filter(|path| path.exists());
                    files.push((word.to_owned(), found));
                }
                None if path.starts_with("/workspace/") => files.push((word.to_owned(), None)),
                None => {}
            }
        }
        files
    }
}

/// A path with forward slashes, none at its end and no drive; and whether it had one.
/// Windows shows a mount at `/workspace` as `C:\workspace`.
fn normal(path: &str) -> (String, bool) {
    let path = path.replace('\\', "/");
    let rest = match path.as_bytes() {
        [letter, b':', b'/', ..] if letter.is_ascii_alphabetic() => path.get(2..),
        _ => None,
    };
    let on_drive = rest.is_some();
    // A path may be written with its backslashes doubled.
    let plain = rest.unwrap_or(&path).replace("//", "/");
    (plain.trim_end_matches('/').to_owned(), on_drive)
}

/// What follows a mount's target in a path; drives are blind to case.
fn below<'a>(path: &'a str, target: &str, on_drive: bool) -> Option<&'a str> {
    let head = path.get(..target.len())?;
    let same = if on_drive { head.eq_ignore_ascii_case(target) } else { head == target };
    let rest = path.get(target.len()..)?.strip_prefix('/')?;
    (same && !rest.is_empty()).then_some(rest)
}

/// What an env needs, by its spec and the scripts of its hooks.
pub(super) fn needs(layout: &Layout, env_dir: &Path, spec: &EnvSpec, file: &str) -> Needs {
    let mut needs = Needs::of_spec(spec, file);
    let mounts = Mounts::new(layout, env_dir, spec);
    for (_, hook) in spec.hooks.iter() {
        needs.add_script(file, hook);
        for path in mounts.files_of(hook).into_iter().filter_map(|(_, found)| found) {
            if let Ok(text) = read_text(&path) {
                needs.add_script(&layout.name(&path), &text);
            }
        }
    }
    needs
}

/// A file as text; bytes that are none become marks.
pub(super) fn read_text(path: &Path) -> Result<String, Diagnostic> {
    let bytes = read_file(path).map_err(|refused| *refused.0)?;
    Ok(match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    })
}

/// Checks all that belongs to an env.
pub(super) fn check_env(layout: &Layout, env: &Env, tasks_dir: &Path, tasks: &[ReadTask], findings: &mut Vec<Finding>) {
    let env_dir = layout.environments().join(&env.folder);
    let Ok(spec) = &env.spec else { return };
    let mounts = Mounts::new(layout, &env_dir, spec);
    let mut say = |file: &str, diagnostic: Diagnostic| findings.push(Finding::new(file, diagnostic));
    // Where no script was ever copied, their absence says nothing.
    let env_needs = needs(layout, &env_dir, spec, &env.file);
    let has_scripts = tasks.iter().flat_map(|task| &task.names).any(|name| is_script(name)) || has_scripts(&env_dir);
    if has_scripts {
        check_mounts(layout, env, &env_dir, spec, &mut say);
        check_hooks(&mounts, spec.hooks.iter(), &env.file, &mut say);
    } else {
        say(&env.file, Diagnostic::new(Code::NoScripts, "no script of the env is here"));
    }
    // Without its scripts, an env that seems to need nothing may need anything.
    if has_scripts || env_needs.iter().next().is_some() {
        for (file, diagnostic) in env_needs.diagnostics(&env.file) {
            say(&file, diagnostic);
        }
    }
    let has_checklists = tasks.iter().any(|task| task.names.contains("vlm_checklist.json"));
    for ReadTask { folder, spec: task, names } in tasks {
        let dir = tasks_dir.join(folder);
        let has = |name: &str| names.contains(name);
        if has_scripts && let Some(task) = task {
            check_hooks(&mounts, task.hooks.iter(), &layout.name(&dir.join("task.json")), &mut say);
            // Rounds score by themselves.
            if task.rounds.is_none() {
                check_verifier(layout, &dir, task, &mut say);
            }
        }
        if let Some(odd) = task.as_ref().and_then(|task| round_hooks(&dir, task)) {
            say(&layout.name(&dir.join("task.json")), odd);
        }
        if has("vlm_checklist.json") {
            check_json(layout, &dir.join("vlm_checklist.json"), &mut say, Code::ChecklistSyntax, |bytes, out| {
                parse_checklist(bytes, out).err().map(|refused| *refused.0)
            });
        } else if task.as_ref().is_some_and(|task| task.rounds.is_none()) && (has_scripts || has_checklists) {
            let name = layout.name(&dir);
            say(&name, Diagnostic::new(Code::ChecklistMissing, "the task has no vlm_checklist.json"));
        }
        if has("validated_pi.json") {
            check_json(layout, &dir.join("validated_pi.json"), &mut say, Code::AuditSyntax, |bytes, out| {
                parse_audit(bytes, out).err().map(|refused| *refused.0)
            });
        }
    }
}

/// Why rounds of a task cannot be played: a hook that is not there, or files of hooks that cannot
/// be brought in.
pub(super) fn round_hooks(dir: &Path, task: &TaskSpec) -> Option<Diagnostic> {
    let rounds = task.rounds.as_ref()?;
    if let Some(missing) = rounds.hook_files().into_iter().find(|file| !dir.join(file).is_file()) {
        let message = format!("the hook `{missing}` of a round is not there");
        return Some(Diagnostic::new(Code::RoundsFileMissing, message));
    }
    match round_files(dir, rounds) {
        Ok(_) => None,
        Err(error @ RoundFilesError::TooLarge { .. }) => {
            Some(Diagnostic::new(Code::RoundsFilesLarge, error.to_string()))
        }
        Err(error @ RoundFilesError::Read { .. }) => Some(Diagnostic::new(Code::Unreadable, chain(&error))),
    }
}

fn check_json(
    layout: &Layout,
    path: &Path,
    say: &mut impl FnMut(&str, Diagnostic),
    code: Code,
    parse: impl Fn(&[u8], &mut Vec<Diagnostic>) -> Option<Diagnostic>,
) {
    let file = layout.name(path);
    let mut out = Vec::new();
    let refused = match read_file(path) {
        Ok(bytes) => parse(&bytes, &mut out),
        Err(refused) => Some(Diagnostic { code, ..*refused.0 }),
    };
    for diagnostic in out.into_iter().chain(refused) {
        say(&file, diagnostic);
    }
}

fn check_mounts(layout: &Layout, env: &Env, env_dir: &Path, spec: &EnvSpec, say: &mut impl FnMut(&str, Diagnostic)) {
    for mount in &spec.mounts {
        let diagnostic = match layout.mount_source(env_dir, &mount.source) {
            MountSource::Missing => {
                Diagnostic::new(Code::MountSourceMissing, format!("`{}` is not there", mount.source))
            }
            MountSource::Outside => {
                Diagnostic::new(Code::MountOutside, format!("`{}` leads out of the clone", mount.source))
            }
            MountSource::Found(path) => {
                let inside = path.strip_prefix(layout.environments()).ok();
                let other = inside.and_then(|inside| inside.iter().next()).map(|name| name.to_string_lossy());
                match other {
                    // The tasks of another env through a link are reported as that.
                    Some(other) if other != env.folder && !env.linked_tasks => {
                        let message = format!("`{}` shows files of the env `{other}`", mount.target);
                        Diagnostic::new(Code::MountOfAnotherEnv, message)
                    }
                    _ => continue,
                }
            }
        };
        say(&env.file, diagnostic);
    }
}

fn check_hooks<'h>(
    mounts: &Mounts,
    hooks: impl Iterator<Item = (&'static str, &'h str)>,
    file: &str,
    say: &mut impl FnMut(&str, Diagnostic),
) {
    for (name, hook) in hooks {
        for (path, _) in mounts.files_of(hook).into_iter().filter(|(_, found)| found.is_none()) {
            say(file, Diagnostic::new(Code::HookFileMissing, format!("`{path}` of the hook `{name}` is not there")));
        }
    }
}

fn check_verifier(layout: &Layout, dir: &Path, task: &TaskSpec, say: &mut impl FnMut(&str, Diagnostic)) {
    let Success::Program { file, function } = &task.success else { return };
    let path = dir.join(file);
    let mut out = Vec::new();
    match judge(&path, function, &mut out) {
        Ok(_) => {}
        Err(diagnostic) => {
            say(&layout.name(&dir.join("task.json")), diagnostic);
            return;
        }
    }
    let name = layout.name(&path);
    for diagnostic in out {
        say(&name, diagnostic);
    }
}

/// Judges the verifier in a file.
///
/// # Errors
///
/// The file is not there, or cannot be read.
pub(super) fn judge(path: &Path, function: &str, out: &mut Vec<Diagnostic>) -> Result<VerifierVerdict, Diagnostic> {
    if !path.is_file() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        return Err(Diagnostic::new(Code::VerifierMissing, format!("the verifier `{name}` is not there")));
    }
    Ok(judge_verifier(&read_text(path)?, function, out))
}

fn is_script(name: &str) -> bool {
    [".sh", ".py", ".ps1", ".bat", ".cmd"].iter().any(|extension| name.ends_with(extension))
}

/// Whether an env's folder holds a script, in itself or one level below; its tasks aside.
fn has_scripts(env_dir: &Path) -> bool {
    let names = names_in(env_dir);
    names.iter().any(|name| is_script(name))
        || names
            .iter()
            .filter(|name| *name != "tasks")
            .any(|name| names_in(&env_dir.join(name)).iter().any(|name| is_script(name)))
}

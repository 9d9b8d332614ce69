//! Hooks: the env's and the task's own scripts, run in the sandbox as root.
//!
//! Gym-Anything never looks at the exit code of a task's hook, and many of the benchmark's
//! scripts end with a failing last command after having done all that they should. So a task
//! hook that ends non-zero is a warning in the attempt's notes, with the code; one that runs
//! over its time limit is a fault, since what it was to prepare is not there.

use std::collections::BTreeMap;

use longhaul_core::helper::CommandSpec;
use longhaul_core::outcome::{Fault, FaultClass};
use longhaul_core::time::Millis;

use super::record::{LOG_LIMIT, Recorder};
use crate::sandbox::{CommandResult, Sandbox, SandboxError};

/// A hook of an env: how long it may run.
pub(crate) const ENV_HOOK_LIMIT: Millis = Millis::from_secs(1800);

/// One hook.
pub(crate) struct Hook<'a> {
    /// Its name: `pre_task`, ...
    pub(crate) name: &'static str,
    /// The command, as the spec has it.
    pub(crate) command: &'a str,
    /// Where its output goes inside.
    pub(crate) log: &'static str,
    /// How long it may run.
    pub(crate) limit: Millis,
}

/// How a hook ended.
pub(crate) struct HookEnd {
    pub(crate) result: CommandResult,
    /// The end of its log.
    pub(crate) log_tail: String,
}

/// Runs a hook and records its log.
pub(crate) async fn run(
    hook: &Hook<'_>,
    env: &BTreeMap<String, String>,
    sandbox: &dyn Sandbox,
    recorder: &Recorder,
    scratch: &std::path::Path,
) -> Result<HookEnd, Fault> {
    let command = CommandSpec {
        argv: vec!["bash".to_owned(), "-lc".to_owned(), hook.command.to_owned()],
        user: "root".to_owned(),
        env: env.clone(),
        log_file: Some(hook.log.to_owned()),
        limit_millis: hook.limit.0,
        ..CommandSpec::default()
    };
    let result = sandbox.run(command).await.map_err(|error| error.fault())?;
    let copy = scratch.join(format!("{}.log", hook.name));
    let log = log_of(sandbox, hook.log, &copy).await?;
    recorder.log(hook.name, &log)?;
    Ok(HookEnd { result, log_tail: crate::tail(&String::from_utf8_lossy(&log), 50) })
}

/// The end of what a hook wrote to a file inside, by way of `copy`: as much as is kept of a log, since
/// what a hook says has no bound.
pub(crate) async fn log_of(sandbox: &dyn Sandbox, file: &str, copy: &std::path::Path) -> Result<Vec<u8>, Fault> {
    match sandbox.copy_end(file, LOG_LIMIT, copy).await {
        Ok(()) => Ok(tokio::fs::read(copy).await.unwrap_or_default()),
        // The hook removed it, or ended before it was made.
        Err(SandboxError::NotFound { .. }) => Ok(Vec::new()),
        Err(error) => Err(error.fault()),
    }
}

impl HookEnd {
    /// The rule for a hook that prepares the task: a warning if it failed, a fault if it ran
    /// over its time.
    pub(crate) fn prepared(&self, hook: &Hook<'_>, warnings: &mut Vec<String>) -> Result<(), Fault> {
        if self.result.timed_out {
            return Err(Fault {
                class: FaultClass::SetupHook,
                message: format!("the {} hook ran over its time limit of {}", hook.name, hook.limit),
                log_tail: Some(self.log_tail.clone()),
            });
        }
        self.warn(hook, warnings);
        Ok(())
    }

    /// A warning if it failed.
    pub(crate) fn warn(&self, hook: &Hook<'_>, warnings: &mut Vec<String>) {
        if self.result.code != 0 {
            warnings.push(format!("the {} hook ended with code {}", hook.name, self.result.code));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOOK: Hook<'static> = Hook { name: "pre_task", command: "x", log: "/l", limit: Millis(1000) };

    fn end(code: i32, timed_out: bool) -> HookEnd {
        let result = CommandResult { code, timed_out, output: String::new() };
        HookEnd { result, log_tail: "the end".to_owned() }
    }

    #[test]
    fn a_failing_task_hook_is_a_warning_and_a_late_one_a_fault() {
        let mut warnings = Vec::new();
        end(0, false).prepared(&HOOK, &mut warnings).unwrap();
        assert!(warnings.is_empty());
        end(3, false).prepared(&HOOK, &mut warnings).unwrap();
        assert_eq!(warnings, ["the pre_task hook ended with code 3"]);
        let fault = end(143, true).prepared(&HOOK, &mut warnings).unwrap_err();
        assert_eq!(fault.class, FaultClass::SetupHook);
        assert_eq!(fault.log_tail.as_deref(), Some("the end"));
    }
}

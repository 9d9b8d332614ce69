//! Whether the program of a task can be trusted, for results that somebody else made with it.

use longhaul_core::ids::TaskName;
use longhaul_core::judge::Verify;
use longhaul_core::plan::Scoring;

use super::read::Benchmark;
use super::scoring;

/// Why the program that scores a task cannot be trusted, if it cannot; nothing is known of a task
/// whose spec is refused.
#[must_use]
pub fn distrust(benchmark: &Benchmark, name: &TaskName) -> Option<String> {
    let (env, _) = benchmark.task(name)?;
    let task = benchmark.task_spec(env, &name.task).ok()?;
    let dir = benchmark.env_dir(env).join("tasks").join(&name.task);
    match scoring::scoring(&task, &dir, Verify::Program, false).0 {
        Scoring::None { reason } => Some(reason),
        _ => None,
    }
}

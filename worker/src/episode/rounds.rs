//! Ordered rounds: one sandbox and one state across all of them, and for each its goal, given only
//! in its turn, the agent's part, and a reading of what is there when that is over.
//!
//! The hooks of rounds say what is looked at, so an agent must not see them: they are in no view
//! of the task, and in the sandbox only while one of them runs, in a folder that is root's alone.
//! What they print goes to the worker and to no file inside.

use longhaul_core::digest::Digest;
use longhaul_core::helper::CommandSpec;
use longhaul_core::measure::RoundError;
use longhaul_core::outcome::{EndedBy, Fault, FaultClass};
use longhaul_core::resume::reading_log;
use longhaul_core::rounds::{self, CUT_OFF, MOST_READING, Played, RoundPlan, RoundsPlan};
use longhaul_core::time::Millis;
use serde_json::Value;

use super::acting::{Acting, Course, Over, Stretch};
use super::agent::Agent;
use super::record::{Recorder, Said};
use super::replay::Follower;
use super::{Ending, Inside, fault, hooks, moment};
use crate::round_files::round_files;
use crate::sandbox::CommandResult;
use crate::screen::{Frame, RestRule};
use crate::shutdown::Urgency;

/// Where the hooks are while one of them runs.
const HOOKS: &str = "/var/lib/longhaul-rounds";

/// How long a reading may take.
const READ_LIMIT: Millis = Millis::from_secs(120);

/// How long making and removing that folder may take.
const FOLDER_LIMIT: Millis = Millis::from_secs(60);

/// What broke a round without an answer that could be used, and one that was over with the episode
/// before there was any.
const UNUSABLE: &str = "the agent gave no answer that could be used";
const UNANSWERED: &str = "the episode was over before the agent answered";

/// The programs that a round's hook closed and opened again come up as they do after a setup.
const OPENING_REST: RestRule = super::FIRST_REST;

impl Inside<'_> {
    /// The agent's part: round after round, or all of it in one; what ended it, and how rounds
    /// were played.
    pub(super) async fn play(
        &self,
        acting: &Acting<'_>,
        agent: &mut Agent,
        first: Frame,
        past: Option<Follower<'_>>,
        recorder: &mut Recorder,
    ) -> Result<(EndedBy, Vec<Played>), Ending> {
        let task = &self.plans.task;
        let Some(plan) = &task.rounds else {
            let stretch = Stretch { task: task.description.clone(), ..Stretch::default() };
            let mut course = acting.begin(first, stretch, past);
            let over = acting.run(agent, &mut course, recorder).await?;
            course.finish(over.ended_by()).await?;
            return Ok((over.ended_by(), Vec::new()));
        };
        let mut course = acting.begin(first, self.stretch(plan, 1), past);
        let mut played = Vec::new();
        for number in 1_u32.. {
            let before = recorder.answers();
            let over = acting.run(agent, &mut course, recorder).await?;
            let steps = recorder.answers().saturating_sub(before);
            let is_last = usize::try_from(number).is_ok_and(|number| number >= plan.rounds.len());
            let ends = is_last || matches!(over, Over::Whole(_));
            // What is read where the record ends is read in life.
            if ends {
                course.finish(over.ended_by()).await?;
            } else {
                course.live().await?;
            }
            let round = self.played(plan, number, over, &mut course, steps, recorder).await?;
            course.has_read(number, round.recorded)?;
            played.push(round);
            if ends {
                return Ok((over.ended_by(), played));
            }
            self.open(acting, plan, number + 1, over, &mut course, recorder).await?;
        }
        Ok((EndedBy::Agent, played))
    }

    /// What a round asks of the agent.
    fn stretch(&self, plan: &RoundsPlan, number: u32) -> Stretch {
        let round = of(plan, number);
        let goal = round.map(|round| round.goal.clone()).unwrap_or_default();
        let budget = round.map(|round| round.budget).unwrap_or_default();
        Stretch {
            task: format!("{}\n\n{goal}", self.plans.task.description),
            round: Some(number),
            // The first one was told with the task.
            goal: (number > 1).then_some(goal),
            steps: budget.steps,
            time: budget.seconds.map(|seconds| Millis::from_secs(u64::from(seconds))),
            dollars: budget.dollars,
            ..Stretch::default()
        }
    }

    /// Opens a further round: its hook, its first observation, its goal.
    async fn open(
        &self,
        acting: &Acting<'_>,
        plan: &RoundsPlan,
        number: u32,
        last: Over,
        course: &mut Course<'_>,
        recorder: &mut Recorder,
    ) -> Result<(), Ending> {
        let start = moment::now();
        self.before_round(number, recorder).await?;
        let mut stretch = self.stretch(plan, number);
        if last != Over::Here(EndedBy::Agent) {
            stretch.goal = stretch.goal.map(|goal| format!("{CUT_OFF}\n\n{goal}"));
        }
        let frame = if let Some((frame, told)) = course.reopened(number, OPENING_REST, recorder).await? {
            stretch.goal = told;
            frame
        } else {
            let said = Said { told: stretch.goal.clone(), round: Some(number), ..Said::default() };
            recorder.observe(acting.display, OPENING_REST, said).await?
        };
        course.leave_out(moment::now().saturating_sub(start));
        course.go_on(stretch, frame);
        Ok(())
    }

    /// How a round was played, with what is read now that it is over.
    async fn played(
        &self,
        plan: &RoundsPlan,
        number: u32,
        over: Over,
        course: &mut Course<'_>,
        steps: u32,
        recorder: &Recorder,
    ) -> Result<Played, Ending> {
        let start = moment::now();
        let mut played = Played {
            ended_by: Some(over.ended_by()),
            steps,
            last_step: course.stretch().last_step,
            last_screen: recorder.seen(),
            ..Played::default()
        };
        if !course.stretch().answered {
            played.broke = Some(match over {
                // Nothing was asked of it any more, or what was asked had no time to come.
                Over::Whole(_) if steps == 0 => (RoundError::Round, UNANSWERED.to_owned()),
                Over::Whole(_) | Over::Here(_) => (RoundError::Generation, UNUSABLE.to_owned()),
            });
        }
        if let Some(hook) = of(plan, number).and_then(|round| round.read.as_deref()) {
            match self.reading(number, hook, recorder).await? {
                Ok((reading, recorded)) => (played.reading, played.recorded) = (Some(reading), Some(recorded)),
                // What came first decides.
                Err(why) => played.broke = played.broke.or(Some((RoundError::Round, why))),
            }
        }
        course.leave_out(moment::now().saturating_sub(start));
        Ok(played)
    }

    /// The hook before a round's first observation.
    pub(super) async fn before_round(&self, number: u32, recorder: &Recorder) -> Result<(), Ending> {
        let round = self.plans.task.rounds.as_ref().and_then(|plan| of(plan, number));
        let Some(hook) = round.and_then(|round| round.before.as_deref()) else { return Ok(()) };
        let name = format!("round-{number}-before");
        let limit = self.plans.task.hook_time;
        let HookEnd { result, said } = self.round_hook(number, hook, limit, &name, recorder).await?;
        let message = if result.timed_out {
            format!("the hook `{hook}` before round {number} ran over its time limit of {limit}")
        } else if result.code != 0 {
            format!("the hook `{hook}` before round {number} ended with code {}", result.code)
        } else {
            return Ok(());
        };
        let log_tail = Some(crate::tail(&said, 50));
        Err(Ending::Fault(Fault { class: FaultClass::SetupHook, message, log_tail }))
    }

    /// What a round's hook reads, and the digest of what it printed. The inner error is why there
    /// is no reading.
    async fn reading(
        &self,
        number: u32,
        hook: &str,
        recorder: &Recorder,
    ) -> Result<Result<(Value, Digest), String>, Ending> {
        let name = format!("round-{number}-read");
        let HookEnd { result, said } = self.round_hook(number, hook, READ_LIMIT, &name, recorder).await?;
        let shutdown = &self.attempt.shared.shutdown;
        let whole = !result.timed_out && result.code == 0 && rounds::read(&result.output).is_ok();
        if shutdown.urgency() > Urgency::None || (!whole && shutdown.told_within(super::CAUSE_WAIT).await) {
            // The same signal may have hit the sandbox, before it is heard here: what is read now, or
            // that nothing is, is not to be trusted.
            let message = "the worker had to stop; the last reading was discarded".to_owned();
            return Err(Ending::Fault(fault(FaultClass::Preempted, message)));
        }
        let because = |why: String| {
            let tail = crate::tail(&said, 5);
            let tail = if tail.trim().is_empty() { String::new() } else { format!("; it said: {}", tail.trim()) };
            Ok(Err(format!("the hook `{hook}` gave no reading: {why}{tail}")))
        };
        if result.timed_out {
            return because(format!("it ran over its time limit of {READ_LIMIT}"));
        }
        if result.code != 0 {
            return because(format!("it ended with code {}", result.code));
        }
        match rounds::read(&result.output) {
            Ok(reading) => {
                recorder.log(&reading_log(number), result.output.as_bytes())?;
                Ok(Ok((reading, Digest::of(result.output.as_bytes()))))
            }
            Err(error) => because(error.to_string()),
        }
    }

    /// Runs a hook of a round; the folder with the hooks is there no longer than that.
    async fn round_hook(
        &self,
        number: u32,
        hook: &str,
        limit: Millis,
        name: &str,
        recorder: &Recorder,
    ) -> Result<HookEnd, Fault> {
        let task = &self.plans.task;
        let plan = task.rounds.as_ref();
        let kind = plan.and_then(|plan| of(plan, number)).map(|round| round.kind.name()).unwrap_or_default();
        let (root, rounds) = (self.plans.task_files.path().to_owned(), plan.cloned().unwrap_or_default());
        let files = tokio::task::spawn_blocking(move || round_files(&root, &rounds)).await;
        let files = files.map_err(|error| setup(hook, &error.to_string()))?;
        let files = files.map_err(|error| setup(hook, &crate::chain(&error)))?;
        self.as_root(&format!("rm -rf {HOOKS} && mkdir -p -m 700 {HOOKS}")).await?;
        for file in &files {
            let from = self.plans.task_files.path().join(file);
            let to = format!("{HOOKS}/{}", file.display());
            self.sandbox.copy_in(&from, &to).await.map_err(|error| error.fault())?;
        }
        let mut env = self.hook_env();
        env.extend([
            ("LONGHAUL_ROUND".to_owned(), number.to_string()),
            ("LONGHAUL_ROUND_KIND".to_owned(), kind.to_owned()),
            ("SEED".to_owned(), self.plans.episode.seed.to_string()),
        ]);
        let command = CommandSpec {
            // The name goes as an argument: nothing of it is read by the shell.
            argv: ["bash", "-c", RUN_HOOK, hook].map(str::to_owned).to_vec(),
            user: "root".to_owned(),
            env,
            cwd: Some(HOOKS.to_owned()),
            limit_millis: limit.0,
            // One more than there may be, so that what was cut is seen to be.
            output_limit: MOST_READING + 1,
            ..CommandSpec::default()
        };
        let ran = self.sandbox.run(command).await;
        let copy = self.scratch.join(format!("{name}.log"));
        let said = hooks::log_of(self.sandbox, &format!("{HOOKS}/{SAID}"), &copy).await?;
        self.as_root(&format!("rm -rf {HOOKS}")).await?;
        let result = ran.map_err(|error| error.fault())?;
        if !said.is_empty() {
            recorder.log(name, &said)?;
        }
        Ok(HookEnd { result, said: String::from_utf8_lossy(&said).into_owned() })
    }

    /// A command of ours that has to succeed.
    async fn as_root(&self, line: &str) -> Result<(), Fault> {
        let command = CommandSpec {
            argv: ["bash", "-c", line].map(str::to_owned).to_vec(),
            user: "root".to_owned(),
            limit_millis: FOLDER_LIMIT.0,
            output_limit: 1000,
            ..CommandSpec::default()
        };
        let result = self.sandbox.run(command).await.map_err(|error| error.fault())?;
        if result.code == 0 && !result.timed_out {
            return Ok(());
        }
        let output = result.output.trim();
        Err(fault(FaultClass::SetupHook, format!("the hooks of rounds have no folder in the sandbox: {output}")))
    }
}

/// How a hook of a round ended.
struct HookEnd {
    /// With what it printed.
    result: CommandResult,
    /// What it wrote to its standard error.
    said: String,
}

/// The file that gets what a hook says on its standard error.
const SAID: &str = "said.log";

/// Runs a hook by its own first line, or by the shell if it has none. No login shell: what that
/// says at its start would stand before the reading.
const RUN_HOOK: &str = "exec 2>said.log; chmod -R u+x . && exec \"./$0\"";

/// The round of that number.
fn of(plan: &RoundsPlan, number: u32) -> Option<&RoundPlan> {
    plan.rounds.get(usize::try_from(number).ok()?.checked_sub(1)?)
}

fn setup(hook: &str, why: &str) -> Fault {
    fault(FaultClass::SetupHook, format!("the hook `{hook}` cannot be brought into the sandbox: {why}"))
}

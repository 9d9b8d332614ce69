//! One attempt, from its plan to its end, as a line of phases:
//!
//! plans -> layers -> sandbox and display -> setup (hooks, first observation) -> acting ->
//! export -> verification -> end.
//!
//! Beside the phases run the guards of the sandbox (its death, its memory, the node's disk);
//! whichever says first that it is over ends the attempt. A stop, from whoever, drops the
//! phases where they are; the sandbox is ended in any case.

mod acting;
mod agent;
mod control;
mod hooks;
mod layers;
mod pins;
mod record;
mod replay;
mod rounds;
mod scoring;
mod snapshot;
mod stopping;
mod views;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use longhaul_core::call::PurseKind;
use longhaul_core::digest::Digest;
use longhaul_core::notes::AttemptNotes;
use longhaul_core::outcome::{AttemptEnd, EndedBy, Fault, FaultClass};
use longhaul_core::plan::{EnvPlan, EpisodePlan, HookPolicy, TaskPlan};
use longhaul_core::purse::PurseState;
use longhaul_core::rounds::{Played, opening};
use longhaul_proto::convert::LeaseRef;
use longhaul_proto::v1::AttemptPhase;
use tokio::sync::{SemaphorePermit, watch};

pub(crate) use control::{Control, Order, StopReason};
pub(crate) use hooks::ENV_HOOK_LIMIT;

pub(crate) use self::agent::Sight;

use self::acting::Acting;
use self::agent::{Access, Agent, Starting};
use self::hooks::Hook;
use self::layers::Layers;
use self::record::{Recorder, Said};
use self::replay::{Follower, Past};
use self::scoring::{Acted, Scored};
use self::snapshot::{Restoring, Saver};
use self::stopping::{release, remove_scratch, stop_all, stop_kept};
use crate::blobs::{BlobError, HeldTree};
use crate::guard::{GpuShare, watch_memory};
use crate::model::{self, Closed, LeaseGate, Till};
use crate::moment;
use crate::sandbox::{Display, Sandbox, SandboxRequest};
use crate::screen::{Frame, RestRule};
use crate::session::actor::Shared;
use crate::session::delivery::Progress;
use crate::spool::Outbox;

/// How long a failure waits for a guard that knows its cause better.
const CAUSE_WAIT: Duration = Duration::from_millis(700);

/// Programs that a setup hook has started may still be coming up, with a splash screen that
/// stands still while they read their files: on a busy node with a fresh layer for more than
/// twenty seconds (LibreOffice). Shorter than a caret's blink.
const FIRST_REST: RestRule = RestRule {
    quiet: Duration::from_millis(450),
    first_change: Duration::from_millis(800),
    working: Duration::from_secs(30),
    idle: Duration::from_millis(300),
    limit: Duration::from_secs(40),
    interval: Duration::from_millis(50),
};

/// An attempt to be run.
pub(crate) struct Attempt {
    pub(crate) lease: LeaseRef,
    /// The blob of the EpisodePlan.
    pub(crate) plan: Digest,
    /// No cap on dollars holds for it.
    pub(crate) uncapped: bool,
    /// It is to go on where an earlier one was cut off.
    pub(crate) resumes: bool,
    /// What had ended the agent's part, where it is followed to its end and only verified again.
    pub(crate) verifies: Option<EndedBy>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) control: Control,
    /// Shut when the lease ends.
    pub(crate) gate: Arc<LeaseGate>,
    /// Its account at the gateway, once [`crate::model::open_account`] has opened it.
    pub(crate) till: Till,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) shared: Arc<Shared>,
}

/// The plans of an attempt, and the trees that it stands on.
struct Plans {
    episode: EpisodePlan,
    task: TaskPlan,
    env: EnvPlan,
    task_files: HeldTree,
    env_files: HeldTree,
    /// What is kept of earlier attempts.
    past: Option<Past>,
}

/// What is known of the attempt so far, kept out of the phases so that it outlives them.
#[derive(Default)]
struct Known {
    notes: Mutex<AttemptNotes>,
    sandbox: Mutex<Option<Arc<dyn Sandbox>>>,
    /// Of the agent, if it is somebody else's program.
    agent_sandbox: Mutex<Option<Arc<dyn Sandbox>>>,
    /// The graphics processors of its sandbox, until that is gone.
    gpus: Mutex<Option<GpuShare>>,
    /// How it ends if nothing but a judge's answer is missing, and cannot be waited for.
    undecided: Mutex<Option<AttemptEnd>>,
    peak_memory_mib: AtomicU64,
}

impl Known {
    fn note(&self, change: impl FnOnce(&mut AttemptNotes)) {
        change(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Runs an attempt; its end is in its outbox afterwards, unless it is nobody's business any more.
pub(crate) async fn run(attempt: Attempt) {
    let known = Known { notes: Mutex::new(attempt.shared.bare_notes()), ..Known::default() };
    let scratch = attempt.shared.attempts.join(attempt.name());
    let ended = tokio::select! {
        reason = attempt.control.stopped() => Err(Ending::Stopped(reason)),
        result = phases(&attempt, &known, &scratch) => result,
    };
    let preempted = matches!(ended, Err(Ending::Stopped(StopReason::Preempted)));
    let end = match ended {
        Ok(end) => Some(end),
        Err(Ending::Fault(fault)) => Some(AttemptEnd::Fault(excused(fault, &attempt.shared).await)),
        Err(Ending::Stopped(reason)) => stopped(reason, &known),
        Err(Ending::NotRestored(why)) => Some(AttemptEnd::Fault(fault(FaultClass::ReplayDiverged, why))),
    };
    let end = end.filter(|end| !matches!(end, AttemptEnd::Fault(fault) if fault.class == FaultClass::Preempted));
    let hurry = preempted || end.is_none();
    // Nothing is spent any more from here on, and all that was spent is known.
    let Closed { purses, calls, judging, warnings } = model::close_account(&attempt, hurry).await;
    known.note(|notes| {
        notes.calls = calls;
        notes.judging = judging;
        notes.warnings.extend(warnings);
    });
    if hurry {
        // The grace may be short: what was recorded goes out before the sandbox is cleaned up.
        finish(&attempt, &known, end, &purses);
        release(&known, &scratch, &attempt.shared).await;
    } else {
        release(&known, &scratch, &attempt.shared).await;
        finish(&attempt, &known, end, &purses);
    }
}

/// Why the phases ended early.
enum Ending {
    Fault(Fault),
    Stopped(StopReason),
    /// What a snapshot holds did not come up as it was: another way is taken.
    NotRestored(String),
}

impl From<Fault> for Ending {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

fn stopped(reason: StopReason, known: &Known) -> Option<AttemptEnd> {
    let undecided = || known.undecided.lock().unwrap_or_else(PoisonError::into_inner).take();
    match reason {
        StopReason::Cancelled => Some(AttemptEnd::Cancelled),
        // The lease goes back with all others of the worker, and the coordinator says how it
        // ended; an end of its own would only be answered with another lease.
        StopReason::Stale => None,
        StopReason::Preempted => undecided(),
        StopReason::Parked => undecided().or_else(|| {
            let message = "the worker was cut off from the coordinator for too long";
            Some(AttemptEnd::Fault(fault(FaultClass::WorkerLost, message.to_owned())))
        }),
    }
}

/// A batch system that ends a job signals the sandbox's processes too: what failed then is a
/// preemption, whatever it looks like.
async fn excused(found: Fault, shared: &Shared) -> Fault {
    let may_be_hit = matches!(
        found.class,
        FaultClass::SandboxStart | FaultClass::Display | FaultClass::LayerBuild | FaultClass::SetupHook
    );
    if may_be_hit && shared.shutdown.told_within(CAUSE_WAIT).await {
        return fault(FaultClass::Preempted, format!("the worker had to stop; what was seen of it: {}", found.message));
    }
    found
}

fn finish(attempt: &Attempt, known: &Known, end: Option<AttemptEnd>, purses: &[(PurseKind, PurseState)]) {
    let mut notes = known.notes.lock().unwrap_or_else(PoisonError::into_inner).clone();
    notes.peak_memory_mib = known.peak_memory_mib.load(Ordering::Relaxed);
    let escrow = &attempt.shared.escrow;
    let Some(end) = end else {
        escrow.last_word(&attempt.outbox, purses);
        attempt.outbox.close();
        return;
    };
    if let Err(error) = attempt.outbox.end(end, notes, escrow.closed(attempt.lease, purses)) {
        tracing::error!(attempt = %attempt.lease.attempt, error = %crate::chain(&error), "an end cannot be recorded");
        attempt.outbox.close();
    }
}

async fn phases(attempt: &Attempt, known: &Known, scratch: &Path) -> Result<AttemptEnd, Ending> {
    let shared = &attempt.shared;
    let plans = load(attempt).await?;
    let start = moment::now();
    let mut notes = AttemptNotes::default();
    let layers = layers::ready(&plans.env, shared, &mut notes).await?;
    known.note(|known| {
        known.layers = notes.layers;
        known.configure_ran = notes.configure_ran;
        known.layers_time = moment::since(start);
    });
    wait_for_lease(attempt).await?;

    let scored = match snapshot::find(attempt, known, &plans, scratch).await {
        Some(restoring) => snapshot::restored(attempt, known, scratch, &plans, &layers, &restoring).await,
        None => sandboxed(attempt, known, scratch, &plans, &layers, None).await,
    };
    let case = match scored? {
        Scored::Ended(end) => return Ok(end),
        Scored::ToJudge(case) => case,
    };
    *known.undecided.lock().unwrap_or_else(PoisonError::into_inner) = Some(case.undecided(&plans));
    // A judge needs the pictures alone, and may have to be waited for.
    stop_all(known).await;
    let start = case.start;
    let end = scoring::judged(attempt, &plans, *case).await;
    known.note(|notes| notes.verify_time = moment::since(start));
    end
}

/// The phases from the sandbox's start to its last use.
async fn sandboxed(
    attempt: &Attempt,
    known: &Known,
    scratch: &Path,
    plans: &Plans,
    layers: &Layers,
    restored: Option<&Restoring>,
) -> Result<Scored, Ending> {
    let shared = &attempt.shared;
    attempt.tell(AttemptPhase::Starting);
    let start = moment::now();
    std::fs::create_dir_all(scratch).map_err(|error| disk_fault(scratch, &error))?;
    let mounts = views::mounts(&plans.env, &shared.blobs, scratch).await?;
    let mut views = mounts.views.clone();
    views.extend(views::tasks(&plans.env, Some((&plans.task, &plans.task_files)), scratch).await?);
    let gpus = shared.gpus.take(plans.env.resources.gpus).await;
    let gpus = gpus.map_err(|error| fault(FaultClass::SandboxStart, error.to_string()))?;
    let own_gpus = gpus.as_ref().map(|share| share.gpus().clone());
    *known.gpus.lock().unwrap_or_else(PoisonError::into_inner) = gpus;
    let request = SandboxRequest {
        id: attempt.name(),
        env: Some(plans.env.name.clone()),
        layers: layers.stack.clone(),
        tops: restored.map(|restored| restored.tops.clone()).unwrap_or_default(),
        views,
        accounts: plans.env.accounts.clone(),
        net: plans.env.net,
        gpus: own_gpus,
    };
    let cpus = shared.cpus.take(plans.env.resources.cpu_millis);
    // Closed never: who waits here starts in turn, or is stopped.
    let starting = shared.starts.acquire().await.ok();
    let sandbox = shared.driver.start(request).await.map_err(|error| match restored {
        // What was packed may be what cannot be mounted.
        Some(_) => Ending::NotRestored(error.to_string()),
        None => error.fault().into(),
    })?;
    *known.sandbox.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&sandbox));
    sandbox.bind_cpus(cpus.cpus());

    let guards = guards(sandbox.as_ref(), plans, shared, &known.peak_memory_mib);
    let (sandbox, cpus) = (sandbox.as_ref(), cpus.cpus());
    let inside = Inside { attempt, known, scratch, plans, layers, restored, sandbox, cpus, start };
    tokio::pin!(guards);
    let early = tokio::select! {
        fault = &mut guards => return Err(Ending::Fault(fault)),
        result = inside.run(starting) => result,
    };
    match early {
        // What broke inside may be the sandbox's end, whose cause a guard knows.
        Err(Ending::Fault(fault)) if matches!(fault.class, FaultClass::SandboxStart | FaultClass::Display) => {
            let cause = tokio::time::timeout(CAUSE_WAIT, guards).await;
            Err(Ending::Fault(cause.unwrap_or(fault)))
        }
        other => other,
    }
}

/// Resolves when the sandbox may not or cannot go on.
async fn guards(sandbox: &dyn Sandbox, plans: &Plans, shared: &Shared, peak: &AtomicU64) -> Fault {
    let memory = watch_memory(sandbox, plans.env.resources.memory_mib, |used| {
        peak.fetch_max(used, Ordering::Relaxed);
    });
    tokio::select! {
        reason = sandbox.exited() => fault(FaultClass::SandboxStart, format!("the sandbox died: {reason}")),
        message = memory => {
            sandbox.kill().await;
            fault(FaultClass::Memory, message)
        }
        // Half the floor: a start needs room that what runs has already.
        message = shared.node.until_disk_emergency() => fault(FaultClass::NodeDisk, message),
    }
}

/// The phases inside a live sandbox.
struct Inside<'a> {
    attempt: &'a Attempt,
    known: &'a Known,
    scratch: &'a Path,
    plans: &'a Plans,
    layers: &'a Layers,
    /// The snapshot that it begins with.
    restored: Option<&'a Restoring>,
    sandbox: &'a dyn Sandbox,
    /// The processors of the attempt.
    cpus: &'a [usize],
    /// When the sandbox was asked for.
    start: Duration,
}

impl Inside<'_> {
    /// From the display to the end; `starting` is the place among those on their way up.
    async fn run(&self, starting: Option<SemaphorePermit<'_>>) -> Result<Scored, Ending> {
        let Self { attempt, plans, .. } = self;
        let shared = &attempt.shared;
        let env = &plans.env;
        let display = self.sandbox.start_display(env.width, env.height).await.map_err(|error| match self.restored {
            // What was saved may be what keeps it from coming up.
            Some(_) => Ending::NotRestored(error.to_string()),
            None => error.fault().into(),
        })?;
        drop(starting);
        if !self.layers.units.is_empty() {
            let units = self.layers.units.clone();
            // As at a boot, a service that fails does not keep the rest from coming up.
            if let Err(error) = self.sandbox.start_units(units).await {
                self.known.note(|notes| notes.warnings.push(format!("not every service was started: {error}")));
            }
        }
        self.known.note(|notes| notes.start_time = moment::since(self.start));

        attempt.tell(AttemptPhase::Setup);
        let start = moment::now();
        let mut recorder =
            Recorder::new(Arc::clone(&attempt.outbox), Arc::clone(shared), self.scratch.join("episode"))?;
        match self.restored {
            Some(_) => self.reopen(&recorder).await?,
            None => self.setup(&recorder).await?,
        }
        wait_for_lease(attempt).await?;
        let step = self.restored.map(|restored| restored.snapshot.step);
        let mut past = plans.past.as_ref().map(|past| Follower::new(attempt, past, display.as_ref(), step));
        if let (Some(past), Some(step)) = (&past, step) {
            past.probe(step, &recorder).await?.map_err(Ending::NotRestored)?;
        }
        let first = match &mut past {
            Some(past) => past.observe(FIRST_REST, &mut recorder).await?,
            None => {
                let said = Said { round: plans.task.rounds.as_ref().map(|_| 1), ..Said::default() };
                recorder.observe(display.as_ref(), FIRST_REST, said).await?
            }
        };
        self.known.note(|notes| notes.setup_time = moment::since(start));

        if past.is_none() {
            attempt.tell(AttemptPhase::Acting);
        }
        let access = self.access().await?;
        if let (Some(past), Some(access)) = (&mut past, &access) {
            past.ask_through(access.caller.as_ref());
        }
        let (ended_by, rounds) = self.act(display.as_ref(), first, past, &mut recorder, access.as_ref()).await?;

        let start = moment::now();
        attempt.tell(AttemptPhase::Export);
        let not_exported = self.export(display.as_ref(), &mut recorder).await?.err();
        attempt.tell(AttemptPhase::Verifying);
        let scored = self.score(Acted { ended_by, rounds, recorder, access, not_exported, start }).await;
        self.known.note(|notes| notes.verify_time = moment::since(start));
        scored
    }

    fn hook_env(&self) -> BTreeMap<String, String> {
        let mut env = BTreeMap::from([("DISPLAY".to_owned(), ":1".to_owned())]);
        if self.plans.env.net {
            env.extend(self.attempt.shared.config.hook_env.clone());
        }
        env
    }

    /// The hooks before the first observation, in Gym-Anything's order.
    async fn setup(&self, recorder: &Recorder) -> Result<(), Ending> {
        let Plans { env, task, episode, .. } = self.plans;
        let mut warnings = Vec::new();
        if self.layers.configure_reruns.is_some()
            && let Some(command) = &env.post_start
        {
            let hook =
                Hook { name: "post_start", command, log: "/home/ga/env_setup_post_start.log", limit: ENV_HOOK_LIMIT };
            let end = hooks::run(&hook, &self.hook_env(), self.sandbox, recorder, self.scratch).await?;
            end.prepared(&hook, &mut warnings)?;
            if end.result.code != 0 && env.hook_policy == HookPolicy::Strict {
                return Err(Ending::Fault(Fault {
                    class: FaultClass::SetupHook,
                    message: format!("the post_start hook ended with code {}", end.result.code),
                    log_tail: Some(end.log_tail),
                }));
            }
        }
        let mut seeded = self.hook_env();
        seeded.insert("SEED".to_owned(), episode.seed.to_string());
        let hooks = [
            ("reset", &env.reset, "/home/ga/env_reset.log", ENV_HOOK_LIMIT, seeded),
            ("pre_task", &task.pre_task, "/home/ga/task_pre_task.log", task.hook_time, self.hook_env()),
            ("init_script", &task.init_script, "/home/ga/task_init_script.log", task.hook_time, self.hook_env()),
        ];
        for (name, command, log, limit, variables) in hooks {
            let Some(command) = command else { continue };
            let hook = Hook { name, command, log, limit };
            let end = hooks::run(&hook, &variables, self.sandbox, recorder, self.scratch).await?;
            end.prepared(&hook, &mut warnings)?;
        }
        self.known.note(|notes| notes.warnings.append(&mut warnings));
        self.before_round(1, recorder).await
    }

    /// The agent's part, and the end of its program, if it has one.
    async fn act(
        &self,
        display: &dyn Display,
        first: Frame,
        past: Option<Follower<'_>>,
        recorder: &mut Recorder,
        access: Option<&Access>,
    ) -> Result<(EndedBy, Vec<Played>), Ending> {
        let Plans { episode, task, .. } = self.plans;
        let attempt = self.attempt;
        let description = &task.description;
        let asked = task.rounds.as_ref().map_or_else(|| description.clone(), |plan| opening(description, plan));
        let mut agent = Agent::start(Starting {
            episode,
            task,
            asked: &asked,
            screen: first.screenshot,
            access,
            shared: &attempt.shared,
            id: format!("{}-agent", attempt.name()),
            scratch: self.scratch.join("agent"),
            cpus: self.cpus,
            keep: &self.known.agent_sandbox,
        })
        .await?;
        let saver = Saver::new(attempt, self.known, self.plans, self.sandbox, self.scratch, self.restored);
        let acting = Acting { attempt, known: self.known, display, episode, access, saver };
        let ended = tokio::select! {
            biased;
            ended = self.play(&acting, &mut agent, first, past, recorder) => ended,
            ending = attempt.parked_too_long() => Err(ending),
        };
        let log = agent.finish(ended.as_ref().ok().map(|(ended_by, _)| *ended_by)).await;
        if let Some(log) = log.filter(|log| !log.is_empty()) {
            recorder.log("agent", log.as_bytes())?;
        }
        stop_kept(&self.known.agent_sandbox).await;
        ended
    }

    /// The attempt's way to models, if its plan names any.
    async fn access(&self) -> Result<Option<Access>, Fault> {
        let (attempt, episode) = (self.attempt, &self.plans.episode);
        let Some(digest) = episode.gateway else { return Ok(None) };
        let plan = attempt.shared.blobs.get_json(digest, "a gateway plan").await.map_err(|error| blob_fault(&error))?;
        let plan = Arc::new(plan);
        let (caller, token) = model::open_account(attempt, episode, &self.plans.task, Arc::clone(&plan));
        if let Some(past) = &self.plans.past {
            caller.follow(past.calls(), past.live_from());
        }
        Ok(Some(Access { caller, token, plan }))
    }

    /// The export hook, and the screen after it. The inner error is why nothing can be verified.
    async fn export(&self, display: &dyn Display, recorder: &mut Recorder) -> Result<Result<(), String>, Ending> {
        let task = &self.plans.task;
        if let Some(command) = &task.post_task {
            let hook = Hook { name: "post_task", command, log: "/home/ga/task_post_task.log", limit: task.hook_time };
            let end = hooks::run(&hook, &self.hook_env(), self.sandbox, recorder, self.scratch).await?;
            if end.result.timed_out {
                let reason = format!("the post_task hook ran over its time limit of {}", hook.limit);
                return Ok(Err(format!("{reason}\n{}", end.log_tail)));
            }
            self.known.note(|notes| end.warn(&hook, &mut notes.warnings));
        }
        let limit = task.export_settle.to_std();
        let quiet = limit.min(Duration::from_secs(2));
        let rest = RestRule {
            quiet,
            first_change: quiet,
            working: limit,
            idle: Duration::from_millis(300),
            limit,
            interval: Duration::from_millis(100),
        };
        let stepped = display.step(Vec::new(), rest).await.map_err(|error| error.fault())?;
        recorder.after_export(&stepped.frame)?;
        Ok(Ok(()))
    }
}

impl Attempt {
    /// A name for its folders and its sandbox, unique on the node.
    fn name(&self) -> String {
        format!("{}-{}", self.lease.attempt.to_string().replace('/', "-"), self.lease.epoch)
    }

    fn tell(&self, phase: AttemptPhase) {
        let steps = self.outbox.steps();
        self.progress.send_replace(Progress { phase, steps });
    }

    /// Resolves when it was parked for too long: model calls wait for the lease, and do so without
    /// an end of their own.
    async fn parked_too_long(&self) -> Ending {
        Ending::Stopped(self.control.parked_for(self.shared.config.park_limit).await)
    }
}

/// Waits, parked, for as long as the lease does not hold.
async fn wait_for_lease(attempt: &Attempt) -> Result<(), Ending> {
    if !attempt.control.is_parked() {
        return Ok(());
    }
    let before = attempt.progress.borrow().phase;
    attempt.tell(AttemptPhase::Parked);
    attempt.control.unparked(attempt.shared.config.park_limit).await.map_err(Ending::Stopped)?;
    attempt.tell(before);
    Ok(())
}

async fn load(attempt: &Attempt) -> Result<Plans, Fault> {
    let blobs = &attempt.shared.blobs;
    let read = |error: BlobError| blob_fault(&error);
    let episode: EpisodePlan = blobs.get_json(attempt.plan, "an episode plan").await.map_err(read)?;
    let task: TaskPlan = blobs.get_json(episode.task, "a task plan").await.map_err(read)?;
    let env: EnvPlan = blobs.get_json(task.env, "an env plan").await.map_err(read)?;
    for name in [&task.name.env, &task.name.task, &env.name] {
        if !is_plain_name(name) {
            let message = format!("`{}` is not a name of an env or task", name.escape_debug());
            return Err(fault(FaultClass::Store, message));
        }
    }
    let task_files = blobs.folder(task.files).await.map_err(read)?;
    let env_files = blobs.folder(env.files).await.map_err(read)?;
    let past = replay::fetch(attempt).await?;
    if attempt.verifies.is_some() && past.is_none() {
        let message = "nothing is kept that could be verified again".to_owned();
        return Err(fault(FaultClass::ReplayDiverged, message));
    }
    Ok(Plans { episode, task, env, task_files, env_files, past })
}

/// Names become folders: they must be one part of a path.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name.len() < 250 && !matches!(name, "." | "..") && !name.contains(['/', '\0'])
}

/// A fault without a log.
pub(crate) const fn fault(class: FaultClass, message: String) -> Fault {
    Fault { class, message, log_tail: None }
}

fn disk_fault(path: &Path, error: &std::io::Error) -> Fault {
    let path: PathBuf = path.to_owned();
    fault(FaultClass::NodeDisk, format!("cannot write {}: {error}", path.display()))
}

/// What a failure with blobs is for an attempt.
pub(crate) fn blob_fault(error: &BlobError) -> Fault {
    let class = match error {
        BlobError::File { .. } => FaultClass::NodeDisk,
        _ => FaultClass::Store,
    };
    fault(class, crate::chain(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_leave_their_folder_are_refused() {
        assert!(is_plain_name("gpredict_env"));
        for bad in ["", ".", "..", "a/b", "/a", "a\0"] {
            assert!(!is_plain_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn only_what_is_nobody_elses_to_say_is_an_end() {
        let known = Known::default();
        assert_eq!(stopped(StopReason::Stale, &known), None);
        assert_eq!(stopped(StopReason::Preempted, &known), None);
        assert_eq!(stopped(StopReason::Cancelled, &known), Some(AttemptEnd::Cancelled));
        let parked = stopped(StopReason::Parked, &known);
        assert!(matches!(parked, Some(AttemptEnd::Fault(fault)) if fault.class == FaultClass::WorkerLost));
    }

    #[test]
    fn an_attempt_that_waits_for_its_judge_alone_is_not_begun_again() {
        let unjudged = || crate::judge::end(EndedBy::Agent, None, Err("no answer yet".to_owned()));
        let told = |reason| {
            let known = Known { undecided: Mutex::new(Some(unjudged())), ..Known::default() };
            stopped(reason, &known)
        };
        assert_eq!(told(StopReason::Preempted), Some(unjudged()));
        assert_eq!(told(StopReason::Parked), Some(unjudged()));
        assert_eq!(told(StopReason::Cancelled), Some(AttemptEnd::Cancelled));
        assert_eq!(told(StopReason::Stale), None);
    }
}

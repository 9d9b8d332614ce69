//! Going on where an earlier attempt was cut off, by replay: in a fresh sandbox the recorded
//! actions are injected again, and each screen has to come out as it was recorded. The agent is
//! shown what it was shown, and its model calls are answered from the record, so that it comes to
//! be what it was. Where the record ends, life begins.
//!
//! * [`fetch`]: the record, as the coordinator kept it;
//! * [`compare`]: whether a screen shows what was recorded;
//! * [`Follower`]: one attempt on its way.
//!
//! What does not come out as it was recorded ends the attempt with a fault of its own class: what
//! is done next is not decided here. Nothing that was replayed is recorded again: the attempt's own
//! steps and calls begin where life does.

mod compare;
mod fetch;

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_core::action::{Input, Point, parse};
use longhaul_core::agent::Answer;
use longhaul_core::digest::Digest;
use longhaul_core::outcome::{EndedBy, Fault, FaultClass};
use longhaul_core::resume::{Kept, Resumed, Used, Way, reading_log};
use longhaul_core::screen::Area;
use longhaul_core::snapshot::snapshot_step;
use longhaul_core::step::{ActionOutcome, StepRecord};
use longhaul_core::time::Millis;
use longhaul_gateway::PastCall;
use longhaul_proto::v1::AttemptPhase;
use serde_json::{Value, json};

use self::compare::Verdict;
use super::record::Recorder;
use super::{Attempt, Ending, FIRST_REST, blob_fault, fault, wait_for_lease};
use crate::agents::caller::Caller;
use crate::lease::Moment;
use crate::moment;
use crate::sandbox::Display;
use crate::screen::{Frame, RestRule, Stepped};
use crate::session::delivery::Progress;
use crate::shutdown::Urgency;

pub(super) use fetch::fetch;

/// Programs are still coming up at the first observation: so many times the patience.
const FIRST_PATIENCE: u32 = 4;

/// The longest that is waited because the screen had changed by itself while the agent thought.
const MOST_THOUGHT: Duration = Duration::from_secs(60);

/// Another look at a screen.
const LOOK: RestRule = RestRule { limit: Duration::from_millis(1500), ..RestRule::STEP };

/// What is kept of the attempts before.
#[derive(Debug)]
pub(super) struct Past {
    kept: Kept,
    /// Every step that is kept, from the first observation on.
    steps: Vec<StepRecord>,
    calls: Vec<PastCall>,
    /// What is masked in each observation.
    masks: Vec<Vec<Area>>,
    /// What was written down beside the steps, by name.
    logs: BTreeMap<String, Digest>,
}

impl Past {
    /// The calls, as the gateway follows them.
    pub(super) fn calls(&self) -> Vec<PastCall> {
        self.calls.clone()
    }

    /// The number of the attempt that took the last step that is kept.
    pub(super) const fn parent(&self) -> u32 {
        self.kept.parent
    }

    /// The last snapshot of a step that is kept: its step, and the blob that describes it.
    pub(super) fn last_snapshot(&self) -> Option<(u32, Digest)> {
        let steps = self.logs.iter().filter_map(|(name, blob)| Some((snapshot_step(name)?, *blob)));
        steps.filter(|(step, _)| *step < self.kept.steps).max_by_key(|(step, _)| *step)
    }

    /// Where the actions had put the pointer when a step was over.
    fn pointer_at(&self, step: u32) -> Option<Point> {
        let taken = self.steps.get(..=step as usize)?;
        let actions =
            taken.iter().rev().filter_map(|step| step.answer.as_ref()).flat_map(|answer| answer.actions.iter().rev());
        let mut inputs = actions.flat_map(|action| parse(action).unwrap_or_default().into_iter().rev());
        inputs.find_map(|input| match input {
            Input::Move(at) | Input::Click { at, .. } | Input::Drag { to: at, .. } => Some(at),
            _ => None,
        })
    }

    /// The number of the first step that is not recorded.
    pub(super) const fn live_from(&self) -> u32 {
        self.kept.steps
    }
}

/// An attempt on its way to where an earlier one was cut off.
pub(super) struct Follower<'a> {
    attempt: &'a Attempt,
    past: &'a Past,
    display: &'a dyn Display,
    caller: Option<&'a dyn Caller>,
    start: Moment,
    /// The number of the next step that is replayed.
    next: u32,
    /// The step at which the sandbox begins, if it is laid over a snapshot: what was done up to it is
    /// not done again.
    restored: Option<u32>,
    used: Used,
    /// Steps whose screen came out as recorded only later, and pixels that were masked.
    waited: u32,
    masked: u64,
}

/// What the agent is shown after a step that was replayed: as it was recorded.
pub(super) struct Followed {
    pub(super) outcomes: Vec<ActionOutcome>,
    pub(super) frame: Frame,
}

impl<'a> Follower<'a> {
    /// Before the first observation.
    pub(super) fn new(attempt: &'a Attempt, past: &'a Past, display: &'a dyn Display, restored: Option<u32>) -> Self {
        Self {
            attempt,
            past,
            display,
            caller: None,
            start: moment::now(),
            next: 0,
            restored,
            used: Used::default(),
            waited: 0,
            masked: 0,
        }
    }

    /// What the agent's calls go through.
    pub(super) const fn ask_through(&mut self, caller: &'a dyn Caller) {
        self.caller = Some(caller);
    }

    /// Whether there are recorded steps left.
    pub(super) const fn is_behind(&self) -> bool {
        self.next < self.past.kept.steps
    }

    /// The agent's time up to here, as it was recorded.
    pub(super) const fn acted(&self) -> Millis {
        self.used.time
    }

    /// Waits until an observation without actions before it is as it was recorded.
    pub(super) async fn observe(&mut self, rest: RestRule, recorder: &mut Recorder) -> Result<Frame, Ending> {
        let record = self.record()?;
        if record.answer.is_some() {
            return Err(self.diverged("the record has an answer of the agent there".to_owned()).into());
        }
        let patience = self.patience() * FIRST_PATIENCE;
        let Followed { frame, .. } = self.look(record, Vec::new(), rest, patience, recorder).await?;
        Ok(frame)
    }

    /// Whether what comes next in the record opens a further round: the agent's part in the one
    /// before was over.
    pub(super) fn opens(&self) -> bool {
        self.past.steps.get(self.next as usize).is_some_and(|record| record.answer.is_none())
    }

    /// As [`Self::observe`], where a round opens; with what the agent was told there.
    pub(super) async fn open(
        &mut self,
        round: u32,
        rest: RestRule,
        recorder: &mut Recorder,
    ) -> Result<(Frame, Option<String>), Ending> {
        let record = self.record()?;
        if record.round != Some(round) {
            return Err(self.diverged(format!("the record does not open round {round} there")).into());
        }
        let frame = self.observe(rest, recorder).await?;
        Ok((frame, record.told.clone()))
    }

    /// That a round's reading is what it was. `found` is the digest of what was read now, if anything
    /// could be.
    pub(super) fn same_reading(&self, round: u32, found: Option<Digest>) -> Result<(), Fault> {
        let name = reading_log(round);
        let recorded = self.past.logs.get(&name).copied();
        if recorded == found {
            return Ok(());
        }
        let short = |digest: Option<Digest>| digest.map_or_else(|| "nothing".to_owned(), |digest| digest.short());
        let (found, recorded) = (short(found), short(recorded));
        let why = format!("the reading of round {round} is {found}, and had been {recorded} (the logs `{name}`)");
        Err(self.diverged(why))
    }

    /// Carries out the actions of an answer that is as it was recorded.
    pub(super) async fn step(&mut self, asked: &Answer, recorder: &mut Recorder) -> Result<Followed, Ending> {
        let record = self.record()?;
        if let Some(fault) = self.not_recorded() {
            return Err(fault.into());
        }
        let Some(answer) = &record.answer else {
            return Err(self.diverged("the record has no answer of an agent there".to_owned()).into());
        };
        if (&answer.actions, answer.done) != (&asked.actions, asked.done) {
            let message = format!("the agent asked for {}, and had asked for {}", short(asked), short(answer));
            return Err(self.diverged(message).into());
        }
        let (width, height) = (record.screen.width, record.screen.height);
        if !self.is_saved() && record.stirred.iter().any(|area| !area.is_small(width, height)) {
            // Something large came up while it thought: a page was loading, a program starting.
            tokio::time::sleep(record.timing.agent.to_std().min(MOST_THOUGHT)).await;
            wait_for_lease(self.attempt).await?;
        }
        let actions = answer.actions.clone();
        self.look(record, actions, RestRule::STEP, self.patience(), recorder).await
    }

    /// The next step that is replayed.
    fn record(&self) -> Result<&'a StepRecord, Fault> {
        let past = self.past;
        past.steps.get(self.next as usize).ok_or_else(|| self.diverged("the record has no such step".to_owned()))
    }

    /// Whether what was done in the next step is in the snapshot that the sandbox begins with.
    fn is_saved(&self) -> bool {
        self.restored.is_some_and(|step| self.next <= step)
    }

    /// That the screen of a sandbox that begins with a snapshot shows what was recorded when that was
    /// taken. The inner error is what it shows.
    pub(super) async fn probe(&self, step: u32, recorder: &Recorder) -> Result<Result<(), String>, Ending> {
        let Some(record) = self.past.steps.get(step as usize) else {
            return Ok(Err("the record has no such step".to_owned()));
        };
        let pointed = self.past.pointer_at(step).map(|Point { x, y }| json!({"mouse": {"move": [x, y]}}));
        let stepped = self.inject(pointed.into_iter().collect(), FIRST_REST).await?;
        match self.compared(record, step, stepped, self.patience() * FIRST_PATIENCE).await? {
            Compared::Same { .. } => Ok(Ok(())),
            Compared::Differs { recorded, found, why } => {
                show(recorder, "restore", step, [&recorded, &found], &why)?;
                Ok(Err(format!("the screen differs: {why}")))
            }
        }
    }

    /// Injects, and looks until the screen is as it was recorded. What a snapshot holds is not done again.
    async fn look(
        &mut self,
        record: &StepRecord,
        actions: Vec<Value>,
        rest: RestRule,
        patience: Duration,
        recorder: &mut Recorder,
    ) -> Result<Followed, Ending> {
        if self.restored.is_some_and(|step| self.next < step) {
            let recorded = self.recorded(record).await?;
            return self.passed(record, recorded, recorder);
        }
        let stepped = if self.is_saved() {
            self.inject(Vec::new(), LOOK).await?
        } else {
            let stepped = self.inject(actions, rest).await?;
            if stepped.performed.outcomes != record.outcomes {
                let came = outcomes(&stepped.performed.outcomes, &record.outcomes);
                return Err(self.diverged(format!("its actions came to {came}")).into());
            }
            stepped
        };
        match self.compared(record, self.next, stepped, patience).await? {
            Compared::Same { recorded, masked, looks } => {
                self.masked += masked;
                self.waited += u32::from(looks > 0);
                self.passed(record, recorded, recorder)
            }
            Compared::Differs { recorded, found, why } => {
                show(recorder, "replay", self.next, [&recorded, &found], &why)?;
                Err(self.diverged(format!("the screen differs: {why}")).into())
            }
        }
    }

    /// Looks until the screen is as it was recorded, or patience ends.
    async fn compared(
        &self,
        record: &StepRecord,
        step: u32,
        mut stepped: Stepped,
        patience: Duration,
    ) -> Result<Compared, Ending> {
        let masks = self.past.masks.get(step as usize).cloned().unwrap_or_default();
        let began = moment::now();
        let mut looks = 0_u32;
        let mut fetched: Option<Frame> = None;
        loop {
            let restless = record.rested && !stepped.rest.rested;
            let recorded = match &fetched {
                Some(recorded) => recorded.clone(),
                // The same bytes: there is nothing to be fetched.
                None if stepped.frame.screenshot == record.screen => stepped.frame.clone(),
                None => fetched.insert(self.recorded(record).await?).clone(),
            };
            let verdict = match compare::frames(&recorded, &stepped.frame, masks.clone()).await {
                // It may be on its way to something else.
                Verdict::Same { .. } if restless => Verdict::Differs("it did not come to rest".to_owned()),
                verdict => verdict,
            };
            match verdict {
                Verdict::Same { masked } => return Ok(Compared::Same { recorded, masked, looks }),
                Verdict::Differs(why) if moment::now().saturating_sub(began) >= patience => {
                    return Ok(Compared::Differs { recorded, found: stepped.frame, why });
                }
                Verdict::Differs(_) => {
                    looks += 1;
                    stepped = self.inject(Vec::new(), LOOK).await?;
                }
            }
        }
    }

    /// A step is behind.
    fn passed(&mut self, record: &StepRecord, recorded: Frame, recorder: &mut Recorder) -> Result<Followed, Ending> {
        self.used.add_step(record);
        recorder.replayed(record, &recorded)?;
        self.next += 1;
        let now = Progress { phase: AttemptPhase::Replaying, steps: self.next };
        self.attempt.progress.send_replace(now);
        Ok(Followed { outcomes: record.outcomes.clone(), frame: recorded })
    }

    /// The recorded screen of a step.
    async fn recorded(&self, record: &StepRecord) -> Result<Frame, Fault> {
        match self.attempt.shared.blobs.get(record.screen.png).await {
            Ok(png) => Ok(Frame { screenshot: record.screen, png: png.into(), unchanged: false }),
            Err(error) if error.is_missing() => Err(self.diverged("its recorded screenshot is gone".to_owned())),
            Err(error) => Err(blob_fault(&error)),
        }
    }

    /// How long a screen is given to become what was recorded: on a busy node a program draws
    /// later, and a caret blinks.
    fn patience(&self) -> Duration {
        self.attempt.shared.config.replay_patience
    }

    async fn inject(&self, actions: Vec<Value>, rest: RestRule) -> Result<Stepped, Ending> {
        wait_for_lease(self.attempt).await?;
        let stepped = self.display.step(actions, rest).await.map_err(|error| error.fault())?;
        if self.attempt.shared.shutdown.urgency() > Urgency::None {
            // The same signal may have hit the sandbox: a screen that differs now says nothing.
            let message = "the worker had to stop on its way to where an earlier attempt was".to_owned();
            return Err(fault(FaultClass::Preempted, message).into());
        }
        Ok(stepped)
    }

    /// The agent's part is over, although the record goes on.
    pub(super) fn ended_early(&self, ended_by: EndedBy) -> Fault {
        self.diverged(format!("the agent's part was over ({ended_by}), and the record goes on"))
    }

    /// What did not come out as it was recorded.
    pub(super) fn diverged(&self, why: String) -> Fault {
        let (step, of) = (self.next, self.past.kept.steps.saturating_sub(1));
        fault(FaultClass::ReplayDiverged, format!("the replay diverged at step {step} of {of}: {why}"))
    }

    /// The agent made a call that the record does not hold, if it did.
    fn not_recorded(&self) -> Option<Fault> {
        let missing = self.caller?.replayed().missing?;
        Some(self.diverged(format!("the agent made {missing}")))
    }

    /// What a failure of the agent means, which may come of a call that the record does not hold:
    /// where it had answered, it had not failed.
    pub(super) fn agent_failed(&self, fault: Fault) -> Fault {
        match self.not_recorded() {
            Some(fault) => fault,
            None if fault.class == FaultClass::AgentCrashed => {
                let log_tail = fault.log_tail.clone();
                Fault { log_tail, ..self.diverged(format!("the agent failed, and had answered: {}", fault.message)) }
            }
            None => fault,
        }
    }

    /// The record is at its end: says so, and waits until that is durable.
    pub(super) async fn arrive(&self) -> Result<(), Ending> {
        let replayed = self.caller.map(Caller::replayed).unwrap_or_default();
        let mut remarks = Vec::new();
        if let Some(step) = self.restored {
            remarks.push(format!("it began with a snapshot of step {step}"));
        }
        if self.waited > 0 {
            remarks.push(format!("{} screens were as recorded only after a second look", self.waited));
        }
        if self.masked > 0 {
            remarks.push(format!("{} pixels differ where the screen changes by itself", self.masked));
        }
        let resumed = Resumed {
            way: if self.restored.is_some() { Way::Restore } else { Way::Replay },
            kept: self.past.kept,
            at: moment::wall(),
            took: moment::since(self.start),
            answered: replayed.answered,
            differing: replayed.differing,
            remarks,
        };
        tracing::info!(attempt = %self.attempt.lease.attempt, steps = self.past.kept.steps, took = %resumed.took, "replayed");
        if let Some(caller) = self.caller {
            caller.is_live();
        }
        let outbox = &self.attempt.outbox;
        outbox.resumed(&resumed).map_err(|error| super::record::spool_fault(&error))?;
        let mut changes = outbox.subscribe();
        loop {
            changes.borrow_and_update();
            if outbox.has_resumed() {
                break;
            }
            // The sender outlives every attempt; one that is cut off for too long is ended.
            let _ = changes.changed().await;
        }
        self.attempt.tell(AttemptPhase::Acting);
        wait_for_lease(self.attempt).await
    }
}

/// What a screen comes to beside a recorded one.
enum Compared {
    Same { recorded: Frame, masked: u64, looks: u32 },
    Differs { recorded: Frame, found: Frame, why: String },
}

/// Both screens, for a person: the recorded one, and the one that was found.
fn show(recorder: &Recorder, what: &str, step: u32, screens: [&Frame; 2], why: &str) -> Result<(), Fault> {
    for (name, screen) in ["recorded", "found"].into_iter().zip(screens) {
        recorder.picture(&format!("{what}-step-{step:05}-{name}.png"), screen)?;
    }
    recorder.log(what, format!("step {step}: {why}\n").as_bytes())
}

/// The most of an answer that a fault's message holds.
const MOST_SHOWN: usize = 200;

fn short(answer: &Answer) -> String {
    let actions = Value::from(answer.actions.clone());
    let text = if answer.done { format!("{actions}, done") } else { actions.to_string() };
    if text.len() <= MOST_SHOWN { text } else { format!("{}...", &text[..text.floor_char_boundary(MOST_SHOWN)]) }
}

fn outcomes(found: &[ActionOutcome], recorded: &[ActionOutcome]) -> String {
    let errors = |outcomes: &[ActionOutcome]| {
        let errors: Vec<&str> = outcomes
            .iter()
            .filter_map(|outcome| match outcome {
                ActionOutcome::Error(error) => Some(error.as_str()),
                ActionOutcome::Done => None,
            })
            .collect();
        if errors.is_empty() { "no error".to_owned() } else { errors.join("; ") }
    };
    format!("{}, and had come to {}", errors(found), errors(recorded))
}

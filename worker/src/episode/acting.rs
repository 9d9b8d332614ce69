//! The agent's part: turns, actions, observations, until the agent is done or a budget ends it.

use std::collections::VecDeque;
use std::time::Duration;

use longhaul_core::agent::AuditPlan;
use longhaul_core::outcome::{EndedBy, Fault, FaultClass};
use longhaul_core::plan::EpisodePlan;
use longhaul_core::time::Millis;
use longhaul_proto::v1::AttemptPhase;

use super::agent::{Access, Agent, Sight, pictures};
use super::record::{Recorder, Said};
use super::{Attempt, Ending, Known, fault, wait_for_lease};
use crate::agents::AgentEnd;
use crate::agents::audit::{self, Finding};
use crate::agents::caller::{Caller, end_of};
use crate::agents::conversation::Turn;
use crate::agents::external::Left;
use crate::agents::picture::{Picture, Wish};
use crate::agents::stall::{Measure, Stalls};
use crate::lease::Moment;
use crate::moment::{self, millis};
use crate::sandbox::Display;
use crate::screen::{Frame, RestRule};
use crate::shutdown::Urgency;

/// How often it is looked whether the time is over: what calls wait for moves its end.
const LOOK: Duration = Duration::from_secs(1);

/// The agent's part of one attempt.
pub(crate) struct Acting<'a> {
    pub(crate) attempt: &'a Attempt,
    pub(crate) known: &'a Known,
    pub(crate) display: &'a dyn Display,
    pub(crate) episode: &'a EpisodePlan,
    /// What the agent is asked to do, for an auditor.
    pub(crate) task: &'a str,
    pub(crate) access: Option<&'a Access>,
}

/// The time of an episode: parked time, and what its calls wait for, are not.
struct Clock<'a> {
    start: Moment,
    parked: Duration,
    caller: Option<&'a dyn Caller>,
    paused_before: Duration,
}

impl<'a> Clock<'a> {
    fn start(caller: Option<&'a dyn Caller>) -> Self {
        let paused_before = caller.map(Caller::paused).unwrap_or_default();
        Self { start: moment::now(), parked: Duration::ZERO, caller, paused_before }
    }

    fn acted(&self) -> Millis {
        let paused = self.caller.map(Caller::paused).unwrap_or_default().saturating_sub(self.paused_before);
        millis(moment::now().saturating_sub(self.start).saturating_sub(self.parked).saturating_sub(paused))
    }

    /// Resolves when so much time was acted.
    async fn until(&self, limit: Millis) {
        loop {
            let left = limit.0.saturating_sub(self.acted().0);
            if left == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(left).min(LOOK)).await;
        }
    }
}

/// What the notes say of the agent's part: written whatever ends it, and also where it is dropped
/// in the middle of a turn.
struct Tally<'a> {
    known: &'a Known,
    clock: Clock<'a>,
    stalls: Stalls,
    audits: u32,
}

impl Drop for Tally<'_> {
    fn drop(&mut self) {
        let (acted, stalls, audits) = (self.clock.acted(), self.stalls.notes(), self.audits);
        self.known.note(|notes| {
            notes.acting_time = acted;
            notes.stalls = stalls;
            notes.audits = audits;
        });
    }
}

/// The last screenshots, each once however long it stood, for an auditor.
struct Recent {
    frames: VecDeque<Frame>,
    most: usize,
}

impl Recent {
    fn new(most: u32, first: &Frame) -> Self {
        let most = usize::try_from(most).unwrap_or(usize::MAX).max(1);
        Self { frames: VecDeque::from([first.clone()]), most }
    }

    fn add(&mut self, frame: &Frame) {
        if self.frames.back().is_some_and(|last| last.screenshot.png == frame.screenshot.png) {
            return;
        }
        self.frames.push_back(frame.clone());
        while self.frames.len() > self.most {
            self.frames.pop_front();
        }
    }
}

impl Acting<'_> {
    /// Runs it, from the first observation on; what ended it.
    pub(crate) async fn run(
        &self,
        agent: &mut Agent,
        first: Frame,
        recorder: &mut Recorder,
    ) -> Result<EndedBy, Ending> {
        let caller = self.access.map(|access| access.caller.as_ref());
        let budget = &self.episode.budget;
        let mut tally = Tally {
            known: self.known,
            clock: Clock::start(caller),
            stalls: Stalls::new(self.episode.stall, first.screenshot.png),
            audits: 0,
        };
        let mut recent = Recent::new(self.episode.audit.as_ref().map_or(1, |audit| audit.images), &first);
        let (mut frame, mut outcomes) = (first, Vec::new());
        let mut told: Option<String> = None;
        loop {
            let acted = tally.clock.acted();
            let calls = caller.map(Caller::totals).unwrap_or_default();
            let steps = recorder.answers();
            if let Some(ended_by) = budget.exhausted(steps, acted, calls.usage.tokens()) {
                return Ok(ended_by);
            }
            // Nothing is asked of the agent without a lease that holds now.
            let before = moment::now();
            wait_for_lease(self.attempt).await?;
            tally.clock.parked += moment::now().saturating_sub(before);
            if let Some(caller) = caller {
                caller.set_step(steps + 1);
            }
            let asked = moment::now();
            let acknowledged = agent.acknowledged();
            let left = Left {
                steps: budget.max_steps.saturating_sub(steps),
                seconds: budget.max_time.0.saturating_sub(acted.0) / 1000,
            };
            let sight = Sight { step: steps, frame: &frame, outcomes: &outcomes, told: told.as_deref(), left };
            let answered = tokio::select! {
                biased;
                answered = agent.turn(sight) => answered,
                () = tally.clock.until(budget.max_time) => return Ok(EndedBy::Time),
            };
            let turn = match answered {
                Ok(Some(turn)) => turn,
                Ok(None) => return Ok(EndedBy::Agent),
                Err(AgentEnd::By(ended_by)) => return Ok(ended_by),
                Err(AgentEnd::Fault(fault)) => {
                    return self.refused(caller, &fault).map_or_else(|| Err(fault.into()), Ok);
                }
            };
            let agent_time = moment::since(asked);
            let Turn { answer, unreadable } = turn;
            let stepped =
                self.display.step(answer.actions.clone(), RestRule::STEP).await.map_err(|error| error.fault())?;
            if self.attempt.shared.shutdown.urgency() > Urgency::None {
                // The same signal may have hit the sandbox: what is seen now is not to be trusted.
                let message = "the worker had to stop; the last observation was discarded".to_owned();
                return Err(Ending::Fault(fault(FaultClass::Preempted, message)));
            }
            let done = answer.done;
            let measure = tally.stalls.step(&answer.actions, stepped.frame.screenshot.png);
            frame = stepped.frame.clone();
            outcomes.clone_from(&stepped.performed.outcomes);
            recent.add(&frame);
            let said = Said {
                calls: caller.map(Caller::take_numbers).unwrap_or_default(),
                told: joined(acknowledged, told.take()),
                unreadable,
            };
            recorder.step(Some(answer), stepped, agent_time, said).await?;
            self.attempt.tell(AttemptPhase::Acting);
            if done {
                match self.audit(&mut tally.audits, recorder, &recent).await? {
                    Audited::Done => return Ok(EndedBy::Agent),
                    Audited::GoOn(missing) => told = Some(missing),
                    Audited::Over(ended_by) => return Ok(ended_by),
                }
            }
            match measure {
                Measure::None => {}
                Measure::Tell(words) => told = joined(told, Some(words)),
                Measure::Stop => return Ok(EndedBy::Stall),
            }
        }
    }

    /// Which budget is spent, where the agent crashed: programs that are refused a call often do
    /// nothing else, and that is no fault of theirs.
    fn refused(&self, caller: Option<&dyn Caller>, fault: &Fault) -> Option<EndedBy> {
        let caller = caller.filter(|_| fault.class == FaultClass::AgentCrashed)?;
        if caller.spent().is_some() {
            return Some(EndedBy::Budget);
        }
        let used = caller.totals().usage.tokens();
        self.episode.budget.max_tokens.filter(|most| used >= *most).map(|_| EndedBy::Tokens)
    }

    /// Whether the agent's word that it is done stands.
    async fn audit(&self, audits: &mut u32, recorder: &Recorder, recent: &Recent) -> Result<Audited, Fault> {
        let (Some(plan), Some(access)) = (&self.episode.audit, self.access) else { return Ok(Audited::Done) };
        // Nothing could be done about what an audit finds.
        let is_last = recorder.answers() >= self.episode.budget.max_steps;
        if *audits >= plan.most || is_last {
            return Ok(Audited::Done);
        }
        *audits += 1;
        access.caller.set_step(recorder.answers() + 1);
        match self.ask_auditor(plan, access, recent).await {
            Ok(Finding::Complete) => Ok(Audited::Done),
            Ok(Finding::Missing(missing)) => Ok(Audited::GoOn(audit::told(&missing))),
            Ok(Finding::Unreadable(text)) => {
                self.known.note(|notes| {
                    notes.warnings.push(format!("an auditor's answer could not be read: {text}"));
                });
                Ok(Audited::Done)
            }
            Err(AgentEnd::By(ended_by)) => Ok(Audited::Over(ended_by)),
            Err(AgentEnd::Fault(fault)) => Err(fault),
        }
    }

    async fn ask_auditor(&self, plan: &AuditPlan, access: &Access, recent: &Recent) -> Result<Finding, AgentEnd> {
        let Some(endpoint) = access.plan.endpoint(&plan.endpoint) else {
            let message = format!("the episode's plan has no endpoint `{}` for audits", plan.endpoint.escape_debug());
            return Err(AgentEnd::Fault(fault(FaultClass::AgentCrashed, message)));
        };
        let mut images: Vec<Picture> = Vec::with_capacity(recent.frames.len());
        for frame in &recent.frames {
            images.push(pictures(frame, Wish::default()).await?.whole);
        }
        let call = audit::call(plan, endpoint.protocol, self.task, &images);
        let answer = access.caller.call(call).await.map_err(|error| end_of(&error))?;
        Ok(audit::read(endpoint.protocol, &answer.body))
    }
}

/// What an audit comes to.
enum Audited {
    Done,
    GoOn(String),
    Over(EndedBy),
}

fn joined(one: Option<String>, other: Option<String>) -> Option<String> {
    match (one, other) {
        (Some(one), Some(other)) => Some(format!("{one}\n{other}")),
        (one, other) => one.or(other),
    }
}

//! The agent's part: turns, actions, observations, until the agent is done or a budget ends it.

use std::collections::VecDeque;
use std::time::Duration;

use longhaul_core::agent::{Answer, AuditPlan};
use longhaul_core::digest::Digest;
use longhaul_core::money::Money;
use longhaul_core::outcome::{EndedBy, Fault, FaultClass};
use longhaul_core::plan::EpisodePlan;
use longhaul_core::step::ActionOutcome;
use longhaul_core::time::Millis;
use longhaul_proto::v1::AttemptPhase;

use super::agent::{Access, Agent, Sight, pictures};
use super::record::{Recorder, Said};
use super::replay::{Followed, Follower};
use super::snapshot::Saver;
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
use crate::screen::{Frame, RestRule, Stepped};
use crate::shutdown::Urgency;

/// How often it is looked whether the time is over: what calls wait for moves its end.
const LOOK: Duration = Duration::from_secs(1);

/// The agent's part of one attempt.
pub(crate) struct Acting<'a> {
    pub(crate) attempt: &'a Attempt,
    pub(crate) known: &'a Known,
    pub(crate) display: &'a dyn Display,
    pub(crate) episode: &'a EpisodePlan,
    pub(crate) access: Option<&'a Access>,
    /// Takes snapshots, if any are asked for.
    pub(super) saver: Option<Saver<'a>>,
}

/// The agent's part as far as it has come.
pub(crate) struct Course<'a> {
    tally: Tally<'a>,
    recent: Recent,
    frame: Frame,
    outcomes: Vec<ActionOutcome>,
    told: Option<String>,
    stretch: Stretch,
    /// What earlier attempts did, as long as that is followed.
    past: Option<Follower<'a>>,
}

/// A part of the course with a goal of its own: a round, or all of it.
#[derive(Debug, Default)]
pub(crate) struct Stretch {
    /// What the agent is asked to do, for an auditor.
    pub(crate) task: String,
    /// The number of the round, if the task has rounds.
    pub(crate) round: Option<u32>,
    /// What the agent is asked for now and was not told yet.
    pub(crate) goal: Option<String>,
    /// The most steps in it.
    pub(crate) steps: Option<u32>,
    /// After so much time in it no turn begins.
    pub(crate) time: Option<Millis>,
    /// The most dollars of the calls that are begun in it.
    pub(crate) dollars: Option<Money>,
    /// Whether the agent gave any answer that could be used.
    pub(crate) answered: bool,
    /// The number of its last step in it.
    pub(crate) last_step: Option<u32>,
    /// How often its word that it is done was audited in it.
    pub(crate) audits: u32,
}

/// How a stretch of acting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// By the agent's word, or by what bounds this stretch: another may begin.
    Here(EndedBy),
    /// With the episode.
    Whole(EndedBy),
}

impl Over {
    pub(crate) const fn ended_by(self) -> EndedBy {
        match self {
            Self::Here(ended_by) | Self::Whole(ended_by) => ended_by,
        }
    }
}

impl Stretch {
    /// What of its own bounds is reached.
    fn exhausted(&self, steps: u32, time: Millis) -> Option<EndedBy> {
        if self.steps.is_some_and(|most| steps >= most) {
            return Some(EndedBy::Steps);
        }
        self.time.filter(|most| time.0 >= most.0).map(|_| EndedBy::Time)
    }
}

impl Course<'_> {
    pub(crate) const fn stretch(&self) -> &Stretch {
        &self.stretch
    }

    /// Goes on with another stretch, from a new observation.
    pub(crate) fn go_on(&mut self, stretch: Stretch, frame: Frame) {
        self.tally.stalls.begin_again(frame.screenshot.png);
        self.recent = Recent::new(self.recent.most, &frame);
        self.frame = frame;
        self.told = None;
        self.stretch = stretch;
    }

    /// The agent's time so far, that of earlier attempts included.
    fn acted(&self) -> Millis {
        self.past.as_ref().map_or_else(|| self.tally.clock.acted(), Follower::acted)
    }

    /// Begins to live where the record of earlier attempts ends.
    pub(crate) async fn live(&mut self) -> Result<(), Ending> {
        if let Some(past) = self.past.take_if(|past| !past.is_behind()) {
            past.arrive().await?;
            let clock = &mut self.tally.clock;
            *clock = Clock::start(clock.caller, past.acted());
        }
        Ok(())
    }

    /// The agent's part is over: so is the record of earlier attempts.
    pub(crate) async fn finish(&mut self, ended_by: EndedBy) -> Result<(), Ending> {
        self.live().await?;
        self.past.as_ref().map_or(Ok(()), |past| Err(past.ended_early(ended_by).into()))
    }

    /// The first observation of a further round and what the agent was told there, as long as that is
    /// recorded.
    pub(crate) async fn reopened(
        &mut self,
        round: u32,
        rest: RestRule,
        recorder: &mut Recorder,
    ) -> Result<Option<(Frame, Option<String>)>, Ending> {
        match &mut self.past {
            Some(past) => past.open(round, rest, recorder).await.map(Some),
            None => Ok(None),
        }
    }

    /// That a round's reading is as it was, as long as that is recorded.
    pub(crate) fn has_read(&self, round: u32, found: Option<Digest>) -> Result<(), Ending> {
        self.past.as_ref().map_or(Ok(()), |past| past.same_reading(round, found).map_err(Ending::from))
    }

    /// What ended the agent's part in this stretch, if the record says that it was over after so much
    /// of it. The time that is recorded falls a little short of what was measured in life.
    fn was_over(&self, agent: &Agent, steps: u32, time: Millis) -> Option<EndedBy> {
        let over = self.past.as_ref().is_some_and(Follower::opens);
        let ended_by = self.stretch.exhausted(steps, time);
        // Where dollars are bounded, the call that was refused is in no record.
        let unrecorded = if self.stretch.dollars.is_some() { EndedBy::Budget } else { EndedBy::Time };
        // A script at its end has said so without a step, and does it again.
        over.then(|| ended_by.or_else(|| (!agent.is_at_its_end()).then_some(unrecorded))).flatten()
    }

    /// Leaves a time out of what the agent is said to have acted.
    pub(crate) fn leave_out(&mut self, time: Duration) {
        self.tally.clock.parked += time;
    }
}

/// The time of an episode: parked time, that of hooks, and what its calls wait for, are not.
struct Clock<'a> {
    start: Moment,
    parked: Duration,
    caller: Option<&'a dyn Caller>,
    paused_before: Duration,
    /// What earlier attempts acted.
    before: Millis,
}

impl<'a> Clock<'a> {
    fn start(caller: Option<&'a dyn Caller>, before: Millis) -> Self {
        let paused_before = caller.map(Caller::paused).unwrap_or_default();
        Self { start: moment::now(), parked: Duration::ZERO, caller, paused_before, before }
    }

    fn acted(&self) -> Millis {
        let paused = self.caller.map(Caller::paused).unwrap_or_default().saturating_sub(self.paused_before);
        let own = moment::now().saturating_sub(self.start).saturating_sub(self.parked).saturating_sub(paused);
        Millis(self.before.0.saturating_add(millis(own).0))
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
    fn new(most: usize, first: &Frame) -> Self {
        Self { frames: VecDeque::from([first.clone()]), most: most.max(1) }
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

impl<'a> Acting<'a> {
    /// Before the first turn, at the first observation.
    pub(crate) fn begin(&self, first: Frame, stretch: Stretch, past: Option<Follower<'a>>) -> Course<'a> {
        let images = self.episode.audit.as_ref().map_or(1, |audit| audit.images);
        Course {
            tally: Tally {
                known: self.known,
                clock: Clock::start(self.caller(), Millis(0)),
                stalls: Stalls::new(self.episode.stall, first.screenshot.png),
                audits: 0,
            },
            recent: Recent::new(usize::try_from(images).unwrap_or(usize::MAX), &first),
            frame: first,
            outcomes: Vec::new(),
            told: None,
            stretch,
            past,
        }
    }

    fn caller(&self) -> Option<&'a dyn Caller> {
        self.access.map(|access| access.caller.as_ref())
    }

    /// Goes on until the agent is done, or something is used up.
    pub(crate) async fn run(
        &self,
        agent: &mut Agent,
        course: &mut Course<'_>,
        recorder: &mut Recorder,
    ) -> Result<Over, Ending> {
        let caller = self.caller();
        let budget = &self.episode.budget;
        let (steps_before, time_before) = (recorder.answers(), course.acted());
        if let Some(caller) = caller {
            // What was called before the observation that opens it is not of this round.
            caller.set_step(recorder.seen());
            caller.begin_round(course.stretch.dollars);
        }
        loop {
            course.live().await?;
            if let Some(ended_by) = self.attempt.verifies.filter(|_| course.past.is_none()) {
                return Ok(Over::Whole(ended_by));
            }
            let acted = course.acted();
            let tokens = caller.map(Caller::tokens).unwrap_or_default();
            let steps = recorder.answers();
            let own = (steps.saturating_sub(steps_before), Millis(acted.0.saturating_sub(time_before.0)));
            if course.past.is_some() {
                // How far a round went is in the record.
                if let Some(ended_by) = course.was_over(agent, own.0, own.1) {
                    return Ok(Over::Here(ended_by));
                }
            } else if let Some(ended_by) = budget.exhausted(steps, acted, tokens) {
                return Ok(Over::Whole(ended_by));
            } else if let Some(ended_by) = course.stretch.exhausted(own.0, own.1) {
                return Ok(Over::Here(ended_by));
            }
            // Nothing is asked of the agent without a lease that holds now.
            let before = moment::now();
            wait_for_lease(self.attempt).await?;
            course.leave_out(moment::now().saturating_sub(before));
            if let Some(caller) = caller {
                caller.set_step(recorder.next());
            }
            let (asked, paused) = (moment::now(), caller.map(Caller::paused).unwrap_or_default());
            let acknowledged = agent.acknowledged();
            let Course { tally, frame, outcomes, told, stretch, past, .. } = &*course;
            let left = Left {
                steps: least(budget.max_steps.saturating_sub(steps), stretch.steps, own.0),
                seconds: {
                    let of_round = stretch.time.map(|time| time.0);
                    least(budget.max_time.0.saturating_sub(acted.0), of_round, own.1.0) / 1000
                },
            };
            let sight = Sight {
                step: recorder.seen(),
                frame,
                outcomes,
                told: told.as_deref(),
                left,
                round: stretch.round,
                goal: stretch.goal.as_deref(),
            };
            let answered = tokio::select! {
                biased;
                answered = agent.turn(sight) => answered,
                () = tally.clock.until(budget.max_time), if past.is_none() => return Ok(Over::Whole(EndedBy::Time)),
            };
            let turn = match answered {
                Ok(Some(turn)) => turn,
                Ok(None) => {
                    course.stretch.answered = true;
                    return Ok(Over::Here(EndedBy::Agent));
                }
                Err(AgentEnd::By(ended_by)) => return Ok(Over::Whole(ended_by)),
                Err(AgentEnd::Round(ended_by)) => return Ok(Over::Here(ended_by)),
                Err(AgentEnd::Fault(fault)) => {
                    if let Some(past) = past {
                        return Err(past.agent_failed(fault).into());
                    }
                    return self.refused(caller, &fault).map(Over::Whole).ok_or_else(|| fault.into());
                }
            };
            let agent_time = moment::since(asked);
            let paused = caller.map(Caller::paused).unwrap_or_default().saturating_sub(paused);
            let Turn { answer, unreadable, given_up } = turn;
            course.stretch.answered |= !answer.actions.is_empty() || (answer.done && !given_up);
            course.stretch.goal = None;
            course.stretch.last_step = Some(recorder.next());
            let stepped = match &mut course.past {
                Some(past) => {
                    let Followed { outcomes, frame } = past.step(&answer, recorder).await?;
                    (course.frame, course.outcomes) = (frame, outcomes);
                    None
                }
                None => {
                    let stepped = self.step(&answer).await?;
                    course.frame = stepped.frame.clone();
                    course.outcomes.clone_from(&stepped.performed.outcomes);
                    Some(stepped)
                }
            };
            let done = answer.done;
            let measure = course.tally.stalls.step(&answer.actions, course.frame.screenshot.png);
            course.recent.add(&course.frame);
            let said = Said {
                calls: caller.map(Caller::take_numbers).unwrap_or_default(),
                told: joined(acknowledged, course.told.take()),
                unreadable,
                paused: millis(paused),
                round: course.stretch.round,
            };
            if let Some(stepped) = stepped {
                recorder.step(Some(answer), stepped, agent_time, said).await?;
                self.lived(course, recorder, done).await?;
            }
            // A program goes on beyond a call that it was refused, if it can: its turn is the last one.
            if caller.is_some_and(Caller::round_spent) {
                return Ok(Over::Here(EndedBy::Budget));
            }
            if done {
                match self.audit(course, recorder, own.0 + 1).await? {
                    Audited::Done => return Ok(Over::Here(EndedBy::Agent)),
                    Audited::GoOn(missing) => course.told = Some(missing),
                    Audited::Over(over) => return Ok(over),
                }
            }
            match measure {
                Measure::None => {}
                Measure::Tell(words) => course.told = joined(course.told.take(), Some(words)),
                Measure::Stop => return Ok(Over::Here(EndedBy::Stall)),
            }
        }
    }

    /// Carries out an answer.
    async fn step(&self, answer: &Answer) -> Result<Stepped, Ending> {
        let stepped = self.display.step(answer.actions.clone(), RestRule::STEP).await.map_err(|error| error.fault())?;
        if self.attempt.shared.shutdown.urgency() > Urgency::None {
            // The same signal may have hit the sandbox: what is seen now is not to be trusted.
            let message = "the worker had to stop; the last observation was discarded".to_owned();
            return Err(Ending::Fault(fault(FaultClass::Preempted, message)));
        }
        Ok(stepped)
    }

    /// A step was recorded: takes a snapshot of what it has come to, if one is due.
    async fn lived(&self, course: &mut Course<'_>, recorder: &Recorder, done: bool) -> Result<(), Ending> {
        self.attempt.tell(AttemptPhase::Acting);
        let Some(saver) = self.saver.as_ref().filter(|_| !done) else { return Ok(()) };
        let before = moment::now();
        let spent = self.caller().map(Caller::cost).unwrap_or_default();
        saver.after(recorder.seen(), spent, recorder).await?;
        course.leave_out(moment::now().saturating_sub(before));
        Ok(())
    }

    /// Which budget is spent, where the agent crashed: programs that are refused a call often do
    /// nothing else, and that is no fault of theirs.
    fn refused(&self, caller: Option<&dyn Caller>, fault: &Fault) -> Option<EndedBy> {
        let caller = caller.filter(|_| fault.class == FaultClass::AgentCrashed)?;
        if caller.spent().is_some() || caller.round_spent() {
            return Some(EndedBy::Budget);
        }
        let used = caller.tokens();
        self.episode.budget.max_tokens.filter(|most| used >= *most).map(|_| EndedBy::Tokens)
    }

    /// Whether the agent's word that it is done stands, after so many steps of the stretch.
    async fn audit(&self, course: &mut Course<'_>, recorder: &Recorder, steps: u32) -> Result<Audited, Ending> {
        let (Some(plan), Some(access)) = (&self.episode.audit, self.access) else { return Ok(Audited::Done) };
        // Nothing could be done about what an audit finds.
        let is_last = recorder.answers() >= self.episode.budget.max_steps
            || course.stretch.steps.is_some_and(|most| steps >= most);
        // Nor is anybody asked where the agent's part is over and only verified again.
        let over = self.attempt.verifies.is_some() && course.past.as_ref().is_none_or(|past| !past.is_behind());
        if course.stretch.audits >= plan.most || is_last || over {
            return Ok(Audited::Done);
        }
        // An audit that is not recorded is asked for in life, and not before that is known.
        course.live().await?;
        course.stretch.audits += 1;
        course.tally.audits += 1;
        access.caller.set_step(recorder.next());
        match self.ask_auditor(plan, access, course).await {
            Ok(Finding::Complete) => Ok(Audited::Done),
            Ok(Finding::Missing(missing)) => Ok(Audited::GoOn(audit::told(&missing))),
            Ok(Finding::Unreadable(text)) => {
                self.known.note(|notes| {
                    notes.warnings.push(format!("an auditor's answer could not be read: {text}"));
                });
                Ok(Audited::Done)
            }
            Err(AgentEnd::By(ended_by)) => Ok(Audited::Over(Over::Whole(ended_by))),
            Err(AgentEnd::Round(ended_by)) => Ok(Audited::Over(Over::Here(ended_by))),
            Err(AgentEnd::Fault(fault)) => Err(fault.into()),
        }
    }

    async fn ask_auditor(&self, plan: &AuditPlan, access: &Access, course: &Course<'_>) -> Result<Finding, AgentEnd> {
        let Some(endpoint) = access.plan.endpoint(&plan.endpoint) else {
            let message = format!("the episode's plan has no endpoint `{}` for audits", plan.endpoint.escape_debug());
            return Err(AgentEnd::Fault(fault(FaultClass::AgentCrashed, message)));
        };
        let mut images: Vec<Picture> = Vec::with_capacity(course.recent.frames.len());
        for frame in &course.recent.frames {
            images.push(pictures(frame, Wish::default()).await?.whole);
        }
        let call = audit::call(plan, endpoint.protocol, &course.stretch.task, &images);
        let answer = access.caller.call(call).await.map_err(|error| end_of(&error))?;
        Ok(audit::read(endpoint.protocol, &answer.body))
    }
}

/// What an audit comes to.
enum Audited {
    Done,
    GoOn(String),
    Over(Over),
}

/// What is left of the episode, or of the stretch where that is less.
fn least<N: Copy + Ord + std::ops::Sub<Output = N>>(of_all: N, of_stretch: Option<N>, used: N) -> N {
    of_stretch.map_or(of_all, |most| of_all.min(most - used.min(most)))
}

fn joined(one: Option<String>, other: Option<String>) -> Option<String> {
    match (one, other) {
        (Some(one), Some(other)) => Some(format!("{one}\n{other}")),
        (one, other) => one.or(other),
    }
}

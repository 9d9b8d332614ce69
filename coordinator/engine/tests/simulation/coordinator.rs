//! The simulated coordinator: the real engine, a journal of JSON lines, and a shell that
//! keeps the order "append, then act".

use longhaul_core::call::PurseKind;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{RunId, WorkerId};
use longhaul_core::outcome::SettlementKind as Kind;
use longhaul_core::purse::PurseState;
use longhaul_engine::state::{Revived, RunTerms, State};
use longhaul_engine::{Command, Effect, Engine, Event, LeaseRef, Rejection, Settings};

use crate::plans;
use crate::slurm;
use crate::worker::{Down, Up};
use crate::world::{Outcome, World, settings};

/// A coordinator's process.
pub(crate) struct Coordinator {
    pub(crate) engine: Engine,
    /// Where it dies during its next command, if it does: before its append, or after it.
    pub(crate) dies: Option<bool>,
}

impl Coordinator {
    pub(crate) fn new(settings: Settings) -> Self {
        Self { engine: Engine::new(settings), dies: None }
    }
}

/// An engine from what is on the disk.
pub(crate) fn replayed(snapshot: Option<&(usize, String)>, journal: &[String]) -> Result<Engine, String> {
    let (mut engine, from) = match snapshot {
        None => (Engine::new(settings()), 0),
        Some((from, text)) => {
            let snapshot = serde_json::from_str(text).map_err(|error| format!("a snapshot reads back: {error}"))?;
            (Engine::from_snapshot(settings(), snapshot).map_err(|error| error.to_string())?, *from)
        }
    };
    for line in &journal[from..] {
        let event: Event = serde_json::from_str(line).map_err(|error| format!("an event reads back: {error}"))?;
        engine.apply(&event);
    }
    Ok(engine)
}

impl World {
    pub(crate) fn engine(&self) -> &Engine {
        &self.coordinator.as_ref().expect("the coordinator runs").engine
    }

    pub(crate) fn state(&self) -> &State {
        self.engine().state()
    }

    /// Gives the engine a command as the shell does, with every check there is. Nothing
    /// happens while the coordinator is down.
    pub(crate) fn command(&mut self, command: Command) -> Result<Result<(), Rejection>, String> {
        let now = self.clock();
        let Some(coordinator) = self.coordinator.as_mut() else { return Ok(Ok(())) };
        let engine = &mut coordinator.engine;
        let before = engine.state().clone();
        engine.advance(now);
        let decided = engine.decide(now, command.clone());
        if decided != engine.decide(now, command.clone()) || *engine.state() != before {
            return Err("decide is pure: it changed something, or its mind".to_owned());
        }
        let events = match engine.step(now, command.clone()) {
            Ok(events) => events,
            Err(rejection) => {
                let unchanged = *engine.state() == before;
                return if unchanged { Ok(Err(rejection)) } else { Err(format!("{rejection}, but the state changed")) };
            }
        };
        engine.check_invariants().map_err(|violation| format!("{violation}, after {command:?}: {events:#?}"))?;
        let dies = coordinator.dies.take();
        if dies == Some(false) {
            // Neither memory nor disk has the batch, and nobody was told.
            self.down();
            return Ok(Ok(()));
        }
        self.audit.observe(&events, engine)?;
        self.provider.observe(&events);
        for event in &events {
            self.journal.push(serde_json::to_string(event).map_err(|error| error.to_string())?);
        }
        if dies == Some(true) {
            self.down();
            return Ok(Ok(()));
        }
        let engine = self.engine();
        let effects = engine.effects(&events);
        if effects != engine.effects(&events) {
            return Err("effects are idempotent: asked twice, they differ".to_owned());
        }
        self.late_effects_are_harmless()?;
        effects.into_iter().for_each(|effect| self.carry_out(effect));
        Ok(Ok(()))
    }

    /// Effects of old events, asked for late, give nobody what it does not hold.
    fn late_effects_are_harmless(&self) -> Outcome {
        let recent = self.journal.iter().rev().take(12).rev();
        let events: Vec<Event> = recent.filter_map(|line| serde_json::from_str(line).ok()).collect();
        for effect in self.engine().effects(&events) {
            if let Effect::SendLease { worker, lease, .. } = effect
                && self.engine().holder(lease) != Some(worker)
            {
                return Err(format!("effects are idempotent: {lease} is sent to {worker}, which does not hold it"));
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Welcome { worker, session, stale } => self.send_down(worker, Down::Welcome { session, stale }),
            Effect::SendLease { worker, lease, .. } => {
                let env = self.state().env_of(lease.attempt.episode).map(|env| env.name.clone()).unwrap_or_default();
                self.send_down(worker, Down::Lease { lease, env });
            }
            Effect::SendRevoke { worker, lease, reason } => self.send_down(worker, Down::Revoke { lease, reason }),
            Effect::SendDrain { worker, .. } => self.send_down(worker, Down::Drain),
            Effect::SendLayerAnswer { worker, key, answer } => self.send_down(worker, Down::Layer { key, answer }),
            Effect::AnswerEscrow { worker, lease, purse: kind, granted, rest } => {
                self.send_down(worker, Down::Escrow { lease, kind, granted, rest });
            }
            Effect::RecallEscrow { worker, lease, purse: kind } => self.send_down(worker, Down::Recall { lease, kind }),
            Effect::CloseSession { worker } => self.break_session(worker),
            effect @ (Effect::SubmitAllocations { .. }
            | Effect::FindAllocations { .. }
            | Effect::CancelAllocations { .. }) => self.carry_out_at_slurm(effect),
            Effect::Publish(_) => {}
        }
    }

    /// The shell's side of a message from a worker.
    pub(crate) fn receive(&mut self, worker: WorkerId, message: Up) -> Outcome {
        match message {
            Up::Hello { session, profile, readiness, live } => {
                if self.workers.get(&worker).and_then(|worker| worker.session) != Some(session) {
                    return Ok(());
                }
                self.sessions.insert(worker, session);
                let hello = Command::WorkerConnected { worker, session, profile, readiness, live };
                if self.command(hello)?.is_err() {
                    return Err("a worker that did not change is welcome".to_owned());
                }
            }
            Up::Heartbeat { sequence, live } => {
                let now = self.clock();
                let Some(coordinator) = self.coordinator.as_mut() else { return Ok(()) };
                let before = coordinator.engine.state().clone();
                let reply = coordinator.engine.observe_heartbeat(now, worker, &live);
                if *coordinator.engine.state() != before {
                    return Err("heartbeats are not stored: one changed the durable state".to_owned());
                }
                coordinator.engine.check_invariants().map_err(|violation| violation.to_string())?;
                if !reply.known {
                    self.break_session(worker);
                    return Ok(());
                }
                self.send_down(worker, Down::HeartbeatAck { sequence, renewed: reply.renewed });
                for lease in reply.stale {
                    let reason = longhaul_engine::RevokeReason::Stale;
                    self.send_down(worker, Down::Revoke { lease, reason });
                }
            }
            Up::Ended { lease, end, steps, purses } => self.ended(worker, lease, end, steps, purses)?,
            Up::Escrow { lease, kind: purse, state, wanted, bound } => {
                self.command(Command::EscrowRequested { lease, purse, state, wanted, bound }).map(drop)?;
            }
            Up::EscrowReport { lease, kind: purse, state } => {
                self.command(Command::EscrowReported { lease, purse, state }).map(drop)?;
            }
            Up::Closed { lease, purses } => {
                self.command(Command::PursesClosed { lease, purses }).map(drop)?;
            }
            Up::Claim { key, kind, env } => {
                if self.command(Command::ClaimLayer { worker, key, kind, env })?.is_err() {
                    self.break_session(worker);
                }
            }
            Up::Report { key, kind, env, outcome } => {
                self.command(Command::ReportLayer { worker, key, kind, env, outcome }).map(drop)?;
            }
            Up::Leaving => {
                self.command(Command::WorkerLeaving { worker, reason: "asked to".to_owned() }).map(drop)?;
            }
        }
        Ok(())
    }

    fn ended(
        &mut self,
        worker: WorkerId,
        lease: LeaseRef,
        end: longhaul_core::outcome::AttemptEnd,
        steps: u32,
        purses: Vec<(PurseKind, PurseState)>,
    ) -> Outcome {
        let Some(coordinator) = &self.coordinator else { return Ok(()) };
        let current = coordinator.engine.holder(lease).is_some();
        let before = coordinator.engine.state().episode(lease.attempt.episode).cloned();
        let answer = self.command(Command::AttemptEnded { lease, end, steps, purses: purses.clone() })?;
        if answer.is_err() {
            self.command(Command::PursesClosed { lease, purses }).map(drop)?;
        }
        if let Some(coordinator) = &self.coordinator {
            if current && answer.is_err() {
                return Err(format!("a current report is accepted: {lease}: {answer:?}"));
            }
            let after = coordinator.engine.state().episode(lease.attempt.episode).cloned();
            // Placement may start a queued episode in the same step; its past is what a report writes.
            let past = |episode: &Option<longhaul_engine::state::Episode>| {
                episode.as_ref().map(|episode| episode.past.clone())
            };
            if !current && past(&before) != past(&after) {
                return Err(format!("a stale epoch changes nothing: {lease} changed {before:?} to {after:?}"));
            }
            self.send_down(worker, Down::EndAck { lease });
        }
        Ok(())
    }

    /// The coordinator wakes if it is time.
    pub(crate) fn wake(&mut self) -> Outcome {
        let now = self.clock();
        match &self.coordinator {
            Some(coordinator) if coordinator.engine.next_deadline().is_some_and(|deadline| deadline <= now) => {
                self.command(Command::Tick).map(drop)
            }
            // The shell sleeps for a bounded time whatever the deadline, since its clock may be set.
            Some(coordinator) if coordinator.engine.next_deadline().is_some_and(|at| at.since(now).0 > 20_000) => {
                self.command(Command::Tick).map(drop)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The coordinator dies, now or during its next command.
    pub(crate) fn crash(&mut self, half_done: Option<bool>) -> Outcome {
        self.replay_equals_live()?;
        match (&mut self.coordinator, half_done) {
            (Some(coordinator), Some(after_append)) => coordinator.dies = Some(after_append),
            _ => self.down(),
        }
        Ok(())
    }

    fn down(&mut self) {
        self.coordinator = None;
        self.slurm.client_died(self.time);
        self.sessions.clear();
        self.goodbyes.clear();
        for worker in self.workers.values_mut() {
            worker.hang_up();
        }
    }

    /// The coordinator starts from what is on its disk.
    pub(crate) fn recover(&mut self) -> Outcome {
        if self.coordinator.is_some() {
            return Ok(());
        }
        let engine = replayed(self.snapshot.as_ref(), &self.journal)?;
        engine.check_invariants().map_err(|violation| format!("{violation}, after a replay"))?;
        let owed = engine.resume();
        if owed != engine.resume() {
            return Err("effects are idempotent: what is owed after a replay differs".to_owned());
        }
        self.coordinator = Some(Coordinator { engine, dies: None });
        owed.into_iter().for_each(|effect| self.carry_out(effect));
        self.command(Command::CoordinatorRestarted).map(drop)?;
        self.set_pool()
    }

    /// What a coordinator does at every start.
    pub(crate) fn set_pool(&mut self) -> Outcome {
        if self.has_pool {
            self.command(Command::SetPool { pool: slurm::pool(self.healed) })?.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Replaying the whole journal, or a snapshot and its tail, gives the live state.
    pub(crate) fn replay_equals_live(&self) -> Outcome {
        let Some(coordinator) = &self.coordinator else { return Ok(()) };
        let live = coordinator.engine.state();
        if replayed(None, &self.journal)?.state() != live {
            return Err("replay equals live: the whole journal gives another state".to_owned());
        }
        if replayed(self.snapshot.as_ref(), &self.journal)?.state() != live {
            return Err("snapshot and tail equal a full replay: they give another state".to_owned());
        }
        Ok(())
    }

    pub(crate) fn take_snapshot(&mut self) -> Outcome {
        let Some(coordinator) = &self.coordinator else { return Ok(()) };
        let text = serde_json::to_string(&coordinator.engine.snapshot()).map_err(|error| error.to_string())?;
        self.snapshot = Some((self.journal.len(), text));
        self.replay_equals_live()
    }

    pub(crate) fn submit(&mut self, shape: u8) -> Outcome {
        if self.submitted >= 12 || self.coordinator.is_none() {
            return Ok(());
        }
        let run = plans::run_id(self.submitted);
        self.submitted += 1;
        let plan = if self.thirst > 0 { plans::thirsty() } else { plans::shaped(shape) };
        let digest = Digest::of(format!("{plan:?}").as_bytes());
        let command = Command::SubmitRun { run, plan, digest, terms: RunTerms::default() };
        self.command(command.clone())?.map_err(|rejection| rejection.to_string())?;
        if self.coordinator.as_ref().is_none_or(|coordinator| coordinator.engine.run(run).is_none()) {
            return Ok(());
        }
        self.runs.push(run);
        let before = self.state().runs.len();
        self.command(command)?.map_err(|rejection| format!("a repeated submit is accepted: {rejection}"))?;
        if self.coordinator.is_some() && self.state().runs.len() != before {
            return Err("a repeated submit is the same run: there is another one".to_owned());
        }
        Ok(())
    }

    pub(crate) fn cancel(&mut self, which: u8) -> Outcome {
        if let Some(run) = self.pick_run(which) {
            let by = "a person".to_owned();
            self.command(Command::CancelRun { run, by })?.map_err(|rejection| rejection.to_string())?;
        }
        Ok(())
    }

    /// A settled run is forgotten; the store has it all the same.
    pub(crate) fn forget(&mut self, run: RunId) -> Outcome {
        let Some(coordinator) = &self.coordinator else { return Ok(()) };
        if let Some(known) = coordinator.engine.state().runs.get(&run) {
            let (plan, submitted_at, episodes) = (known.plan.clone(), known.submitted_at, known.episodes.clone());
            self.stored.insert(run, Revived { plan, submitted_at, episodes });
        }
        self.command(Command::ForgetRun { run }).map(drop)
    }

    /// A run is to go on, and what was settled in some ways is done again.
    pub(crate) fn resume(&mut self, which: u8, kinds: u8) -> Outcome {
        let Some(run) = self.pick_run(which) else { return Ok(()) };
        let all = [Kind::Cancelled, Kind::Faulted, Kind::Unverified, Kind::NotStarted, Kind::Passed, Kind::Failed];
        let kinds: Vec<Kind> = (0..).zip(all).filter(|(bit, _)| kinds >> bit & 1 == 1).map(|(_, kind)| kind).collect();
        let revived = self.stored.get(&run).cloned().map(Box::new);
        let command = Command::ResumeRun { run, by: "a person".to_owned(), kinds, revived };
        self.command(command)?.map_err(|rejection| format!("a run goes on: {rejection}"))
    }
}

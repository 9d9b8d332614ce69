//! Money in the simulated world: real purses on workers, spools that outlive them, and a
//! provider that counts what it bills.

use std::collections::BTreeMap;

use longhaul_core::call::{Certainty, PurseKind};
use longhaul_core::ids::{EpisodeId, RunId, WorkerId};
use longhaul_core::money::Money;
use longhaul_core::purse::{Purse, PurseState};
use longhaul_engine::{Command, EscrowRest, Event, LeaseRef, ScopeName, ScopeView};

use crate::plans;
use crate::worker::{Down, SimWorker, Up};
use crate::world::{Outcome, World};

/// The purses of a worker's attempts, as they are on its disk.
pub(crate) type Spool = BTreeMap<(LeaseRef, PurseKind), Wallet>;

/// A call: the most that it can cost, and what it will.
#[derive(Clone, Copy, Debug)]
struct Call {
    bound: Money,
    cost: Money,
}

/// A purse on its worker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wallet {
    purse: Purse,
    flights: BTreeMap<u32, Call>,
    calls: u32,
    /// What waits for money, and how the purse stood when it asked.
    open: Option<Call>,
    asked: PurseState,
    refused: bool,
    recalled: bool,
    closed: bool,
    /// Whether its end was told on this session.
    told: bool,
}

impl Wallet {
    /// Nothing is called any more: what is in flight counts whole, what is free is given back.
    fn close(&mut self) -> PurseState {
        if !self.closed {
            self.closed = true;
            self.open = None;
            self.flights.clear();
            self.purse.settle_all();
            self.purse.give_back(Money::ZERO);
        }
        self.purse.state()
    }

    /// Gives back what is free, if that was asked for and nothing waits for more.
    fn obey(&mut self) {
        if self.recalled {
            self.purse.give_back(Money::ZERO);
        }
    }
}

/// Who bills the calls, and knows every cap that a person was ever told of.
#[derive(Debug, Default)]
pub(crate) struct Provider {
    caps: BTreeMap<(RunId, ScopeName), Money>,
    billed: BTreeMap<(RunId, ScopeName), Money>,
    /// By how much calls were billed beyond their bounds.
    beyond: BTreeMap<(RunId, ScopeName), Money>,
    /// The agent of each episode whose calls cost something.
    agents: BTreeMap<EpisodeId, String>,
    /// Whether no call costs more than its bound.
    pub(crate) honest: bool,
}

impl Provider {
    /// Takes in what became durable.
    pub(crate) fn observe(&mut self, events: &[Event]) {
        for event in events {
            match event {
                Event::RunSubmitted { run, plan, .. } => {
                    let mut cap = |scope, cap: Option<Money>| cap.map(|cap| self.caps.insert((*run, scope), cap));
                    cap(ScopeName::Run, plan.budgets.run);
                    cap(ScopeName::Judge, plan.budgets.judge);
                    for (index, agent) in (0..).zip(&plan.agents) {
                        cap(ScopeName::Agent(agent.name().to_owned()), plan.budgets.agent(index));
                    }
                    for (index, entry) in (0..).zip(&plan.episodes) {
                        let episode = EpisodeId { run: *run, index };
                        cap(ScopeName::Episode(episode), entry.max_cost);
                        let agent = &plan.agents[entry.agent as usize];
                        if !agent.endpoints().is_empty() {
                            self.agents.insert(episode, agent.name().to_owned());
                        }
                    }
                }
                Event::BudgetRaised { run, scope, cap, .. } => {
                    self.caps.insert((*run, scope.clone()), *cap);
                }
                _ => {}
            }
        }
    }

    fn scopes(&self, lease: LeaseRef, kind: PurseKind) -> Vec<(RunId, ScopeName)> {
        let episode = lease.attempt.episode;
        let agent = self.agents.get(&episode).cloned().unwrap_or_default();
        let scopes = match kind {
            PurseKind::Episode => vec![ScopeName::Run, ScopeName::Agent(agent), ScopeName::Episode(episode)],
            PurseKind::Judge => vec![ScopeName::Judge],
        };
        scopes.into_iter().map(|scope| (episode.run, scope)).collect()
    }

    /// Bills a call, whatever becomes of its answer.
    fn bill(&mut self, lease: LeaseRef, kind: PurseKind, call: Call) -> Outcome {
        for scope in self.scopes(lease, kind) {
            let billed = self.billed.entry(scope.clone()).or_default();
            *billed = billed.saturating_add(call.cost);
            let beyond = self.beyond.entry(scope.clone()).or_default();
            *beyond = beyond.saturating_add(call.cost.saturating_sub(call.bound));
            if let Some(cap) = self.caps.get(&scope)
                && *billed > cap.saturating_add(*beyond)
            {
                return Err(format!("the provider's own count stays within the cap: {billed} of {cap} in {scope:?}"));
            }
        }
        Ok(())
    }
}

/// Makes a call if the purse has the bound of it, or asks for it.
fn fly(
    wallet: &mut Wallet,
    (lease, kind): (LeaseRef, PurseKind),
    call: Call,
    provider: &mut Provider,
) -> Result<Option<Up>, String> {
    let number = wallet.calls;
    match wallet.purse.reserve(number, call.bound) {
        Ok(()) => {
            wallet.calls += 1;
            wallet.open = None;
            wallet.recalled = false;
            wallet.flights.insert(number, call);
            provider.bill(lease, kind, call)?;
            Ok(None)
        }
        Err(_) => {
            wallet.open = Some(call);
            wallet.asked = wallet.purse.state();
            Ok(request(wallet, lease, kind))
        }
    }
}

/// The open request of a purse, as it is now.
fn request(wallet: &Wallet, lease: LeaseRef, kind: PurseKind) -> Option<Up> {
    let call = wallet.open?;
    let state = wallet.purse.state();
    let short = wallet.purse.clone().reserve(u32::MAX, call.bound).err()?;
    let bound = state.settled.saturating_add(call.bound);
    Some(Up::Escrow { lease, kind, state, wanted: short.wanted, bound })
}

impl SimWorker {
    /// Closes the purses of an attempt, and says what they came to.
    pub(crate) fn close_purses(&mut self, lease: LeaseRef) -> Vec<(PurseKind, PurseState)> {
        let own = self.wallets.iter_mut().filter(|((of, _), _)| *of == lease);
        own.map(|((_, kind), wallet)| (*kind, wallet.close())).collect()
    }

    /// What has to be said of purses after a hello: open requests, and how they stand.
    pub(crate) fn repeat_money(&mut self) {
        let mut messages = Vec::new();
        for ((lease, kind), wallet) in &mut self.wallets {
            wallet.told = false;
            messages.extend(request(wallet, *lease, *kind));
            messages.push(Up::EscrowReport { lease: *lease, kind: *kind, state: wallet.purse.state() });
        }
        messages.into_iter().for_each(|message| self.say(message));
    }

    /// Closes the purses of attempts that are over here, and says so once on each session.
    pub(crate) fn tidy_wallets(&mut self, held: &[LeaseRef]) {
        let over = self.wallets.keys().map(|(lease, _)| *lease).filter(|lease| !held.contains(lease));
        let over: std::collections::BTreeSet<_> = over.collect();
        for lease in over {
            let purses = self.close_purses(lease);
            let own = || (lease, PurseKind::Episode)..=(lease, PurseKind::Judge);
            let news = self.wallets.range(own()).any(|(_, wallet)| !wallet.told);
            if news && self.session.is_some() {
                self.wallets.range_mut(own()).for_each(|(_, wallet)| wallet.told = true);
                self.say(Up::Closed { lease, purses });
            }
        }
    }

    /// Takes in an answer or a recall.
    pub(crate) fn hear_of_money(&mut self, time: u64, message: Down, provider: &mut Provider) -> Outcome {
        let acting: Vec<_> = self.acting(time).collect();
        match message {
            Down::Escrow { lease, kind, granted, rest } => {
                let Some(wallet) = self.wallets.get_mut(&(lease, kind)).filter(|wallet| !wallet.closed) else {
                    return Ok(());
                };
                let before = wallet.purse.state().granted;
                wallet.purse.grant(granted);
                let grew = granted > before || rest == EscrowRest::Enough;
                if matches!(rest, EscrowRest::Refused { .. }) {
                    wallet.open = None;
                    wallet.refused = true;
                    wallet.obey();
                } else if grew
                    && acting.contains(&lease)
                    && let Some(call) = wallet.open
                    && let Some(message) = fly(wallet, (lease, kind), call, provider)?
                {
                    self.say(message);
                }
            }
            Down::Recall { lease, kind } => {
                let Some(wallet) = self.wallets.get_mut(&(lease, kind)).filter(|wallet| !wallet.closed) else {
                    return Ok(());
                };
                wallet.recalled = true;
                wallet.obey();
                let state = wallet.purse.state();
                self.say(Up::EscrowReport { lease, kind, state });
            }
            _ => {}
        }
        Ok(())
    }
}

impl World {
    /// One of a worker's attempts makes a model call, or tries to.
    pub(crate) fn call(&mut self, id: WorkerId, job: u8, size: u8, share: u8) -> Outcome {
        let time = self.time;
        let Some(worker) = self.workers.get_mut(&id) else { return Ok(()) };
        let Some(lease) = worker.acting_job(time, job) else { return Ok(()) };
        if !self.provider.agents.contains_key(&lease.attempt.episode) {
            return Ok(());
        }
        let kind = if size % 7 == 6 { PurseKind::Judge } else { PurseKind::Episode };
        let wallet = worker.wallets.entry((lease, kind)).or_default();
        if wallet.closed || wallet.refused || wallet.flights.len() >= 2 {
            return Ok(());
        }
        if let Some(call) = wallet.open {
            // It asks again when its purse has moved: what it was granted was asked back first.
            if wallet.purse.state() != wallet.asked
                && let Some(message) = fly(wallet, (lease, kind), call, &mut self.provider)?
            {
                worker.say(message);
            }
            return Ok(());
        }
        let bound = plans::UNIT.saturating_mul(u64::from(size % 20) + 1);
        let excess = share >= 248 && !self.provider.honest;
        let parts = if excess { 325 } else { u64::from(share.min(250)) };
        let cost = bound.scaled_up(parts, 250).unwrap_or_default();
        if let Some(message) = fly(wallet, (lease, kind), Call { bound, cost }, &mut self.provider)? {
            worker.say(message);
        }
        Ok(())
    }

    /// A call of one of a worker's attempts comes back, or its time runs out.
    pub(crate) fn land(&mut self, id: WorkerId, which: u8, how: u8) -> Outcome {
        let time = self.time;
        let Some(worker) = self.workers.get_mut(&id).filter(|worker| !worker.suspended) else { return Ok(()) };
        let acting: Vec<_> = worker.acting(time).collect();
        let mut flying = worker.wallets.iter_mut().filter(|(_, wallet)| !wallet.flights.is_empty());
        let count = flying.by_ref().count();
        let Some(index) = usize::from(which).checked_rem(count) else { return Ok(()) };
        let mut flying = worker.wallets.iter_mut().filter(|(_, wallet)| !wallet.flights.is_empty());
        let Some((owner, wallet)) = flying.nth(index) else { return Ok(()) };
        let Some((number, call)) = wallet.flights.pop_first() else { return Ok(()) };
        match how % 8 {
            0 => wallet.purse.settle(number, call.bound, Certainty::Unconfirmed),
            _ => wallet.purse.settle(number, call.cost, Certainty::Reported),
        }
        let mut messages = Vec::new();
        if let Some(call) = wallet.open.filter(|_| acting.contains(&owner.0)) {
            messages.extend(fly(wallet, *owner, call, &mut self.provider)?);
        } else {
            wallet.obey();
        }
        if how % 4 != 1 || self.healed {
            let (lease, kind) = *owner;
            messages.push(Up::EscrowReport { lease, kind, state: wallet.purse.state() });
        }
        messages.into_iter().for_each(|message| worker.say(message));
        Ok(())
    }

    /// Whether an attempt of a worker would make more calls before it ends, or waits for money:
    /// nobody waits for ever.
    pub(crate) fn is_thirsty(&self, id: WorkerId, job: u8) -> bool {
        let Some(worker) = self.workers.get(&id) else { return false };
        let Some(lease) = worker.acting_job(self.time, job) else { return false };
        let wallet = |kind| worker.wallets.get(&(lease, kind));
        let own = wallet(PurseKind::Episode);
        let waits = [own, wallet(PurseKind::Judge)].into_iter().flatten().any(|wallet| wallet.open.is_some());
        let wants = own.is_none_or(|wallet| !wallet.refused && wallet.calls < self.thirst.max(2));
        self.provider.agents.contains_key(&lease.attempt.episode) && (waits || wants)
    }

    /// Whether an attempt goes on with calls rather than end; in a world that is about money it
    /// makes all that it would.
    fn goes_on(&self, id: WorkerId, job: u8, choice: u8) -> bool {
        let acting = self.workers.get(&id).and_then(|worker| worker.acting_job(self.time, job));
        let paid = acting.is_some_and(|lease| self.provider.agents.contains_key(&lease.attempt.episode));
        paid && (!choice.is_multiple_of(4) || (self.thirst > 0 && self.is_thirsty(id, job)))
    }

    /// One of a worker's attempts goes on: with a call, or by a stage.
    pub(crate) fn go_on(&mut self, id: WorkerId, job: u8, choice: u8) -> Outcome {
        if !self.goes_on(id, job, choice) {
            self.work(id, job, choice);
            return Ok(());
        }
        if choice.is_multiple_of(2) {
            self.land(id, job, choice / 2)?;
        }
        self.call(id, job, choice / 2, choice.wrapping_mul(7))
    }

    /// Who waits for money, on both sides.
    pub(crate) fn who_waits(&self) -> Vec<String> {
        let wallets = self.workers.values().flat_map(|worker| &worker.wallets);
        let waiting = wallets.filter(|(_, wallet)| wallet.open.is_some());
        let known = |(lease, kind): &(LeaseRef, PurseKind)| self.state().purse(lease.attempt, *kind);
        let views = self.runs.iter().flat_map(|run| self.engine().budget(*run)).filter(|view| view.waiting > 0);
        let views = views.map(|view| format!("{view:?}"));
        waiting
            .map(|(owner, wallet)| format!("{owner:?}: {wallet:?}; known: {:?}", known(owner)))
            .chain(views)
            .collect()
    }

    /// A spool that outlived its worker is found.
    pub(crate) fn find_spool(&mut self, which: u8) -> Outcome {
        if self.coordinator.is_none() {
            return Ok(());
        }
        let Some(index) = usize::from(which).checked_rem(self.spools.len()) else { return Ok(()) };
        let mut spool = self.spools.swap_remove(index);
        for ((lease, purse), wallet) in &mut spool {
            let state = wallet.close();
            let command = match which % 2 {
                0 => Command::PursesClosed { lease: *lease, purses: vec![(*purse, state)] },
                _ => Command::EscrowReported { lease: *lease, purse: *purse, state },
            };
            self.command(command).map(drop)?;
        }
        if self.coordinator.is_none() {
            // It died meanwhile: whoever found it tries again.
            self.spools.push(spool);
        }
        Ok(())
    }

    /// A person raises a cap.
    pub(crate) fn raise(&mut self, which: u8, amount: u8) -> Outcome {
        let Some(run) = self.pick_run(which) else { return Ok(()) };
        let scope = match amount % 3 {
            0 => ScopeName::Run,
            1 => ScopeName::Agent("model-0".to_owned()),
            _ => ScopeName::Judge,
        };
        let cap = plans::UNIT.saturating_mul(u64::from(amount) * if self.thirst > 0 { 9 } else { 2 });
        self.command(Command::RaiseBudget { run, scope, cap, by: "a person".to_owned() }).map(drop)
    }

    /// What must be true of money once everything is settled and healed: nothing is out any more,
    /// and nothing that was billed is missing.
    pub(crate) fn money_is_settled(&self) -> Outcome {
        for run in &self.runs {
            for view in self.engine().budget(*run) {
                let ScopeView { scope, settled, escrow, unconfirmed, overshoot, waiting, .. } = &view;
                let key = (*run, scope.clone());
                let billed = self.provider.billed.get(&key).copied().unwrap_or_default();
                let beyond = self.provider.beyond.get(&key).copied().unwrap_or_default();
                if !escrow.is_zero() || *waiting > 0 {
                    return Err(format!("at the end nothing is reserved: {view:?}"));
                }
                let missing = settled.saturating_add(beyond) < billed;
                let invented = settled.saturating_sub(*unconfirmed) > billed;
                if missing || invented || *overshoot > beyond {
                    return Err(format!("what is settled is what was billed: {billed} ({beyond} beyond) of {view:?}"));
                }
            }
        }
        Ok(())
    }
}

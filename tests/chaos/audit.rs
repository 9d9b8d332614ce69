//! What came of it: the store, read when nobody has it open any more, against what workers were told
//! and what the provider counted by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result};
use longhaul_core::call::{CallRecord, Certainty, Purpose};
use longhaul_core::ids::AttemptId;
use longhaul_core::money::Money;
use longhaul_engine::{Engine, Event, Settings, Snapshot};
use longhaul_store::{AttemptRecord, EpisodeRecord, EpisodeState, Reader, RunRecord};

use crate::provider::Billed;

/// How a worker says that it was told of a step that it is durable.
const ACKNOWLEDGED: &str = " a step is acknowledged ";

/// What a worker was told.
pub(crate) type Acknowledged = BTreeSet<(AttemptId, u32)>;

/// What a worker wrote down of acknowledgements.
pub(crate) fn acknowledged(log: &Path) -> Result<Acknowledged> {
    let text = std::fs::read(log).with_context(|| format!("cannot read {}", log.display()))?;
    let text = String::from_utf8_lossy(&text);
    let read = |line: &str| {
        let (_, fields) = line.split_once(ACKNOWLEDGED)?;
        let field = |name: &str| fields.split(' ').find_map(|field| field.strip_prefix(name));
        Some((field("attempt=")?.parse().ok()?, field("number=")?.parse().ok()?))
    };
    Ok(text.lines().filter_map(read).collect())
}

/// The figures of it, and what must not be.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    pub(crate) episodes: u64,
    pub(crate) states: BTreeMap<&'static str, u64>,
    pub(crate) attempts: u64,
    pub(crate) resumed: u64,
    pub(crate) steps: u64,
    pub(crate) late: u64,
    pub(crate) acknowledged: u64,
    pub(crate) lost: u64,
    pub(crate) duplicates: u64,
    pub(crate) calls: u64,
    /// By the ledger.
    pub(crate) spent: Money,
    /// Of that, what no answer confirms.
    pub(crate) unconfirmed: Money,
    /// Of that, what was granted to workers whose disks were lost.
    pub(crate) gone: Money,
    /// By the provider.
    pub(crate) billed: Money,
    pub(crate) wrong: Vec<String>,
}

/// What an agent of a run was billed, and what is known of it.
#[derive(Debug, Default)]
struct Purse {
    /// What its calls in the store come to.
    stored: Money,
    unconfirmed: Money,
    unconfirmed_calls: u64,
    /// Request ids of calls whose amounts are known.
    known: BTreeSet<String>,
}

impl Audit {
    /// Goes through everything.
    pub(crate) fn of(
        store: &Path,
        acknowledged: &Acknowledged,
        billed: &BTreeMap<String, Billed>,
        disks_were_lost: bool,
    ) -> Result<Self> {
        let mut audit = Self::default();
        let reader = Reader::open(store)?;
        let found = reader.verify();
        audit.expect(found.is_sound(), || format!("the store is not sound: {:?}", found.findings));
        audit.journal(&reader)?;
        audit.acknowledged = u64::try_from(acknowledged.len())?;
        for (attempt, number) in acknowledged {
            let there = reader.steps(*attempt, *number).next().transpose()?.is_some_and(|step| step.number == *number);
            audit.lost += u64::from(!there);
            audit.expect(there, || format!("step {number} of {attempt} was acknowledged, and is lost"));
        }
        for run in reader.runs()? {
            audit.run(&reader, &run, billed, disks_were_lost)?;
        }
        audit.billed = nanos(billed.values().map(|call| call.nanos).sum());
        Ok(audit)
    }

    fn expect(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.wrong.push(what());
        }
    }

    /// The engine as a coordinator would have it again, and what its journal says.
    fn journal(&mut self, reader: &Reader) -> Result<()> {
        let (mut engine, through) = match reader.snapshot()? {
            None => (Engine::new(Settings::default()), 0),
            Some(saved) => {
                let state: Snapshot = serde_json::from_slice(&saved.state)?;
                (Engine::from_snapshot(Settings::default(), state)?, saved.through)
            }
        };
        let mut settled = BTreeMap::new();
        for entry in reader.journal(through)? {
            let event: Event = serde_json::from_slice(&entry.event)?;
            if let Event::EpisodeSettled { episode, .. } = &event {
                *settled.entry(*episode).or_insert(0) += 1;
            }
            engine.apply(&event);
        }
        for (episode, times) in settled {
            self.expect(times == 1, || format!("{episode} was settled {times} times"));
        }
        let checked = engine.check_invariants();
        self.expect(checked.is_ok(), || format!("the journal: {checked:?}"));
        let leases = engine.state().leases().count();
        self.expect(leases == 0, || format!("{leases} leases are live still"));
        Ok(())
    }

    fn run(
        &mut self,
        reader: &Reader,
        run: &RunRecord,
        billed: &BTreeMap<String, Billed>,
        disks_were_lost: bool,
    ) -> Result<()> {
        self.expect(run.settled_at.is_some(), || format!("run {} is not settled", run.id));
        let mut purses: BTreeMap<String, Purse> = BTreeMap::new();
        let episodes = reader.episodes(run.id)?;
        let count = episodes.len();
        self.expect(count == usize::try_from(run.episodes)?, || format!("run {} has {count} episodes", run.id));
        for episode in &episodes {
            self.episode(reader, episode)?;
            let attempts = reader.attempts(episode.id)?;
            self.attempts += u64::try_from(attempts.len())?;
            let purse = purses.entry(episode.agent.clone()).or_default();
            for (index, attempt) in attempts.iter().enumerate() {
                self.attempt(reader, attempt, attempts.get(index + 1), purse)?;
            }
        }
        for (agent, purse) in &purses {
            self.money(run, agent, purse, billed, disks_were_lost);
        }
        let whole = run.scopes.iter().find(|scope| scope.name == "run").context("the run has no budget")?;
        self.expect(whole.escrow.is_zero(), || format!("run {}: {} are in escrow still", run.id, whole.escrow));
        self.expect(whole.overshoot.is_zero(), || format!("run {}: overshoot {}", run.id, whole.overshoot));
        self.expect(whole.cap.is_none_or(|cap| whole.settled <= cap), || {
            format!("run {}: {} are settled, and {:?} is the cap", run.id, whole.settled, whole.cap)
        });
        self.spent = self.spent.saturating_add(whole.settled);
        self.unconfirmed = self.unconfirmed.saturating_add(whole.unconfirmed);
        Ok(())
    }

    /// An episode is settled, by an attempt whose chain is whole.
    fn episode(&mut self, reader: &Reader, episode: &EpisodeRecord) -> Result<()> {
        self.episodes += 1;
        *self.states.entry(episode.state.name()).or_default() += 1;
        let EpisodeState::Settled { attempt, .. } = &episode.state else {
            self.wrong.push(format!("{} is not settled: {}", episode.id, episode.state.name()));
            return Ok(());
        };
        let Some(id) = *attempt else { return Ok(()) };
        let mut numbers = Vec::new();
        for step in reader.trajectory(id)? {
            numbers.push(step?.1.number);
        }
        let whole = numbers.iter().copied().eq(0..u32::try_from(numbers.len())?);
        let distinct: BTreeSet<&u32> = numbers.iter().collect();
        self.duplicates += u64::try_from(numbers.len() - distinct.len())?;
        self.expect(whole, || format!("the trajectory of {id} has a gap or a double: {numbers:?}"));
        let record = reader.attempt(id)?.and_then(|record| record.finish);
        let said = record.map_or(0, |finish| finish.steps);
        // What nobody reported has no number of steps.
        let same = said == 0 || usize::try_from(said)? == numbers.len();
        self.expect(same, || format!("{id} was to have {said} steps, and has {}", numbers.len()));
        Ok(())
    }

    /// An attempt has ended, its own steps have no gap, and none of its calls was paid before.
    fn attempt(
        &mut self,
        reader: &Reader,
        attempt: &AttemptRecord,
        next: Option<&AttemptRecord>,
        purse: &mut Purse,
    ) -> Result<()> {
        let id = attempt.id;
        self.expect(attempt.finish.is_some(), || format!("{id} has no end"));
        let line = reader.line(id)?;
        let first = line.as_ref().map_or(0, |line| line.kept.steps);
        let stands = line.as_ref().is_none_or(|line| line.resumed.is_some());
        self.resumed += u64::from(line.is_some() && stands);
        let mut expected = first;
        for step in reader.steps(id, 0) {
            let step = step?;
            self.expect(step.number == expected, || format!("{id} has step {}, not {expected}", step.number));
            expected = step.number + 1;
            self.steps += 1;
            self.late += u64::from(step.late);
        }
        for call in reader.calls(id, 0) {
            let call = call?.record()?;
            self.calls += 1;
            let again = call.purpose == Purpose::Agent && (!stands || call.step < first);
            self.duplicates += u64::from(again);
            self.expect(!again, || format!("call {} of {id} is of step {}, which it keeps", call.number, call.step));
            let alone = next.is_none_or(|next| call.at <= next.started);
            self.expect(alone, || format!("call {} of {id} was made beside the next attempt", call.number));
            self.call(id, &call, purse);
        }
        Ok(())
    }

    fn call(&mut self, id: AttemptId, call: &CallRecord, purse: &mut Purse) {
        purse.stored = purse.stored.saturating_add(call.settled);
        match (call.certainty, &call.request_id) {
            (Certainty::Unconfirmed, _) => {
                purse.unconfirmed = purse.unconfirmed.saturating_add(call.settled);
                purse.unconfirmed_calls += 1;
            }
            (Certainty::Reported, Some(request)) => {
                let new = purse.known.insert(request.clone());
                self.duplicates += u64::from(!new);
                self.expect(new, || format!("call {} of {id} ({request}) is in the ledger twice", call.number));
            }
            (Certainty::Reported, None) => self.wrong.push(format!("call {} of {id} has no request id", call.number)),
            (Certainty::Released, _) => {}
        }
    }

    /// What an agent was billed is known to the last unit, but for calls whose answers never came: those
    /// are settled at their bound.
    fn money(
        &mut self,
        run: &RunRecord,
        agent: &str,
        purse: &Purse,
        billed: &BTreeMap<String, Billed>,
        disks_were_lost: bool,
    ) {
        let of_agent = |call: &Billed| call.model == format!("model-{agent}");
        let all = nanos(billed.values().filter(|call| of_agent(call)).map(|call| call.nanos).sum());
        let known = nanos(purse.known.iter().filter_map(|id| billed.get(id)).map(|call| call.nanos).sum());
        let reported = purse.stored.saturating_sub(purse.unconfirmed);
        self.expect(known == reported, || format!("{agent}: of calls that cost {known}, {reported} are settled"));
        let name = format!("agent {agent}");
        let Some(scope) = run.scopes.iter().find(|scope| scope.name == name) else {
            return self.wrong.push(format!("run {} has no budget of {agent}", run.id));
        };
        let gone = scope.settled.saturating_sub(purse.stored);
        self.gone = self.gone.saturating_add(gone);
        let exact = scope.settled >= purse.stored && (disks_were_lost || gone.is_zero());
        self.expect(exact, || format!("{agent}: {} are settled, its calls come to {}", scope.settled, purse.stored));
        let (left, bound) = (all.saturating_sub(known), purse.unconfirmed.saturating_add(gone));
        self.expect(left <= bound, || format!("{agent}: {left} were billed, of which {bound} at most are known"));
        let missing = billed.iter().filter(|(id, call)| of_agent(call) && !purse.known.contains(*id)).count();
        let few = disks_were_lost || u64::try_from(missing).is_ok_and(|missing| missing <= purse.unconfirmed_calls);
        self.expect(few, || format!("{agent}: {missing} calls are missing, {} unconfirmed", purse.unconfirmed_calls));
        self.expect(scope.cap.is_none_or(|cap| all <= cap), || format!("{agent}: {all} were billed: {:?}", scope.cap));
    }
}

const fn nanos(nanos: u64) -> Money {
    Money::from_nanos(nanos)
}

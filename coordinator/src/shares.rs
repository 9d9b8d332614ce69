//! Shares: what each worker may use of the limits of an endpoint and of its models, which hold over
//! all workers together; and whether an endpoint is down.
//!
//! Pure. A limit is divided by what workers could use of it (calls that wait or are in flight),
//! and what is left over evenly, so that whoever begins need not ask first. Where a limit is
//! smaller than the number of workers that want it, it goes round: a part of it stays long enough
//! with each to be given back and passed on.
//!
//! **Never more than the limit in total**, also while shares move: a share is taken first and
//! given to another only when the worker has said, by the number in a heartbeat, that it acts by
//! the smaller one. A worker without a session keeps what it had until its leases are over, since
//! until then it may go on calling; then its share is free. (After a restart of the coordinator
//! nobody knows what those hold that have not come back yet: until they have, or at most for the
//! time of a lease, more than the limit may be in use.)
//!
//! **An endpoint is down** when every worker that has calls of it says so, and up again when one
//! of them was answered; or when nobody has said anything of it for a while, so that somebody
//! tries.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use longhaul_core::endpoint::{EndpointPlan, RateLimits};
use longhaul_core::ids::{RunId, WorkerId};
use longhaul_core::time::{Millis, Timestamp};
use longhaul_proto::v1;

/// A word is old after this: three heartbeats of a slow worker, and some.
const WORD_HOLDS: Millis = Millis::from_secs(45);

/// After so long without a word of it an endpoint that was down is taken to be up.
const TRIED_AGAIN: Millis = Millis::from_secs(60);

/// For so many heartbeats what is too small for all stays where it is, before it goes round: longer
/// than a worker takes to say that it has given it back.
const STAYS: u64 = 3;

/// What has limits: an endpoint, or some of its models by the name of their limits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Limited {
    endpoint: String,
    model: Option<String>,
}

/// What a worker may use of one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    amounts: Amounts,
    down: bool,
}

/// Calls in flight, calls a minute, tokens a minute.
const DIMENSIONS: usize = 3;

type Told = BTreeMap<Limited, Share>;

/// Limits as numbers, by dimension.
type Amounts = [Option<u64>; DIMENSIONS];

/// What a worker said of an endpoint.
#[derive(Clone, Debug)]
struct Word {
    at: Timestamp,
    demand: u32,
    /// Of that, what is of models with limits of their own.
    models: BTreeMap<String, u32>,
    down: Option<String>,
    /// Since when it is so, if it is down.
    since: Timestamp,
}

/// A worker that may hold shares.
#[derive(Clone, Debug, Default)]
struct Member {
    /// Since when it has no session, if it has none.
    gone: Option<Timestamp>,
    /// How many times it was told in this session.
    number: u64,
    /// What it was told and is not known to have passed beyond: it acts by one of these.
    told: VecDeque<(u64, Told)>,
    words: BTreeMap<String, Word>,
}

impl Member {
    /// The most that it may be acting by: whoever was told of no limit may use everything.
    fn held(&self, of: &Limited, dimension: usize) -> u64 {
        let shares = self.told.iter().filter_map(|(_, told)| told.get(of));
        shares.map(|share| share.amounts[dimension].unwrap_or(u64::MAX)).max().unwrap_or(0)
    }

    fn demand(&self, of: &Limited) -> u64 {
        let Some(word) = self.words.get(&of.endpoint) else { return 0 };
        u64::from(match &of.model {
            None => word.demand,
            Some(model) => word.models.get(model).copied().unwrap_or(0),
        })
    }
}

/// The endpoints of a coordinator's runs, and who may use what of them.
#[derive(Debug)]
pub(crate) struct Shares {
    /// For so long a worker that is cut off may still be calling.
    grace: Millis,
    /// For so long what is too small for all stays where it is.
    stays: Millis,
    limits: BTreeMap<RunId, BTreeMap<Limited, RateLimits>>,
    members: BTreeMap<WorkerId, Member>,
    down: BTreeMap<String, String>,
    /// When a word of it came last.
    heard: BTreeMap<String, Timestamp>,
}

impl Shares {
    /// Of workers whose leases are over at the latest so long after they were cut off, and that say so
    /// often that they are there.
    pub(crate) const fn new(grace: Millis, heartbeat: Millis) -> Self {
        Self {
            grace,
            stays: Millis(heartbeat.0.saturating_mul(STAYS)),
            limits: BTreeMap::new(),
            members: BTreeMap::new(),
            down: BTreeMap::new(),
            heard: BTreeMap::new(),
        }
    }

    /// A run may call these endpoints.
    pub(crate) fn learn(&mut self, run: RunId, endpoints: &[EndpointPlan]) {
        let of = |endpoint: &EndpointPlan, model: Option<&str>| Limited {
            endpoint: endpoint.name.clone(),
            model: model.map(str::to_owned),
        };
        let limits = endpoints.iter().flat_map(|endpoint| {
            let models = endpoint.model_limits.iter().map(|limits| (of(endpoint, Some(&limits.model)), limits.limits));
            std::iter::once((of(endpoint, None), endpoint.limits)).chain(models)
        });
        self.limits.insert(run, limits.collect());
    }

    /// Runs that are over need nothing any more.
    pub(crate) fn forget(&mut self, is_open: impl Fn(RunId) -> bool) {
        self.limits.retain(|run, _| is_open(*run));
    }

    /// A worker opened a session.
    pub(crate) fn joined(&mut self, worker: WorkerId) {
        let member = self.members.entry(worker).or_default();
        member.gone = None;
        // It counts anew, and acts by what it was told last until it is told again.
        member.number = 0;
        let last: Vec<(u64, Told)> = member.told.drain(..).collect();
        if !last.is_empty() {
            let mut most = Told::new();
            for (name, share) in last.into_iter().flat_map(|(_, told)| told) {
                let known = most.entry(name).or_insert(share);
                for (amount, other) in known.amounts.iter_mut().zip(share.amounts) {
                    *amount = amount.zip(other).map(|(one, other)| one.max(other));
                }
            }
            member.told.push_back((0, most));
        }
    }

    /// A worker's session is over.
    pub(crate) fn left(&mut self, worker: WorkerId, now: Timestamp) {
        if let Some(member) = self.members.get_mut(&worker) {
            member.gone = Some(now);
            member.words.clear();
        }
    }

    /// A worker acts by what it was told as this number.
    pub(crate) fn acted_by(&mut self, worker: WorkerId, number: u64) {
        if let Some(member) = self.members.get_mut(&worker) {
            while member.told.len() > 1 && member.told.get(1).is_some_and(|(next, _)| *next <= number) {
                member.told.pop_front();
            }
        }
    }

    /// What a worker has seen of an endpoint.
    pub(crate) fn word(&mut self, worker: WorkerId, word: &v1::EndpointWord, now: Timestamp) {
        let Some(member) = self.members.get_mut(&worker) else { return };
        let down = Some(word.down.clone()).filter(|reason| !reason.is_empty() && !word.answered);
        if word.demand > 0 || word.answered || down.is_some() {
            self.heard.insert(word.endpoint.clone(), now);
        }
        let since = Timestamp(now.0.saturating_sub(word.down_millis));
        let models = word.models.iter().map(|of| (of.model.clone(), of.demand)).collect();
        member.words.insert(word.endpoint.clone(), Word { at: now, demand: word.demand, models, down, since });
        if word.answered {
            // One answer is enough: the others hear of it by their shares.
            for member in self.members.values_mut() {
                if let Some(word) = member.words.get_mut(&word.endpoint) {
                    word.down = None;
                }
            }
        }
    }

    /// Why no call of a worker is answered there, as it says itself, and since when.
    pub(crate) fn down_at(&self, worker: WorkerId, endpoint: &str) -> Option<(&str, Timestamp)> {
        let word = self.members.get(&worker)?.words.get(endpoint)?;
        Some((word.down.as_deref()?, word.since))
    }

    /// Which endpoints are down, and are not any more, since this was last asked.
    pub(crate) fn news(&mut self, now: Timestamp) -> Vec<(String, Option<String>)> {
        let mut news = Vec::new();
        let named: BTreeSet<String> = self.heard.keys().chain(self.down.keys()).cloned().collect();
        for name in named {
            let words = self.members.values().filter_map(|member| member.words.get(&name));
            let (mut reason, mut up, mut spoken) = (None, false, false);
            for word in words.filter(|word| now.since(word.at) <= WORD_HOLDS) {
                spoken = true;
                match &word.down {
                    Some(why) => reason = reason.or_else(|| Some(why.clone())),
                    None => up |= word.demand > 0,
                }
            }
            let silent = self.heard.get(&name).is_none_or(|at| now.since(*at) >= TRIED_AGAIN);
            let was_down = self.down.contains_key(&name);
            match reason.filter(|_| !up) {
                Some(reason) if !was_down => {
                    self.down.insert(name.clone(), reason.clone());
                    news.push((name, Some(reason)));
                }
                None if was_down && (spoken || silent) => {
                    self.down.remove(&name);
                    news.push((name, None));
                }
                _ => {}
            }
        }
        news
    }

    /// The limits of each endpoint and of its models: the smallest that any run gives it.
    fn limited(&self) -> BTreeMap<Limited, Amounts> {
        let mut limited: BTreeMap<Limited, Amounts> = BTreeMap::new();
        for (of, limits) in self.limits.values().flatten() {
            let known = limited.entry(of.clone()).or_default();
            let amounts =
                [limits.concurrent.map(u64::from), limits.requests_per_minute.map(u64::from), limits.tokens_per_minute];
            for (known, amount) in known.iter_mut().zip(amounts) {
                *known = match (*known, amount) {
                    (Some(one), Some(other)) => Some(one.min(other)),
                    (one, other) => one.or(other),
                };
            }
        }
        limited
    }

    /// What is to be told to whom now.
    pub(crate) fn divide(&mut self, now: Timestamp) -> Vec<(WorkerId, v1::EndpointShares)> {
        self.members.retain(|_, member| member.gone.is_none_or(|since| now.since(since) <= self.grace));
        let present: Vec<WorkerId> =
            self.members.iter().filter(|(_, member)| member.gone.is_none()).map(|(id, _)| *id).collect();
        let turn = now.0 / self.stays.0.max(1);
        let mut fresh: BTreeMap<WorkerId, Told> = present.iter().map(|id| (*id, Told::new())).collect();
        for (of, limits) in self.limited() {
            let share = Share { down: self.down.contains_key(&of.endpoint), ..Share::default() };
            for told in fresh.values_mut() {
                told.insert(of.clone(), share);
            }
            for (dimension, limit) in limits.into_iter().enumerate() {
                let Some(limit) = limit else { continue };
                for (id, amount) in self.divided(&present, &of, dimension, limit, turn) {
                    if let Some(share) = fresh.get_mut(&id).and_then(|told| told.get_mut(&of)) {
                        share.amounts[dimension] = Some(amount);
                    }
                }
            }
        }
        fresh.into_iter().filter_map(|(id, told)| self.tell(id, told)).collect()
    }

    /// One limit divided among the workers that are there.
    fn divided(
        &self,
        present: &[WorkerId],
        of: &Limited,
        dimension: usize,
        limit: u64,
        turn: u64,
    ) -> Vec<(WorkerId, u64)> {
        let demand = |id: &WorkerId| self.members.get(id).map_or(0, |member| member.demand(of));
        let demands: Vec<u64> = present.iter().map(demand).collect();
        let wanted = if dimension == 0 { by_demand(limit, &demands, turn) } else { by_weight(limit, &demands, turn) };
        // What anybody may still be acting by is not there to be given.
        let held = |member: &Member| member.held(of, dimension);
        let mut free = self.members.values().map(held).fold(limit, u64::saturating_sub);
        let mut divided = Vec::new();
        for (id, wanted) in present.iter().zip(wanted) {
            let held = self.members.get(id).map_or(0, held);
            let more = wanted.saturating_sub(held).min(free);
            free -= more;
            // Up to what it may be acting by anyway, a share costs nothing.
            divided.push((*id, wanted.min(held.saturating_add(more))));
        }
        divided
    }

    fn tell(&mut self, worker: WorkerId, told: Told) -> Option<(WorkerId, v1::EndpointShares)> {
        let member = self.members.get_mut(&worker)?;
        if member.number > 0 && member.told.back().is_some_and(|(_, last)| *last == told) {
            return None;
        }
        if told.is_empty() && member.told.is_empty() {
            return None;
        }
        member.number += 1;
        let narrow = |amount: Option<u64>| amount.map(|amount| u32::try_from(amount).unwrap_or(u32::MAX));
        let share = |(of, share): (&Limited, &Share)| v1::EndpointShare {
            endpoint: of.endpoint.clone(),
            model: of.model.clone().unwrap_or_default(),
            concurrent: narrow(share.amounts[0]),
            requests_per_minute: narrow(share.amounts[1]),
            tokens_per_minute: share.amounts[2],
            down: share.down,
        };
        let shares = told.iter().map(share).collect();
        member.told.push_back((member.number, told));
        Some((worker, v1::EndpointShares { shares, number: member.number }))
    }
}

/// Divides places by how many each could fill: nobody gets more than it can fill while others
/// want, and what is left over is spread evenly. The sum is the limit, if there is anybody.
fn by_demand(limit: u64, demands: &[u64], turn: u64) -> Vec<u64> {
    let mut shares = vec![0; demands.len()];
    let mut left = limit;
    loop {
        let hungry: Vec<usize> = (0..demands.len()).filter(|at| shares[*at] < demands[*at]).collect();
        if hungry.is_empty() || left == 0 {
            break;
        }
        let each = left / hungry.len() as u64;
        if each == 0 {
            rotate(&hungry, turn).take(usize::try_from(left).unwrap_or(usize::MAX)).for_each(|at| shares[at] += 1);
            left = 0;
            break;
        }
        for at in hungry {
            let more = each.min(demands[at] - shares[at]);
            shares[at] += more;
            left -= more;
        }
    }
    let mut all: Vec<usize> = (0..demands.len()).collect();
    if left > 0 && !all.is_empty() {
        let (each, rest) = (left / all.len() as u64, left % all.len() as u64);
        shares.iter_mut().for_each(|share| *share += each);
        // Whoever has least may begin something; in a fixed order, since nobody asked for it.
        all.sort_by_key(|at| shares[*at]);
        all.iter().take(usize::try_from(rest).unwrap_or(usize::MAX)).for_each(|at| shares[*at] += 1);
    }
    shares
}

/// Divides a rate in proportion to demand; whoever wants nothing now gets what one call would.
fn by_weight(limit: u64, demands: &[u64], turn: u64) -> Vec<u64> {
    let weights: Vec<u128> = demands.iter().map(|demand| u128::from(*demand) + 1).collect();
    let total: u128 = weights.iter().sum();
    let mut shares: Vec<u64> = weights
        .iter()
        .map(|weight| u64::try_from(u128::from(limit) * weight / total.max(1)).unwrap_or(limit))
        .collect();
    let rest = limit.saturating_sub(shares.iter().sum());
    let all: Vec<usize> = (0..shares.len()).collect();
    let small = limit < shares.len() as u64;
    let order: Vec<usize> = if small { rotate(&all, turn).collect() } else { all };
    order.iter().take(usize::try_from(rest).unwrap_or(usize::MAX)).for_each(|at| shares[*at] += 1);
    shares
}

/// Those that want, beginning with another one each turn.
fn rotate(among: &[usize], turn: u64) -> impl Iterator<Item = usize> + '_ {
    let skip = usize::try_from(turn % among.len().max(1) as u64).unwrap_or(0);
    among.iter().cycle().skip(skip).take(among.len()).copied()
}

#[cfg(test)]
mod tests;

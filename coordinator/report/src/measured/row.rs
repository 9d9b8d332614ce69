//! One stored episode as a row.

use std::collections::BTreeMap;

use longhaul_core::agent::AgentPlan;
use longhaul_core::budget::EpisodeBudget;
use longhaul_core::call::{CallRecord, Certainty, PurseKind};
use longhaul_core::endpoint::GatewayPlan;
use longhaul_core::ids::AttemptId;
use longhaul_core::judge::{ItemResult, Judgement, Mark, Scorer};
use longhaul_core::measure::{Aspect, AssertionRow, Progress, RoundKind, RoundRow, Row, State};
use longhaul_core::money::Money;
use longhaul_core::outcome::{EndedBy, Settlement};
use longhaul_core::price::Usage;
use longhaul_core::step::StepRecord;
use longhaul_core::time::Millis;
use longhaul_store::AttemptRecord;
use serde_json::Value;

use super::plans::{Frozen, Plans};
use super::{Measured, Provenance};
use crate::view::{EpisodeView, Trajectories};

pub(crate) fn measure<T: Trajectories>(
    from: &T,
    plans: &mut Plans<'_, T>,
    episode: &EpisodeView,
    label: &str,
) -> Result<Measured, T::Error> {
    let frozen = plans.of(&episode.plan)?;
    let steps = episode.attempt.map_or_else(|| Ok(Vec::new()), |attempt| from.steps(attempt))?;
    // A lost attempt's calls are paid for as well; what comes late, too.
    let mut calls = Vec::new();
    let mut own = Vec::new();
    let chain = answering(episode);
    for attempt in &episode.attempts {
        let made: Vec<CallRecord> = from.calls(attempt.id)?.into_iter().map(|(call, _)| call).collect();
        if chain.contains(&attempt.id) {
            own.extend_from_slice(&made);
        }
        calls.extend(made);
    }
    let record = settling(episode);
    let provenance = Provenance::of(&frozen, record, &own);
    let (state, why) = state(episode.settlement.as_ref());
    let spent = Spent::of(&calls, &frozen);
    let notes = record.and_then(|record| record.finish.as_ref()).map(|finish| &finish.notes);
    let imported = frozen.imported.as_ref();
    let spec = frozen.task.as_ref().map(|task| &task.plan.spec);
    let row = Row {
        run: label.to_owned(),
        episode: episode.id.to_string(),
        task: episode.task.clone(),
        splits: frozen.task.as_ref().map(|task| task.plan.splits.iter().cloned().collect()).unwrap_or_default(),
        difficulty: spec.and_then(|spec| word(spec, &["difficulty"])),
        family: spec
            .and_then(|spec| word(spec, &["longhaul", "family"]).or_else(|| word(spec, &["metadata", "family"]))),
        agent: episode.agent.clone(),
        sample: episode.sample,
        state,
        caps: caps(episode.settlement.as_ref(), &frozen, spent.dollars),
        steps: match imported {
            Some(imported) => imported.steps,
            None => u32::try_from(steps.iter().filter(|step| step.answer.is_some()).count()).unwrap_or(u32::MAX),
        },
        actions: actions(&steps),
        tokens: spent.tokens,
        dollars: spent.dollars,
        unconfirmed: spent.unconfirmed,
        judge_dollars: spent.judge,
        time: notes.filter(|notes| imported.is_none() && notes.is_noted()).map(|notes| notes.acting_time),
        node_time: node_time(episode, &frozen),
        stalls: (!steps.is_empty() && imported.is_none()).then(|| stalls(&steps)),
        resumed: episode.attempt.is_some_and(|attempt| episode.resumed(attempt)),
        attempts: u32::try_from(episode.attempts.len()).unwrap_or(u32::MAX),
        rounds: rounds(episode.settlement.as_ref(), &steps),
        progress: progress(&steps, &own, spent.dollars.is_some()),
    };
    let last_screen = steps.last().map(|step| step.screen.png);
    let parts = match &episode.settlement {
        Some(Settlement::Verdict(verdict)) => verdict.parts.clone(),
        Some(Settlement::Unverified { parts, .. }) => parts.clone(),
        _ => None,
    };
    Ok(Measured { id: episode.id, row, why, last_screen, provenance, parts })
}

/// The attempts whose calls are the trajectory's: those of the chain of the attempt that settled the
/// episode, or is live; else the last one alone.
pub(super) fn answering(episode: &EpisodeView) -> Vec<AttemptId> {
    match episode.attempt {
        Some(attempt) => episode.chain(attempt),
        None => episode.attempts.last().map(|attempt| attempt.id).into_iter().collect(),
    }
}

/// The attempt that settled the episode, else the last one.
pub(super) fn settling(episode: &EpisodeView) -> Option<&AttemptRecord> {
    episode.attempt.and_then(|attempt| episode.record(attempt)).or_else(|| episode.attempts.last())
}

/// The state of a row, and what is said of it.
fn state(settlement: Option<&Settlement>) -> (State, String) {
    match settlement {
        None => (State::Unsettled, String::new()),
        Some(Settlement::Verdict(verdict)) => {
            let score = Some(verdict.score).filter(|score| score.is_finite());
            let state = State::Verdict { passed: verdict.passed, score, ended_by: verdict.ended_by };
            (state, verdict.feedback.clone())
        }
        Some(Settlement::Unverified { ended_by, reason, .. }) => {
            (State::Unverified { ended_by: *ended_by }, reason.clone())
        }
        Some(Settlement::Cancelled) => (State::Cancelled, String::new()),
        Some(Settlement::Faulted(fault)) => (State::Faulted { class: fault.class }, fault.message.clone()),
        Some(Settlement::NotStarted { reason }) => (State::NotStarted, reason.clone()),
    }
}

/// What it might use. No dollars where money ended it and its own cap had room for the dearest
/// call: then it was the run's money or the agent's.
fn caps(settlement: Option<&Settlement>, frozen: &Frozen, spent: Option<Money>) -> Option<EpisodeBudget> {
    let mut caps = frozen.episode.as_ref()?.budget;
    let by_money = matches!(settlement, Some(Settlement::Verdict(verdict)) if verdict.ended_by == EndedBy::Budget);
    if by_money
        && let (Some(cap), Some(spent), Some(call)) = (caps.max_cost, spent, dearest(frozen))
        && spent.saturating_add(call) <= cap
    {
        caps.max_cost = None;
    }
    Some(caps)
}

/// The most that one call of the episode can cost, if that is bounded.
fn dearest(frozen: &Frozen) -> Option<Money> {
    let (episode, gateway) = (frozen.episode.as_ref()?, frozen.gateway.as_ref()?);
    let AgentPlan::Model(agent) = &episode.agent else { return None };
    let own = gateway.dearest_as(agent.service(), &agent.endpoint, &agent.model, agent.max_output)?;
    match &episode.audit {
        Some(audit) => Some(own.max(gateway.dearest(&audit.endpoint, &audit.model, audit.max_output)?)),
        None => Some(own),
    }
}

/// The checks that a verdict is made of: those of the task's rounds, else those of a checklist,
/// which are one round.
fn rounds(settlement: Option<&Settlement>, steps: &[StepRecord]) -> Vec<RoundRow> {
    let Some(Settlement::Verdict(verdict)) = settlement else { return Vec::new() };
    let Some(parts) = &verdict.parts else { return Vec::new() };
    if parts.rounds.is_empty() {
        return parts.checklist.as_ref().map(checklist_round).into_iter().collect();
    }
    // Measures count steps of the agent; what opens a further round is none.
    let count = |last: u32| steps.iter().filter(|step| step.answer.is_some() && step.number <= last).count();
    let of_agent = |last: u32| u32::try_from(count(last)).unwrap_or(u32::MAX);
    // Where something else decides, a round that failed says nothing of when the verdict was known.
    let decide = parts.decided_by == Scorer::Rounds;
    let row = |row: RoundRow| RoundRow { last_step: row.last_step.filter(|_| decide).map(of_agent), ..row };
    parts.rounds.iter().map(|round| row(round.row())).collect()
}

/// The checks of a checklist as one round.
pub(crate) fn checklist_round(judgement: &Judgement) -> RoundRow {
    let assertion = |item: &ItemResult| AssertionRow {
        id: item.id.clone(),
        aspect: Aspect::Other,
        passed: item.mark == Mark::Pass,
    };
    let assertions = judgement.items.iter().map(assertion).collect();
    RoundRow { number: 1, kind: RoundKind::Other, error: None, last_step: None, assertions }
}

/// A word of the task's spec, if it is one.
fn word(spec: &Value, path: &[&str]) -> Option<String> {
    let found = path.iter().try_fold(spec, |value, key| value.get(key))?;
    found.as_str().map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned)
}

fn actions(steps: &[StepRecord]) -> u32 {
    let asked = steps.iter().filter_map(|step| step.answer.as_ref()).map(|answer| answer.actions.len());
    u32::try_from(asked.sum::<usize>()).unwrap_or(u32::MAX)
}

/// Steps after which the screen was as before, though actions were asked for.
fn stalls(steps: &[StepRecord]) -> u32 {
    let still = |pair: &&[StepRecord]| {
        pair[1].answer.as_ref().is_some_and(|answer| !answer.actions.is_empty())
            && pair[0].screen.png == pair[1].screen.png
    };
    u32::try_from(steps.windows(2).filter(still).count()).unwrap_or(u32::MAX)
}

/// What an episode's calls come to. What is not known is absent.
#[derive(Debug, Default, PartialEq)]
struct Spent {
    tokens: Option<Usage>,
    dollars: Option<Money>,
    unconfirmed: Money,
    judge: Option<Money>,
}

impl Spent {
    fn of(calls: &[CallRecord], frozen: &Frozen) -> Self {
        let gateway = frozen.gateway.as_deref();
        let sides = |purse| calls.iter().filter(move |call| call.purpose.purse() == purse);
        let agent: Vec<&CallRecord> = sides(PurseKind::Episode).collect();
        let judge: Vec<&CallRecord> = sides(PurseKind::Judge).collect();
        // Its calls are all that it cost only if it has no way to a model but the gateway.
        let known = match frozen.episode.as_ref().map(|episode| &episode.agent) {
            Some(AgentPlan::Scripted { .. } | AgentPlan::Idle | AgentPlan::Model(_)) => true,
            Some(AgentPlan::External(external)) => !external.net,
            None => !agent.is_empty(),
        };
        let usage = || agent.iter().filter_map(|call| call.usage).fold(Usage::default(), |sum, usage| sum.plus(&usage));
        let unconfirmed = agent.iter().filter(|call| call.certainty == Certainty::Unconfirmed);
        Self {
            tokens: known.then(usage),
            dollars: (known && priced(&agent, gateway)).then(|| agent.iter().map(|call| call.settled).sum()),
            unconfirmed: unconfirmed.map(|call| call.settled).sum(),
            judge: (!judge.is_empty() && priced(&judge, gateway)).then(|| judge.iter().map(|call| call.settled).sum()),
        }
    }
}

/// Whether what each of the calls cost is known: it was billed for something, or its model has
/// a price (which may be nothing).
fn priced(calls: &[&CallRecord], gateway: Option<&GatewayPlan>) -> bool {
    let has_price = |call: &CallRecord| {
        gateway.is_some_and(|plan| {
            plan.endpoint(&call.endpoint).is_some_and(|of| plan.price(&of.vendor, &call.model).is_some())
        })
    };
    calls.iter().all(|call| !call.settled.is_zero() || call.certainty == Certainty::Released || has_price(call))
}

/// The time of a node that all attempts took, by their share of its processors; none unless it
/// is known of each.
fn node_time(episode: &EpisodeView, frozen: &Frozen) -> Option<Millis> {
    let asked = u64::from(frozen.env.as_ref()?.plan.resources.cpu_millis);
    if episode.attempts.is_empty() {
        return None;
    }
    let mut sum = 0_u64;
    for attempt in &episode.attempts {
        let finish = attempt.finish.as_ref()?;
        let offered = Some(u64::from(finish.notes.node_cpu_millis)).filter(|offered| *offered > 0)?;
        let took = finish.at.0.saturating_sub(attempt.started.0);
        sum = sum.saturating_add(took.saturating_mul(asked.min(offered)) / offered);
    }
    Some(Millis(sum))
}

/// What the trajectory had used after each step of the agent.
fn progress(steps: &[StepRecord], calls: &[CallRecord], priced: bool) -> Vec<Progress> {
    let mut by_step: BTreeMap<u32, Money> = BTreeMap::new();
    for call in calls.iter().filter(|call| call.purpose.purse() == PurseKind::Episode) {
        let sum = by_step.entry(call.step).or_default();
        *sum = sum.saturating_add(call.settled);
    }
    let mut sum = Money::ZERO;
    let mut spent = by_step.into_iter().peekable();
    steps
        .iter()
        .filter(|step| step.answer.is_some())
        .zip(1..)
        .map(|(step, count)| {
            while let Some((_, more)) = spent.next_if(|(of, _)| *of <= step.number) {
                sum = sum.saturating_add(more);
            }
            Progress { step: count, dollars: priced.then_some(sum), passed: None }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use longhaul_core::agent::Answer;
    use longhaul_core::budget::StallPolicy;
    use longhaul_core::call::Purpose;
    use longhaul_core::digest::Digest;
    use longhaul_core::endpoint::{EndpointPlan, Protocol, RateLimits};
    use longhaul_core::judge::VerdictParts;
    use longhaul_core::outcome::{FaultClass, Verdict};
    use longhaul_core::plan::EpisodePlan;
    use longhaul_core::price::{ImageRule, ModelPrice, Rate};
    use longhaul_core::rounds::{Played, RoundsPlan};
    use longhaul_core::step::{Screenshot, StepTiming};
    use longhaul_core::time::Timestamp;
    use serde_json::json;

    use super::*;

    fn call(step: u32, settled: u64, purpose: Purpose) -> CallRecord {
        CallRecord {
            number: step,
            step,
            at: Timestamp(1),
            took: Millis(10),
            purpose,
            endpoint: "vendor".to_owned(),
            model: "model".to_owned(),
            model_reported: None,
            fingerprint: None,
            request_id: None,
            retry_of: None,
            status: Some(200),
            error: None,
            reserved: Money::from_nanos(settled),
            settled: Money::from_nanos(settled),
            certainty: Certainty::Reported,
            usage: Some(Usage { input: 10, output: 5, ..Usage::default() }),
            shortened_to: None,
            request: Digest::of(b"request"),
            response: None,
            parts: Vec::new(),
            service: None,
        }
    }

    fn step(number: u32, screen: &[u8], actions: usize) -> StepRecord {
        StepRecord {
            number,
            at: Timestamp(1),
            answer: (number > 0).then(|| Answer { actions: vec![json!({}); actions], ..Answer::default() }),
            outcomes: Vec::new(),
            screen: Screenshot { png: Digest::of(screen), width: 1, height: 1 },
            rested: true,
            timing: StepTiming::default(),
            calls: Vec::new(),
            told: None,
            unreadable: Vec::new(),
            round: None,
            stirred: Vec::new(),
        }
    }

    /// A model at an endpoint, with a price or without.
    fn gateway(priced: bool) -> GatewayPlan {
        let price = ModelPrice {
            vendor: "own".to_owned(),
            model: "model".to_owned(),
            rate: Rate::Time { hour: Money::ZERO },
            image: ImageRule::Fixed { tokens: 1 },
            context: 1,
            max_output: 1,
            services: Vec::new(),
        };
        let endpoint = EndpointPlan {
            name: "vendor".to_owned(),
            protocol: Protocol::OpenAi,
            vendor: "own".to_owned(),
            urls: Vec::new(),
            secret: None,
            limits: RateLimits::default(),
            model_limits: Vec::new(),
            call_limit: Millis(1),
            retries: 0,
            relay: false,
            replicas_file: None,
        };
        GatewayPlan {
            endpoints: vec![endpoint],
            prices: if priced { vec![price] } else { Vec::new() },
            ..GatewayPlan::default()
        }
    }

    #[test]
    fn each_settlement_is_a_state_and_a_score_that_is_no_number_is_none() {
        let verdict = |score| {
            Settlement::Verdict(Verdict {
                passed: false,
                score,
                feedback: "why".to_owned(),
                details: Value::Null,
                ended_by: EndedBy::Steps,
                parts: None,
            })
        };
        let (found, why) = state(Some(&verdict(40.0)));
        let expected = State::Verdict { passed: false, score: Some(40.0), ended_by: EndedBy::Steps };
        assert_eq!((found, why.as_str()), (expected, "why"));
        assert_eq!(state(Some(&verdict(f64::NAN))).0.score(), None);
        assert_eq!(state(None).0, State::Unsettled);
        let fault =
            longhaul_core::outcome::Fault { class: FaultClass::Memory, message: "too much".to_owned(), log_tail: None };
        assert_eq!(state(Some(&Settlement::Faulted(fault))).0, State::Faulted { class: FaultClass::Memory });
    }

    #[test]
    fn steps_that_asked_for_something_and_changed_nothing_are_stalls() {
        let steps = [step(0, b"a", 0), step(1, b"a", 2), step(2, b"b", 1), step(3, b"b", 0), step(4, b"b", 1)];
        assert_eq!((stalls(&steps), actions(&steps)), (2, 4));
    }

    #[test]
    fn rounds_of_a_verdict_are_rows_whose_steps_are_the_agents() {
        let played = |last_step| Played { last_step, reading: Some(json!({"x": 1})), ..Played::default() };
        let round = json!({"kind": "open", "goal": "g", "read": "r", "assertions": [
            {"id": "a", "aspect": "business", "says": "s", "check": {"reading": {"at": "/x", "test": {"equals": 1}}}}]});
        let plan: RoundsPlan =
            serde_json::from_value(json!({"rounds": [round.clone(), round.clone(), round]})).unwrap();
        let results = longhaul_core::rounds::results(&plan, &[played(Some(2)), played(Some(4))], &BTreeMap::new());
        let parts = VerdictParts { decided_by: Scorer::Rounds, program: None, checklist: None, rounds: results };
        let verdict = Settlement::Verdict(Verdict {
            passed: false,
            score: 67.0,
            feedback: String::new(),
            details: Value::Null,
            ended_by: EndedBy::Steps,
            parts: Some(Box::new(parts)),
        });
        // The third step opens the second round.
        let mut steps: Vec<_> = (0..5).map(|number| step(number, b"s", 1)).collect();
        steps[3].answer = None;
        let rows = rounds(Some(&verdict), &steps);
        let last: Vec<_> = rows.iter().map(|row| (row.number, row.last_step, row.passed())).collect();
        assert_eq!(last, [(1, Some(2), true), (2, Some(3), true), (3, None, false)]);
        let course: Vec<_> = progress(&steps, &[call(4, 5, Purpose::Agent)], true)
            .iter()
            .map(|point| (point.step, point.dollars.map(Money::nanos)))
            .collect();
        assert_eq!(course, [(1, Some(0)), (2, Some(0)), (3, Some(5))]);
    }

    #[test]
    fn the_course_adds_up_what_each_step_cost_and_leaves_out_the_judge() {
        let steps = [step(0, b"a", 0), step(1, b"b", 1), step(2, b"c", 1)];
        let calls = [
            call(1, 5, Purpose::Agent),
            call(2, 7, Purpose::Agent),
            call(2, 1, Purpose::Audit),
            call(2, 90, Purpose::Judge),
        ];
        let course = progress(&steps, &calls, true);
        let spent: Vec<_> = course.iter().map(|point| (point.step, point.dollars.map(Money::nanos))).collect();
        assert_eq!(spent, [(1, Some(5)), (2, Some(13))]);
        assert_eq!(progress(&steps, &calls, false)[1].dollars, None);
    }

    #[test]
    fn what_was_paid_is_known_only_with_a_price() {
        let frozen = |priced| Frozen { gateway: Some(Arc::new(gateway(priced))), ..Frozen::default() };
        let paid = Spent::of(&[call(1, 5, Purpose::Agent), call(2, 3, Purpose::Judge)], &frozen(false));
        assert_eq!((paid.dollars, paid.judge), (Some(Money::from_nanos(5)), Some(Money::from_nanos(3))));
        assert_eq!(paid.tokens.map(|usage| usage.tokens()), Some(15));
        let free = [call(1, 0, Purpose::Agent)];
        assert_eq!(Spent::of(&free, &frozen(false)).dollars, None, "a model without a price did not cost nothing");
        assert_eq!(Spent::of(&free, &frozen(true)).dollars, Some(Money::ZERO));
        assert_eq!(Spent::of(&[], &Frozen::default()).dollars, None, "nothing is known of it");
    }

    fn frozen(agent: AgentPlan, max_cost: u64) -> Frozen {
        let budget =
            EpisodeBudget { max_cost: Some(Money::from_dollars(max_cost)), ..EpisodeBudget::of(500, Millis(1)) };
        let episode = EpisodePlan {
            task: Digest::of(b"task"),
            agent,
            sample: 0,
            budget,
            seed: 0,
            gateway: None,
            audit: None,
            stall: StallPolicy::default(),
            judge: None,
            snapshots: longhaul_core::snapshot::SnapshotPolicy::OFF,
        };
        let mut plan = gateway(true);
        // A call of at most an hour, for two dollars.
        plan.prices[0].rate = Rate::Time { hour: Money::from_dollars(2) };
        plan.endpoints[0].call_limit = Millis(3_600_000);
        Frozen { episode: Some(episode), gateway: Some(Arc::new(plan)), ..Frozen::default() }
    }

    #[test]
    fn what_a_program_calls_beside_the_gateway_is_not_known_to_have_cost_nothing() {
        let external = |net| {
            let plan = json!({"command": ["agent"], "endpoints": [], "answer_limit": 1, "net": net});
            frozen(AgentPlan::External(serde_json::from_value(plan).unwrap()), 5)
        };
        let audit = [call(1, 5, Purpose::Audit)];
        assert_eq!(Spent::of(&audit, &external(false)).dollars, Some(Money::from_nanos(5)));
        assert_eq!(Spent::of(&[], &external(false)).dollars, Some(Money::ZERO));
        let beside = Spent::of(&audit, &external(true));
        assert_eq!((beside.dollars, beside.tokens), (None, None));
    }

    #[test]
    fn a_cap_with_room_for_another_call_is_not_what_ended_an_episode() {
        let plan = json!({
            "harness": "tools", "endpoint": "vendor", "model": "model", "max_output": 1, "keep_images": 1,
        });
        let frozen = frozen(AgentPlan::Model(serde_json::from_value(plan).unwrap()), 5);
        let cap = |ended_by, dollars| {
            let verdict = Verdict {
                passed: false,
                score: 0.0,
                feedback: String::new(),
                details: Value::Null,
                ended_by,
                parts: None,
            };
            let spent = Some(Money::from_dollars(dollars));
            caps(Some(&Settlement::Verdict(verdict)), &frozen, spent).unwrap().max_cost
        };
        assert_eq!(cap(EndedBy::Budget, 3), None, "the run's money ended it");
        assert_eq!(cap(EndedBy::Budget, 4), Some(Money::from_dollars(5)));
        assert_eq!(cap(EndedBy::Steps, 3), Some(Money::from_dollars(5)));
    }

    #[test]
    fn a_word_of_the_spec_is_a_text_that_says_something() {
        let spec = json!({"difficulty": " hard ", "metadata": {"family": "", "n": 1}});
        assert_eq!(word(&spec, &["difficulty"]).as_deref(), Some("hard"));
        assert_eq!((word(&spec, &["metadata", "family"]), word(&spec, &["metadata", "n"])), (None, None));
    }
}

//! Rows for tests.

use std::collections::BTreeSet;

use super::{Aspect, AssertionRow, RoundError, RoundKind, RoundRow, Row, State};
use crate::money::Money;
use crate::outcome::{EndedBy, FaultClass};
use crate::time::Millis;

/// A failed episode of ten steps and a dollar.
pub(super) fn row(agent: &str, task: &str) -> Row {
    Row {
        run: "r".to_owned(),
        episode: format!("r/{agent}/{task}"),
        task: task.parse().expect("a task of a test is ENV/TASK"),
        splits: BTreeSet::new(),
        difficulty: None,
        family: None,
        agent: agent.to_owned(),
        sample: 0,
        state: State::Verdict { passed: false, score: Some(0.0), ended_by: EndedBy::Agent },
        caps: None,
        steps: 10,
        actions: 12,
        tokens: None,
        dollars: Some(Money::from_dollars(1)),
        unconfirmed: Money::ZERO,
        judge_dollars: None,
        time: Some(Millis(60_000)),
        node_time: None,
        stalls: Some(2),
        resumed: false,
        attempts: 1,
        rounds: Vec::new(),
        progress: Vec::new(),
    }
}

pub(super) fn verdict(agent: &str, task: &str, passed: bool, score: f64, ended_by: EndedBy) -> Row {
    Row { state: State::Verdict { passed, score: Some(score), ended_by }, ..row(agent, task) }
}

pub(super) fn passed(agent: &str, task: &str) -> Row {
    verdict(agent, task, true, 100.0, EndedBy::Agent)
}

pub(super) fn failed(agent: &str, task: &str) -> Row {
    row(agent, task)
}

pub(super) fn scored(agent: &str, task: &str, score: f64) -> Row {
    verdict(agent, task, false, score, EndedBy::Agent)
}

pub(super) fn faulted(agent: &str, task: &str) -> Row {
    Row { state: State::Faulted { class: FaultClass::WorkerLost }, ..row(agent, task) }
}

/// A round by what its checks look at and whether they hold.
pub(super) fn round(kind: RoundKind, checks: &[(Aspect, bool)]) -> RoundRow {
    let assertions = checks.iter().enumerate();
    RoundRow {
        number: 1,
        kind,
        error: None,
        last_step: None,
        assertions: assertions
            .map(|(index, (aspect, passed))| AssertionRow { id: format!("c{index}"), aspect: *aspect, passed: *passed })
            .collect(),
    }
}

/// A round that broke: its checks failed.
pub(super) fn broken(kind: RoundKind, error: RoundError, aspects: &[Aspect]) -> RoundRow {
    let checks: Vec<_> = aspects.iter().map(|aspect| (*aspect, false)).collect();
    RoundRow { error: Some(error), ..round(kind, &checks) }
}

/// An episode by its rounds; passed if all hold.
pub(super) fn with_rounds(agent: &str, task: &str, rounds: Vec<RoundRow>) -> Row {
    let holds = rounds.iter().all(RoundRow::passed);
    let rounds = rounds.into_iter().zip(1..).map(|(round, number)| RoundRow { number, ..round }).collect();
    Row { rounds, ..verdict(agent, task, holds, if holds { 100.0 } else { 0.0 }, EndedBy::Agent) }
}

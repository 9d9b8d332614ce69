//! The desk over a played session: what is asked, told and heard.

use longhaul_core::ids::{AttemptId, EpisodeId, Epoch, RunId};
use longhaul_core::time::Timestamp;
use tokio::sync::mpsc;

use super::*;
use crate::session::Uplink;

const PURSE: PurseKind = PurseKind::Episode;

fn lease() -> LeaseRef {
    let episode = EpisodeId { run: RunId::new(Timestamp(1), 1), index: 0 };
    LeaseRef { attempt: AttemptId { episode, number: 1 }, epoch: Epoch(1) }
}

const fn nanos(amount: u64) -> Money {
    Money::from_nanos(amount)
}

const fn state(granted: u64, settled: u64, returned: u64) -> PurseState {
    PurseState {
        granted: nanos(granted),
        settled: nanos(settled),
        returned: nanos(returned),
        unconfirmed: Money::ZERO,
        overshoot: Money::ZERO,
    }
}

struct World {
    link: watch::Sender<Option<Uplink>>,
    desk: EscrowDesk,
    queue: mpsc::Receiver<v1::FromWorker>,
    generation: u64,
}

impl World {
    fn new() -> Self {
        let (link, receiver) = watch::channel(None);
        let (_, queue) = mpsc::channel(1);
        Self { link, desk: EscrowDesk::new(receiver), queue, generation: 0 }
    }

    /// Opens a session, in place of the one before.
    fn connect(&mut self) {
        let (bulk, queue) = mpsc::channel(16);
        self.queue = queue;
        self.generation += 1;
        self.link.send_replace(Some(Uplink { generation: self.generation, bulk }));
        self.desk.hand_over();
    }

    /// What was sent, in one word and the sums that it carries.
    fn sent(&mut self) -> Vec<(&'static str, PurseState)> {
        let mut all = Vec::new();
        while let Ok(message) = self.queue.try_recv() {
            let (word, state) = match message.message.unwrap() {
                Message::EscrowRequest(request) => ("ask", request.state),
                Message::EscrowReport(report) if report.closed => ("closed", report.state),
                Message::EscrowReport(report) => ("report", report.state),
                other => panic!("{other:?}"),
            };
            all.push((word, convert::purse_state(&state.unwrap()).unwrap().1));
        }
        all
    }

    fn answer(&self, granted: u64, rest: Option<v1::escrow_answer::Rest>) {
        let answer = v1::EscrowAnswer {
            attempt: Some(lease().into()),
            purse: v1::Purse::Episode.into(),
            granted_nanos: granted,
            rest,
        };
        self.desk.answered(&answer).unwrap();
    }

    fn ask(&self, known: PurseState) -> tokio::task::JoinHandle<Result<Money, Refused>> {
        let desk = self.desk.clone();
        let wanted = known.granted.saturating_add(nanos(10));
        tokio::spawn(async move { desk.more(lease(), PURSE, known, wanted, nanos(10)).await })
    }

    async fn settle(&self) {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_question_is_repeated_in_every_session_until_it_is_answered() {
    let mut world = World::new();
    let asked = world.ask(state(0, 0, 0));
    world.settle().await;
    world.connect();
    assert_eq!(world.sent(), [("ask", state(0, 0, 0))]);
    world.desk.hand_over();
    assert_eq!(world.sent(), [], "once in a session");
    world.connect();
    assert_eq!(world.sent(), [("ask", state(0, 0, 0))]);
    world.answer(0, Some(v1::escrow_answer::Rest::Wait(v1::Empty {})));
    world.settle().await;
    assert!(!asked.is_finished());
    world.answer(10, None);
    assert_eq!(asked.await.unwrap(), Ok(nanos(10)));
    world.connect();
    assert_eq!(world.sent(), [], "it was answered");
}

#[tokio::test]
async fn a_refusal_reaches_who_asked() {
    let mut world = World::new();
    world.connect();
    let asked = world.ask(state(20, 15, 0));
    world.settle().await;
    let Some(Message::EscrowRequest(request)) = world.queue.try_recv().unwrap().message else { panic!("no question") };
    assert_eq!((request.wanted_nanos, request.bound_nanos), (30, 25), "the bound is what is settled and the call");
    world.answer(20, Some(v1::escrow_answer::Rest::Refused("run: all is spent".to_owned())));
    assert_eq!(asked.await.unwrap(), Err(Refused { scope: "run: all is spent".to_owned() }));
}

#[tokio::test]
async fn what_is_granted_to_a_question_that_was_withdrawn_is_given_back_and_the_purse_never_hears_of_it() {
    let mut world = World::new();
    world.connect();
    let asked = world.ask(state(0, 0, 0));
    world.settle().await;
    asked.abort();
    assert!(asked.await.unwrap_err().is_cancelled());
    world.answer(50, None);
    world.sent();
    let recall = v1::EscrowRecall { attempt: Some(lease().into()), purse: v1::Purse::Episode.into() };
    world.desk.recall(&recall).unwrap();
    assert_eq!(world.sent(), [("report", state(50, 0, 50))]);
    // The next question is about the purse's own sums, and what follows adds up for both.
    let asked = world.ask(state(0, 0, 0));
    world.settle().await;
    assert_eq!(world.sent(), [("ask", state(50, 0, 50))]);
    world.answer(60, None);
    assert_eq!(asked.await.unwrap(), Ok(nanos(10)));
    let closed = world.desk.closed(lease(), &[(PURSE, state(10, 7, 3))]);
    assert_eq!(closed, [(PURSE, state(60, 7, 53))]);
}

#[tokio::test]
async fn a_grant_that_nobody_waits_for_any_more_is_told_to_the_next_question_at_once() {
    let mut world = World::new();
    world.connect();
    let asked = world.ask(state(0, 0, 0));
    world.settle().await;
    asked.abort();
    world.settle().await;
    world.answer(50, None);
    assert_eq!(world.ask(state(0, 0, 0)).await.unwrap(), Ok(nanos(50)));
    let recall = v1::EscrowRecall { attempt: Some(lease().into()), purse: v1::Purse::Episode.into() };
    world.sent();
    world.desk.recall(&recall).unwrap();
    assert_eq!(world.sent(), [], "it is the purse's now");
}

#[tokio::test]
async fn what_calls_cost_waits_for_a_heartbeat_and_what_is_given_back_does_not() {
    let mut world = World::new();
    world.connect();
    world.desk.report(lease(), PURSE, state(50, 10, 0));
    world.desk.report(lease(), PURSE, state(50, 20, 0));
    assert_eq!(world.sent(), []);
    world.desk.report(lease(), PURSE, state(50, 20, 30));
    assert_eq!(world.sent(), [("report", state(50, 20, 30))]);
    world.desk.report(lease(), PURSE, state(60, 25, 30));
    world.desk.before_heartbeat(1);
    assert_eq!(world.sent(), [("report", state(60, 25, 30))], "the last one counts");
}

#[tokio::test]
async fn a_report_is_repeated_in_every_session_until_a_heartbeat_after_it_is_answered() {
    let mut world = World::new();
    world.connect();
    world.desk.report(lease(), PURSE, state(50, 10, 0));
    world.desk.before_heartbeat(1);
    assert_eq!(world.sent().len(), 1);
    // It was still in the queue: that heartbeat may have overtaken it.
    world.desk.heartbeat_answered(1);
    world.connect();
    world.desk.before_heartbeat(1);
    assert_eq!(world.sent().len(), 1);
    world.desk.before_heartbeat(2);
    world.desk.heartbeat_answered(2);
    world.connect();
    world.desk.before_heartbeat(1);
    assert_eq!(world.sent(), [], "it was heard");
}

#[tokio::test]
async fn a_recall_that_comes_before_anybody_listens_is_not_lost() {
    let mut world = World::new();
    world.connect();
    world.desk.report(lease(), PURSE, state(50, 10, 0));
    let recall = v1::EscrowRecall { attempt: Some(lease().into()), purse: v1::Purse::Episode.into() };
    world.desk.recall(&recall).unwrap();
    world.desk.recalled(lease(), PURSE).await;
}

//! Calls of an earlier attempt, answered again: the same bytes, no vendor, no money.

use http_body_util::BodyExt as _;
use longhaul_gateway::{CallError, PastCall, Surface};

use crate::common::{Memory, Setup, World, call, until};
use crate::serving::{Served, messages, serve, streams};
use crate::standin::{Fault, Standin};

/// What the attempt of this journal asked in its first step, which is kept, for another one.
fn past(journal: &Memory) -> Vec<PastCall> {
    let records = journal.records().into_iter();
    let body = |response| journal.body(response);
    records
        .map(|record| {
            let body = record.response.map(body).unwrap_or_default().into();
            PastCall { attempt: 0, end: 2, body, record }
        })
        .collect()
}

/// Follows what that one did; the next step is the first live one.
fn follow(world: &World, journal: &Memory) {
    world.account.follow(past(journal), 2);
    world.account.set_step(1);
}

fn paid_nothing(world: &World, vendor: &Standin) {
    assert!(vendor.calls().is_empty(), "the vendor was asked");
    assert!(world.journal.reserved.lock().unwrap().is_empty() && world.journal.records().is_empty());
    assert_eq!(*world.bank.asked.lock().unwrap(), 0);
    assert!(world.account.take_numbers().is_empty());
}

async fn two() -> (Served, Served, Standin, Standin) {
    let (first, second) = (Standin::start().await, Standin::start().await);
    let (one, other) = (serve(Setup::at(&[first.url()])).await, serve(Setup::at(&[second.url()])).await);
    one.world.account.set_step(1);
    (one, other, first, second)
}

#[tokio::test]
async fn every_form_of_answer_is_given_again_byte_by_byte_and_then_life_goes_on() {
    let (one, other, _first, vendor) = two().await;
    let mut seen = Vec::new();
    for (path, body) in streams() {
        seen.push(one.post(path, &body).await);
    }
    seen.push(one.post("/anthropic/v1/messages", &messages(false)).await);
    let own = one.world.account.call(call(Surface::Responses)).await.unwrap();
    follow(&other.world, &one.world.journal);
    for ((path, body), seen) in streams().into_iter().zip(&seen) {
        let response = other.begin(path, &body).await;
        assert_eq!(response.headers()["content-type"], "text/event-stream", "{path}");
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), seen.1, "{path}");
    }
    assert_eq!(other.post("/anthropic/v1/messages", &messages(false)).await, seen[4]);
    assert_eq!(other.world.account.call(call(Surface::Responses)).await.unwrap(), own);
    paid_nothing(&other.world, &vendor);
    let replayed = other.world.account.replayed();
    assert_eq!((replayed.answered, replayed.differing, replayed.missing), (6, 0, None));
    assert_eq!(other.world.account.tokens(), one.world.account.tokens());

    // What the record does not hold is no call in its steps, and one in life.
    let missing = other.world.account.call(call(Surface::Messages)).await;
    assert!(matches!(missing, Err(CallError::NotRecorded { step: 1 })), "{missing:?}");
    assert!(other.world.account.replayed().missing.is_some());
    other.world.account.is_live();
    other.world.account.set_step(2);
    let live = other.world.account.call(call(Surface::Messages)).await.unwrap();
    assert_eq!((live.number, vendor.calls().len()), (0, 1), "its own calls are numbered from 0");
    assert_eq!(other.world.account.take_numbers(), [0]);
}

#[tokio::test]
async fn failures_that_a_client_saw_are_seen_again() {
    let (one, other, first, vendor) = two().await;
    let path = "/anthropic/v1/messages";
    // Tried three times in vain, refused, and broken off in the middle of a stream.
    for _ in 0..3 {
        first.fault(Fault::Close);
    }
    let failed = one.post(path, &messages(false)).await;
    first.fault(Fault::Status(400, Vec::new(), "{\"error\":{\"message\":\"never\"}}".to_owned()));
    let refused = one.post(path, &messages(false)).await;
    first.fault(Fault::Break);
    let broken = one.begin(path, &messages(true)).await.into_body().collect().await.map(|_| ());
    assert_eq!((failed.0 >= 500, refused.0, broken.is_err()), (true, 400, true));
    until("it is settled", || one.world.journal.records().len() == 5).await;
    follow(&other.world, &one.world.journal);
    assert_eq!(other.post(path, &messages(false)).await, failed);
    assert_eq!(other.post(path, &messages(false)).await, refused);
    let response = other.begin(path, &messages(true)).await;
    assert!(response.into_body().collect().await.is_err(), "it breaks off again");
    paid_nothing(&other.world, &vendor);
    assert_eq!(other.world.account.replayed().answered, 3);
}

#[tokio::test]
async fn nothing_is_answered_without_the_right_to_call() {
    let (one, other, _first, vendor) = two().await;
    let seen = one.world.account.call(call(Surface::Messages)).await.unwrap();
    follow(&other.world, &one.world.journal);
    other.world.journal.shut.send_replace(true);
    let calling = other.world.calling(Surface::Messages);
    until("it waits", || !other.world.account.paused().is_zero()).await;
    assert!(!calling.is_finished());
    other.world.journal.shut.send_replace(false);
    assert_eq!(calling.await.unwrap().unwrap(), seen);
    paid_nothing(&other.world, &vendor);
}

#[tokio::test]
async fn tokens_are_counted_over_all_attempts() {
    let first = Standin::start().await;
    let one = Setup::at(&[first.url()]).open();
    one.account.set_step(1);
    one.account.call(call(Surface::Messages)).await.unwrap();
    let used = one.account.tokens();
    let other = Setup { max_tokens: Some(used), ..Setup::at(&[first.url()]) }.open();
    follow(&other, &one.journal);
    other.account.call(call(Surface::Messages)).await.unwrap();
    other.account.set_step(2);
    let spent = other.account.call(call(Surface::Messages)).await;
    assert!(matches!(spent, Err(CallError::Tokens { used: found, .. }) if found == used), "{spent:?}");
    assert_eq!(first.calls().len(), 1);
}

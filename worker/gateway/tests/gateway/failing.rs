//! Vendors that fail: what is tried again, what it costs, and what is waited for.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_core::call::Certainty;
use longhaul_core::time::Millis;
use longhaul_gateway::ports::{Secret, Secrets, SystemClock};
use longhaul_gateway::{CallError, Gateway, GatewayConfig, Opening, Surface};
use tokio::time::Instant;

use crate::common::{CappedBank, KEY, Memory, Setup, TOKEN, World, call, plan, until};
use crate::standin::{Fault, Standin};

fn status(code: u16) -> Fault {
    Fault::Status(code, Vec::new(), r#"{"error":{"message":"try later"}}"#.to_owned())
}

#[tokio::test]
async fn failures_in_passing_are_tried_again_each_with_a_reservation() {
    let vendor = Standin::start().await;
    let world = Setup::at(&[vendor.url()]).open();
    for surface in Surface::ALL {
        vendor.fault(status(503));
        vendor.fault(status(529));
        world.account.call(call(surface)).await.unwrap();
    }
    let records = world.journal.records();
    assert_eq!(records.len(), 12);
    assert_eq!(world.journal.reserved.lock().unwrap().len(), 12);
    for three in records.chunks(3) {
        assert_eq!(
            three.iter().map(|record| record.certainty).collect::<Vec<_>>(),
            [Certainty::Released, Certainty::Released, Certainty::Reported]
        );
        let first = three[0].number;
        assert_eq!(
            three.iter().map(|record| record.retry_of).collect::<Vec<_>>(),
            [None, Some(first), Some(first + 1)]
        );
        assert!(three[0].error.as_ref().unwrap().contains("503: try later"));
    }
    assert_eq!(world.account.totals().settled.nanos(), vendor.billed());
}

#[tokio::test]
async fn retries_are_bounded_and_a_bad_request_is_never_tried_again() {
    let vendor = Standin::start().await;
    let world = Setup::at(&[vendor.url()]).open();
    vendor.fault(status(400));
    let error = world.account.call(call(Surface::Messages)).await.unwrap_err();
    assert!(matches!(error, CallError::Rejected { status: 400, ref body } if body == "try later"), "{error}");
    assert_eq!(vendor.calls().len(), 1);
    vendor.always(Some(status(429)));
    let error = world.account.call(call(Surface::Messages)).await.unwrap_err();
    assert!(matches!(error, CallError::Endpoint { down: false, .. }), "{error}");
    assert_eq!(vendor.calls().len(), 1 + 3, "two retries");
    assert_eq!(world.account.totals().settled.nanos(), 0);
}

#[tokio::test]
async fn a_wait_that_the_vendor_asks_for_is_kept_by_every_call() {
    let vendor = Standin::start().await;
    let world = Setup::at(&[vendor.url()]).open();
    vendor.fault(Fault::Status(429, vec![("retry-after", "1".to_owned())], "{}".to_owned()));
    let first = world.calling(Surface::Messages);
    until("the first call was refused", || !world.journal.settled.lock().unwrap().is_empty()).await;
    world.account.call(call(Surface::Messages)).await.unwrap();
    first.await.unwrap().unwrap();
    let calls = vendor.calls();
    assert_eq!(calls.len(), 3);
    for later in &calls[1..] {
        assert!(later.at.duration_since(calls[0].at) >= Duration::from_millis(950), "nobody came earlier");
    }
    assert!(world.account.paused() >= Duration::from_millis(900), "{:?}", world.account.paused());
}

#[tokio::test]
async fn what_may_have_been_billed_is_settled_whole() {
    let vendor = Standin::start().await;
    let mut setup = Setup::at(&[vendor.url()]);
    for endpoint in &mut setup.plan.endpoints {
        endpoint.call_limit = Millis(400);
    }
    let world = setup.open();
    for fault in [Fault::Hang, Fault::Close, Fault::Break] {
        vendor.fault(fault);
        world.account.call(call(Surface::Messages)).await.unwrap();
    }
    let records = world.journal.records();
    assert_eq!(records.len(), 6);
    for pair in records.chunks(2) {
        assert_eq!((pair[0].certainty, pair[0].settled), (Certainty::Unconfirmed, pair[0].reserved), "{:?}", pair[0]);
        assert_eq!(pair[1].certainty, Certainty::Reported);
    }
    assert!(world.account.totals().settled.nanos() >= vendor.billed());
}

#[tokio::test]
async fn what_may_have_been_billed_is_not_tried_for_ever() {
    let vendor = Standin::start().await;
    let mut setup = Setup::at(&[vendor.url()]);
    for endpoint in &mut setup.plan.endpoints {
        endpoint.call_limit = Millis(200);
    }
    let world = setup.open();
    vendor.always(Some(Fault::Hang));
    let error = world.account.call(call(Surface::Messages)).await.unwrap_err();
    assert!(matches!(error, CallError::Endpoint { .. }), "{error}");
    assert_eq!(vendor.calls().len(), 3);
}

#[tokio::test]
async fn an_endpoint_that_is_down_is_waited_for_with_the_clock_stopped() {
    let vendor = Standin::start().await;
    let address = vendor.address;
    drop(vendor);
    let world = Setup::at(&[format!("http://{address}")]).open();
    let callers: Vec<_> = (0..5).map(|_| world.calling(Surface::Messages)).collect();
    let word = |world: &World| world.gateway.words().into_iter().find(|word| word.endpoint == "anthropic");
    until("the endpoint is reported down", || word(&world).is_some_and(|word| word.down.is_some() && word.demand == 5))
        .await;
    assert!(!word(&world).unwrap().answered);
    let before = world.journal.records().len();
    tokio::time::sleep(Duration::from_millis(700)).await;
    let paused = world.account.paused();
    assert!(paused >= Duration::from_millis(600), "{paused:?}");
    assert_eq!(world.journal.records().len(), before, "waiting costs no reservation");
    let vendor = Standin::at(address).await;
    for caller in callers {
        caller.await.unwrap().unwrap();
    }
    let word = word(&world).unwrap();
    assert_eq!((word.down, word.answered, word.demand), (None, true, 0));
    assert!(world.journal.records().iter().all(|record| record.certainty != Certainty::Unconfirmed));
    assert_eq!(world.account.totals().settled.nanos(), vendor.billed());
}

#[tokio::test]
async fn an_endpoint_that_fails_long_is_tried_by_one_call_at_a_time() {
    let vendor = Standin::start().await;
    let world = Setup::at(&[vendor.url()]).open();
    vendor.always(Some(status(500)));
    let callers: Vec<_> = (0..8).map(|_| world.calling(Surface::Messages)).collect();
    until("it is down and probed", || vendor.state.lock().unwrap().probes >= 3).await;
    assert!(callers.iter().all(|caller| !caller.is_finished()), "nobody gives up");
    assert!(vendor.calls().len() <= 8 * 3, "while it is down, only what costs nothing is tried");
    vendor.always(None);
    for caller in callers {
        caller.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn an_endpoint_that_stays_down_fails_at_last() {
    let world = Setup {
        config: Box::new(|config| config.down_limit = Duration::from_millis(500)),
        ..Setup::at(&["http://127.0.0.1:1".to_owned()])
    }
    .open();
    let error = world.account.call(call(Surface::Messages)).await.unwrap_err();
    assert!(matches!(error, CallError::Endpoint { down: true, .. }), "{error}");
}

#[tokio::test]
async fn a_key_that_is_missing_or_refused_is_waited_for() {
    let vendor = Standin::start().await;
    KEY.clone_into(&mut vendor.state.lock().unwrap().key);
    let world = Setup::at(&[vendor.url()]).open();
    world.keys.0.lock().unwrap().clear();
    let calling = world.calling(Surface::Messages);
    let down = |world: &World| {
        let down = world.gateway.words().into_iter().find_map(|word| word.down);
        down.map(|down| down.why).unwrap_or_default()
    };
    until("the missing key is named", || down(&world).contains("`key` is not known")).await;
    world.keys.0.lock().unwrap().insert("key".to_owned(), "wrong".to_owned());
    until("the wrong key is named", || down(&world).contains("refuses the key")).await;
    world.keys.0.lock().unwrap().insert("key".to_owned(), KEY.to_owned());
    calling.await.unwrap().unwrap();
}

/// Keys that are not there, and when they were asked for.
#[derive(Debug)]
struct NoKeys(Mutex<Vec<Instant>>);

impl Secrets for NoKeys {
    fn get(&self, _: &str) -> Option<Secret> {
        self.0.lock().unwrap().push(Instant::now());
        None
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_missing_is_looked_for_soon_and_then_ever_more_seldom() {
    let keys = Arc::new(NoKeys(Mutex::default()));
    let mut config = GatewayConfig::new(Arc::new(SystemClock), 7);
    config.backoff = Duration::from_secs(1);
    let gateway = Gateway::new(config, Arc::<NoKeys>::clone(&keys)).unwrap();
    let account = gateway.open(Opening {
        plan: Arc::new(plan(&["http://127.0.0.1:1".to_owned()])),
        allowed: Vec::new(),
        capped: true,
        bank: CappedBank::new(10_000_000_000, 0),
        journal: Arc::new(Memory::default()),
        max_tokens: None,
        token: TOKEN.to_owned(),
    });
    let start = Instant::now();
    let waited = tokio::time::timeout(Duration::from_secs(10), account.call(call(Surface::Messages))).await;
    assert!(waited.is_err(), "it is waited for");
    let asked: Vec<_> = keys.0.lock().unwrap().iter().map(|at| at.duration_since(start).as_secs()).collect();
    assert_eq!(asked, [0, 1, 3, 7], "a wait is doubled once for each look");
}

#[tokio::test]
async fn replicas_share_the_calls_and_a_dead_one_is_left_out() {
    let vendors = [Standin::start().await, Standin::start().await, Standin::start().await];
    let urls: Vec<_> = vendors.iter().map(Standin::url).collect();
    let world = Setup::at(&urls).open();
    for vendor in &vendors {
        vendor.always(Some(Fault::Slow(Duration::from_millis(100))));
    }
    let calls = |count: usize| {
        let callers: Vec<_> = (0..count).map(|_| world.calling(Surface::ChatCompletions)).collect();
        async move {
            for caller in callers {
                caller.await.unwrap().unwrap();
            }
        }
    };
    calls(12).await;
    let counts: Vec<_> = vendors.iter().map(|vendor| vendor.calls().len()).collect();
    assert!(counts.iter().all(|count| (3..=5).contains(count)), "{counts:?}");
    let [first, second, third] = vendors;
    let address = third.address;
    drop(third);
    calls(12).await;
    assert_eq!(first.calls().len() + second.calls().len(), counts[0] + counts[1] + 12);
    let third = Standin::at(address).await;
    until("it is used again", || {
        world.calling(Surface::ChatCompletions);
        !third.calls().is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_replica_that_answers_and_cannot_serve_draws_no_calls() {
    let (sick, well) = (Standin::start().await, Standin::start().await);
    sick.always(Some(Fault::Status(500, Vec::new(), r#"{"error":{"message":"engine dead"}}"#.to_owned())));
    well.always(Some(Fault::Slow(Duration::from_millis(50))));
    let world = Setup::at(&[sick.url(), well.url()]).open();
    for _ in 0..10 {
        world.account.call(call(Surface::ChatCompletions)).await.unwrap();
    }
    assert_eq!(well.calls().len(), 10);
    assert!(sick.calls().len() < 10, "{} calls went to it", sick.calls().len());
}

#[tokio::test]
async fn the_end_of_an_attempt_waits_a_little_and_settles_the_rest_whole() {
    let vendor = Standin::start().await;
    let world = Setup {
        config: Box::new(|config| config.close_limit = Duration::from_millis(600)),
        ..Setup::at(&[vendor.url()])
    }
    .open();
    vendor.fault(Fault::Slow(Duration::from_millis(200)));
    vendor.fault(Fault::Hang);
    let callers: Vec<_> = (0..2).map(|_| world.calling(Surface::Messages)).collect();
    until("both are sent", || vendor.calls().len() == 2).await;
    let purses = world.account.close().await;
    let mut certain: Vec<_> = world.journal.records().iter().map(|record| record.certainty).collect();
    certain.sort_by_key(|certainty| format!("{certainty:?}"));
    assert_eq!(certain, [Certainty::Reported, Certainty::Unconfirmed]);
    let purse = purses[0].1;
    assert_eq!(purse.settled, world.account.totals().settled);
    assert!(purse.held().is_zero());
    let mut answers = Vec::new();
    for caller in callers {
        answers.push(caller.await.unwrap().is_ok());
    }
    answers.sort_unstable();
    assert_eq!(answers, [false, true]);
}

#[tokio::test]
async fn whoever_does_not_wait_for_an_answer_pays_for_it_all_the_same() {
    let vendor = Standin::start().await;
    let world = Setup::at(&[vendor.url()]).open();
    vendor.fault(Fault::Slow(Duration::from_millis(300)));
    let calling = world.calling(Surface::Messages);
    until("it is sent", || !vendor.calls().is_empty()).await;
    calling.abort();
    until("it is settled", || !world.journal.records().is_empty()).await;
    let record = &world.journal.records()[0];
    assert_eq!((record.certainty, record.settled.nanos()), (Certainty::Reported, vendor.billed()));
}

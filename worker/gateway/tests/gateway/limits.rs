//! Shares of an endpoint's limits, and money that is waited for.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_core::endpoint::{ModelLimits, RateLimits};
use longhaul_gateway::{EndpointShare, EndpointWord, Surface};

use crate::common::{Setup, World, call, until};
use crate::standin::{Fault, Standin};

async fn all(world: &World, count: usize) {
    let callers: Vec<_> = (0..count).map(|_| world.calling(Surface::Messages)).collect();
    for caller in callers {
        caller.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn no_more_calls_are_in_flight_than_the_share_allows() {
    let vendor = Standin::start().await;
    vendor.always(Some(Fault::Slow(Duration::from_millis(50))));
    let mut setup = Setup::at(&[vendor.url()]);
    for endpoint in &mut setup.plan.endpoints {
        endpoint.limits = RateLimits { concurrent: Some(2), ..RateLimits::default() };
    }
    let world = setup.open();
    all(&world, 8).await;
    assert_eq!(vendor.state.lock().unwrap().most_in_flight, 2, "the plan's limit holds until shares are known");
    let share = |concurrent| EndpointShare { endpoint: "anthropic".to_owned(), concurrent, ..EndpointShare::default() };
    world.gateway.set_shares(vec![share(Some(4))]);
    all(&world, 12).await;
    assert_eq!(vendor.state.lock().unwrap().most_in_flight, 4);
    world.gateway.set_shares(Vec::new());
    all(&world, 12).await;
    assert_eq!(vendor.state.lock().unwrap().most_in_flight, 12, "what is not named has no limit");
}

#[tokio::test]
async fn a_models_limits_hold_beside_those_of_its_endpoint() {
    let vendor = Standin::start().await;
    vendor.always(Some(Fault::Slow(Duration::from_millis(50))));
    let mut setup = Setup::at(&[vendor.url()]);
    let concurrent = |most| RateLimits { concurrent: Some(most), ..RateLimits::default() };
    for endpoint in &mut setup.plan.endpoints {
        endpoint.limits = concurrent(6);
        endpoint.model_limits = vec![ModelLimits { model: "model-*".to_owned(), limits: concurrent(2) }];
    }
    let world = setup.open();
    all(&world, 8).await;
    assert_eq!(vendor.state.lock().unwrap().most_in_flight, 2, "the plan's limits hold until shares are known");
    let share = |model: Option<&str>, most| EndpointShare {
        endpoint: "anthropic".to_owned(),
        model: model.map(str::to_owned),
        concurrent: Some(most),
        ..EndpointShare::default()
    };
    world.gateway.set_shares(vec![share(None, 9), share(Some("model-*"), 3)]);
    all(&world, 12).await;
    assert_eq!(vendor.state.lock().unwrap().most_in_flight, 3);
    world.gateway.set_shares(vec![share(None, 5), share(Some("model-*"), 9)]);
    vendor.always(Some(Fault::Slow(Duration::from_secs(1))));
    let callers: Vec<_> = (0..8).map(|_| world.calling(Surface::Messages)).collect();
    until("all of them ask", || word(&world).demand == 8).await;
    assert_eq!(word(&world).models, BTreeMap::from([("model-*".to_owned(), 8)]), "what it could use of each limit");
    for caller in callers {
        caller.await.unwrap().unwrap();
    }
    assert_eq!(vendor.state.lock().unwrap().most_in_flight, 5);
}

fn word(world: &World) -> EndpointWord {
    world.gateway.words().into_iter().find(|word| word.endpoint == "anthropic").unwrap()
}

#[tokio::test]
async fn a_rate_is_waited_for_with_the_clock_stopped() {
    let vendor = Standin::start().await;
    let world = Setup::at(&[vendor.url()]).open();
    world.gateway.set_shares(vec![EndpointShare {
        endpoint: "anthropic".to_owned(),
        requests_per_minute: Some(120),
        ..EndpointShare::default()
    }]);
    // A burst of 20, then two a second.
    all(&world, 23).await;
    let calls = vendor.calls();
    let took = calls[22].at.duration_since(calls[0].at);
    assert!(took >= Duration::from_millis(1_300), "{took:?}");
    assert!(world.account.paused() >= Duration::from_secs(1), "{:?}", world.account.paused());
}

#[tokio::test]
async fn what_others_find_down_is_tried_with_care() {
    let vendor = Standin::start().await;
    let world = Setup::at(&[vendor.url()]).open();
    world.account.call(call(Surface::Messages)).await.unwrap();
    let share = |down| EndpointShare { endpoint: "anthropic".to_owned(), down, ..EndpointShare::default() };
    world.gateway.set_shares(vec![share(true)]);
    assert_eq!(word(&world).down, None, "what is only heard is not said on");
    all(&world, 3).await;
    assert_eq!(vendor.state.lock().unwrap().probes, 1, "one asked, and then all could call");
}

#[tokio::test]
async fn a_call_waits_for_money_that_is_in_flight() {
    let vendor = Standin::start().await;
    let world = Setup { cap: 5_000_000, chunk: 0, ..Setup::at(&[vendor.url()]) }.open();
    vendor.fault(Fault::Slow(Duration::from_millis(500)));
    // The second does not fit beside the first, and may fit after it.
    all(&world, 2).await;
    assert!(world.account.paused() < Duration::from_millis(400), "one was served while the other waited");
    assert!(vendor.calls()[1].at.duration_since(vendor.calls()[0].at) >= Duration::from_millis(450));
    assert!(vendor.billed() <= 5_000_000);
}

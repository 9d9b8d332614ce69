//! Tiers of service: what is reserved for one, and what a call is settled by.

use longhaul_core::call::Certainty;
use longhaul_core::money::Money;
use longhaul_core::price::{Rate, Service, ServicePrice, Tier};
use longhaul_gateway::{CallError, Surface};
use serde_json::{Value, json};

use crate::common::{Setup, World, call, price, with_body};
use crate::standin::Standin;

/// A world whose table knows the prices of these tiers: halves for flex and batch, doubles for priority.
fn with_services(vendor: &Standin, services: &[Service]) -> World {
    let mut setup = Setup::at(&[vendor.url()]);
    let mut row = price();
    let Rate::Tokens { tiers } = &row.rate else { panic!("by the token") };
    let [usual] = tiers[..] else { panic!("one tier") };
    row.services = services
        .iter()
        .map(|service| {
            let (times, parts) = if *service == Service::Priority { (2, 1) } else { (1, 2) };
            let of = |money: Money| money.scaled_up(times, parts).unwrap();
            let tier = Tier {
                above: 0,
                input: of(usual.input),
                cache_write: of(usual.cache_write),
                cache_write_long: of(usual.cache_write_long),
                cache_read: of(usual.cache_read),
                output: of(usual.output),
            };
            ServicePrice { service: *service, tiers: vec![tier] }
        })
        .collect();
    setup.plan.prices = vec![row];
    setup.open()
}

fn chat(tier: &str) -> longhaul_gateway::ModelCall {
    let mut body = json!({ "messages": [{ "role": "user", "content": "What?" }], "max_tokens": 200 });
    if !tier.is_empty() {
        body["service_tier"] = json!(tier);
    }
    with_body("openai", Surface::ChatCompletions, body)
}

fn answers(vendor: &Standin, members: Value) {
    vendor.state.lock().unwrap().answers = [members].into();
}

#[tokio::test]
async fn a_call_is_settled_by_the_tier_that_served_it_and_reserved_by_the_dearest_that_may() {
    let vendor = Standin::start().await;
    let world = with_services(&vendor, &[Service::Flex, Service::Priority]);
    // What was asked for, what served it, and what that is of the usual price, in halves.
    let cases = [
        ("", None, 2, 2),
        ("flex", Some("flex"), 1, 2),
        ("flex", Some("default"), 2, 2),
        ("priority", Some("priority"), 4, 4),
        ("fast", Some("priority"), 4, 4),
        ("priority", Some("default"), 2, 4),
        ("", Some("batch"), 2, 2),
        ("default", Some("scale"), 2, 2),
    ];
    let mut usual = (0, 0);
    for (asked, served, settled_halves, reserved_halves) in cases {
        answers(&vendor, served.map_or_else(|| json!({}), |tier| json!({ "service_tier": tier })));
        let before = vendor.billed();
        world.account.call(chat(asked)).await.unwrap();
        let record = world.journal.records().pop().unwrap();
        let billed = vendor.billed() - before;
        if usual == (0, 0) {
            usual = (billed, record.reserved.nanos());
        }
        assert_eq!(record.settled.nanos() * 2, billed * settled_halves, "{asked} served as {served:?}");
        // A name that is sent is some tokens of the bound.
        assert!(record.reserved.nanos() * 2 >= usual.1 * reserved_halves, "{asked}: {record:?}");
        assert!(record.reserved.nanos() * 2 <= usual.1 * reserved_halves * 11 / 10, "{asked}: {record:?}");
        assert_eq!(record.certainty, Certainty::Reported, "{asked} served as {served:?}");
        let named = served.filter(|tier| !["default", "scale"].contains(tier));
        assert_eq!(record.service.as_deref(), named);
    }
}

#[tokio::test]
async fn a_tier_without_a_price_is_refused_under_a_cap_and_settled_whole_if_it_comes_unasked() {
    let vendor = Standin::start().await;
    let world = with_services(&vendor, &[]);
    for tier in ["priority", "fast", "ultrafast", "batch"] {
        let error = world.account.call(chat(tier)).await.unwrap_err();
        assert!(matches!(error, CallError::Unbounded { ref reason } if reason.contains(tier)), "{error}");
    }
    assert!(vendor.calls().is_empty());
    for tier in ["priority", "ultrafast"] {
        answers(&vendor, json!({ "service_tier": tier }));
        world.account.call(chat("")).await.unwrap();
        let record = world.journal.records().pop().unwrap();
        assert_eq!((record.certainty, record.settled), (Certainty::Unconfirmed, record.reserved));
        assert!(record.error.unwrap().contains(&format!("served as `{tier}`")));
    }
    // One that is cheaper is counted as usual.
    answers(&vendor, json!({ "service_tier": "flex" }));
    let before = vendor.billed();
    world.account.call(chat("flex")).await.unwrap();
    let record = world.journal.records().pop().unwrap();
    assert_eq!((record.certainty, record.settled.nanos()), (Certainty::Reported, vendor.billed() - before));
}

/// A vendor that speaks Anthropic's protocol and sells priority by the token.
#[tokio::test]
async fn priority_of_messages_that_has_a_price_is_reserved_and_settled_by_it() {
    let vendor = Standin::start().await;
    let usage = json!({ "input_tokens": 100, "output_tokens": 10, "service_tier": "priority" });
    answers(&vendor, json!({ "usage": usage }));
    for (services, times) in [(vec![Service::Priority], 2), (Vec::new(), 1)] {
        let world = with_services(&vendor, &services);
        world.account.call(call(Surface::Messages)).await.unwrap();
        let open = world.journal.records().pop().unwrap();
        let usual = 100 * 3_000 + 10 * 15_000;
        assert_eq!((open.settled.nanos(), open.certainty), (times * usual, Certainty::Reported));
        let mut standard = call(Surface::Messages);
        standard.body["service_tier"] = json!("standard_only");
        world.account.call(standard).await.unwrap();
        let standard = world.journal.records().pop().unwrap();
        let dearer = open.reserved > standard.reserved.scaled_up(3, 2).unwrap();
        assert_eq!(dearer, times == 2, "{} and {}: it may be served so", open.reserved, standard.reserved);
    }
}

#[tokio::test]
async fn each_vendor_says_it_in_its_own_place() {
    let vendor = Standin::start().await;
    let world = with_services(&vendor, &[Service::Batch, Service::Flex]);
    let half = |world: &World, billed: u64, tier: &str| {
        let record = world.journal.records().pop().unwrap();
        assert_eq!((record.settled.nanos() * 2, record.service.as_deref()), (billed, Some(tier)), "{record:?}");
    };
    // Anthropic: beside the usage, whole and in streams.
    let usage = json!({ "input_tokens": 100, "output_tokens": 10, "service_tier": "batch" });
    answers(&vendor, json!({ "usage": usage }));
    world.account.call(call(Surface::Messages)).await.unwrap();
    half(&world, 100 * 3_000 + 10 * 15_000, "batch");
    // Its priority is paid in advance, and counted by the token as usual.
    answers(&vendor, json!({ "usage": { "input_tokens": 100, "output_tokens": 10, "service_tier": "priority" } }));
    world.account.call(call(Surface::Messages)).await.unwrap();
    let record = world.journal.records().pop().unwrap();
    assert_eq!((record.settled.nanos(), record.certainty), (100 * 3_000 + 10 * 15_000, Certainty::Reported));
    // OpenAI: a member of the answer.
    answers(&vendor, json!({ "service_tier": "flex" }));
    let before = vendor.billed();
    world.account.call(call(Surface::Responses)).await.unwrap();
    half(&world, vendor.billed() - before, "flex");
    // Gemini: a header.
    answers(&vendor, json!({}));
    vendor.state.lock().unwrap().headers = vec![("x-gemini-service-tier", "flex".to_owned())];
    let before = vendor.billed();
    world.account.call(call(Surface::GenerateContent)).await.unwrap();
    half(&world, vendor.billed() - before, "flex");
}

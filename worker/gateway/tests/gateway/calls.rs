//! Calls of our own loops: bounded, settled by what the vendor says, recorded.

use longhaul_core::call::{Certainty, Purpose, PurseKind};
use longhaul_core::money::Money;
use longhaul_core::price::{Rate, Usage};
use longhaul_gateway::{CallError, ModelCall, Surface};
use serde_json::json;

use crate::common::{KEY, Setup, call, until, with_body};
use crate::standin::{Fault, Standin};

#[tokio::test]
async fn each_call_costs_what_the_vendor_bills_and_no_more_than_its_bound() {
    let vendor = Standin::start().await;
    {
        let mut state = vendor.state.lock().unwrap();
        state.cached = 9;
        KEY.clone_into(&mut state.key);
    }
    let world = Setup::at(&[vendor.url()]).open();
    for surface in Surface::ALL {
        world.account.set_step(3);
        let answer = world.account.call(call(surface)).await.unwrap();
        assert!(answer.body.to_string().contains("请点击"), "{surface:?}");
    }
    let records = world.journal.records();
    assert_eq!(records.len(), 4);
    let sum: Money = records.iter().map(|record| record.settled).sum();
    assert_eq!(sum.nanos(), vendor.billed(), "to the last unit");
    for record in &records {
        assert_eq!(record.certainty, Certainty::Reported);
        assert!(record.settled <= record.reserved, "{record:?}");
        assert_eq!((record.step, record.model.as_str()), (3, "model-a"));
        assert_eq!(record.model_reported.as_deref(), Some("model-a-2026"));
        assert_eq!(record.request_id.as_deref(), Some("req_standin"));
        let usage = record.usage.unwrap();
        assert!(usage.cache_read > 0 && usage.output == 40, "{usage:?}");
    }
    assert_eq!(world.account.take_numbers(), [0, 1, 2, 3]);
    assert_eq!(world.account.take_numbers(), [0_u32; 0]);
    assert_eq!((world.account.calls(), world.account.totals().settled), (4, sum));
    assert_eq!(*world.bank.asked.lock().unwrap(), 1, "one question for all of them");
    let purses = world.account.close().await;
    let episode = purses.iter().find(|(kind, _)| *kind == PurseKind::Episode).unwrap().1;
    assert_eq!((episode.settled, episode.held(), episode.unconfirmed), (sum, Money::ZERO, Money::ZERO));
    assert!(matches!(world.account.call(call(Surface::Messages)).await, Err(CallError::Closed)));
}

#[tokio::test]
async fn the_key_goes_to_the_vendor_and_into_no_record() {
    let vendor = Standin::start().await;
    KEY.clone_into(&mut vendor.state.lock().unwrap().key);
    let world = Setup::at(&[vendor.url()]).open();
    for surface in Surface::ALL {
        world.account.call(call(surface)).await.unwrap();
    }
    for (bytes, _) in world.journal.blobs.lock().unwrap().values() {
        assert!(!String::from_utf8_lossy(bytes).contains(KEY));
    }
    assert!(!format!("{:?}", world.account).contains(KEY));
    assert!(!format!("{:?}{:?}", world.gateway, world.journal).contains(KEY));
}

#[tokio::test]
async fn what_was_sent_and_came_is_recorded_byte_by_byte() {
    let vendor = Standin::start().await;
    let world = Setup::at(&[vendor.url()]).open();
    for surface in Surface::ALL {
        world.account.call(call(surface)).await.unwrap();
    }
    for (seen, record) in vendor.calls().iter().zip(world.journal.records()) {
        assert_eq!(seen.body, world.journal.body(record.request));
        let response = world.journal.body(record.response.unwrap());
        assert!(String::from_utf8(response).unwrap().contains("请点击"));
    }
}

#[tokio::test]
async fn a_history_is_stored_once_however_often_it_is_sent() {
    let vendor = Standin::start().await;
    let world = Setup::at(&[vendor.url()]).open();
    let mut messages = Vec::new();
    for step in 0..12 {
        let image = format!("iVBORw0KGgo{step:04}").repeat(3_000);
        messages.push(json!({ "role": "user", "content": [
            { "type": "text", "text": format!("step {step}") },
            { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": image } } ] }));
        messages.push(json!({ "role": "assistant", "content": "I click." }));
        let body = json!({ "messages": messages, "max_tokens": 100 });
        world.account.call(with_body("anthropic", Surface::Messages, body)).await.unwrap();
    }
    let blobs = world.journal.blobs.lock().unwrap();
    assert!(blobs.values().all(|(_, times)| *times == 1), "no blob is written twice");
    let stored: usize = blobs.values().map(|(bytes, _)| bytes.len()).sum();
    let sent: usize = vendor.calls().iter().map(|seen| seen.body.len()).sum();
    assert!(stored * 6 < sent, "{stored} bytes stored of {sent} sent");
    let named: usize = world.journal.records().iter().map(|record| record.parts.len()).sum();
    assert!(named <= blobs.len(), "each part is named by the call that brought it");
}

#[tokio::test]
async fn a_spent_budget_refuses_the_next_call_and_says_which() {
    let vendor = Standin::start().await;
    let world = Setup { cap: 4_000_000, chunk: 0, ..Setup::at(&[vendor.url()]) }.open();
    let mut answered = 0;
    let scope = loop {
        match world.account.call(call(Surface::Messages)).await {
            Ok(_) => answered += 1,
            Err(CallError::Budget { scope }) => break scope,
            Err(error) => panic!("{error}"),
        }
    };
    assert!(answered >= 1 && scope.contains("are spent"), "{answered} {scope}");
    assert!(vendor.billed() <= 4_000_000);
    assert_eq!(world.account.spent(), Some(scope));
    assert_eq!(vendor.calls().len(), answered);
}

#[tokio::test]
async fn a_round_that_has_spent_what_it_may_refuses_its_own_next_call_alone() {
    let vendor = Standin::start().await;
    let world = Setup::at(&[vendor.url()]).open();
    let account = &world.account;
    for _ in 0..2 {
        account.begin_round(Some(Money::from_nanos(4_000_000)));
        assert!(!account.round_spent());
        let (before, mut answered) = (vendor.billed(), 0);
        let scope = loop {
            match account.call(call(Surface::Messages)).await {
                Ok(_) => answered += 1,
                Err(CallError::Round { scope }) => break scope,
                Err(error) => panic!("{error}"),
            }
        };
        assert!(answered >= 1 && scope.starts_with("of the round: "), "{answered} {scope}");
        assert!(vendor.billed() - before <= 4_000_000 && account.round_spent());
    }
    assert_eq!(account.spent(), None, "the episode goes on");
    // Many at once hold it as one after the other do.
    account.begin_round(Some(Money::from_nanos(9_000_000)));
    let before = vendor.billed();
    let calls: Vec<_> = (0..8).map(|_| world.calling(Surface::Messages)).collect();
    let mut answered = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(_) => answered += 1,
            Err(error) => assert!(matches!(error, CallError::Round { .. }), "{error}"),
        }
    }
    assert!(answered >= 2 && vendor.billed() - before <= 9_000_000, "{answered}");
    // A judge is none of the round's business, and a round without a bound spends what there is.
    let mut judging = call(Surface::Messages);
    judging.purpose = Purpose::Judge;
    account.call(judging).await.unwrap();
    account.begin_round(None);
    account.call(call(Surface::Messages)).await.unwrap();
}

#[tokio::test]
async fn a_cap_of_nothing_refuses_the_first_call() {
    let vendor = Standin::start().await;
    let world = Setup { cap: 0, ..Setup::at(&[vendor.url()]) }.open();
    for surface in Surface::ALL {
        let error = world.account.call(call(surface)).await.unwrap_err();
        assert!(matches!(error, CallError::Budget { .. }), "{error}");
    }
    assert_eq!((vendor.calls().len(), world.account.calls()), (0, 0));
}

#[tokio::test]
async fn an_answer_is_shortened_to_fit_only_where_that_is_allowed() {
    let vendor = Standin::start().await;
    let mut setup = Setup { cap: 3_000_000, chunk: 0, ..Setup::at(&[vendor.url()]) };
    setup.plan.shorten = true;
    let world = setup.open();
    let mut answers = 0;
    let error = loop {
        match world.account.call(call(Surface::Messages)).await {
            Ok(answer) => assert_eq!(answer.shortened_to, Some(100), "200 do not fit, and 100 do"),
            Err(error) => break error,
        }
        answers += 1;
    };
    assert!(matches!(error, CallError::Budget { .. }), "nothing of use fits any more: {error}");
    assert!(answers >= 1 && vendor.billed() <= 3_000_000);
    assert_eq!(vendor.calls()[0].json()["max_tokens"], 100);
    let record = &world.journal.records()[0];
    assert_eq!(record.shortened_to, Some(100));
    assert!(record.reserved.nanos() <= 3_000_000);
    // Where it is not allowed, the call is refused as it is.
    let world = Setup { cap: 3_000_000, chunk: 0, ..Setup::at(&[vendor.url()]) }.open();
    let error = world.account.call(call(Surface::Messages)).await.unwrap_err();
    assert!(matches!(error, CallError::Budget { .. }), "{error}");
}

#[tokio::test]
async fn the_judge_pays_from_a_purse_of_its_own() {
    let vendor = Standin::start().await;
    let world = Setup::at(&[vendor.url()]).open();
    let mut judging = call(Surface::Messages);
    judging.purpose = Purpose::Judge;
    world.account.call(judging).await.unwrap();
    let purses = world.account.close().await;
    let settled = |kind| purses.iter().find(|(of, _)| *of == kind).unwrap().1.settled.nanos();
    assert_eq!((settled(PurseKind::Episode), settled(PurseKind::Judge)), (0, vendor.billed()));
}

#[tokio::test]
async fn a_judge_is_asked_after_the_episodes_tokens_are_spent_and_counted_apart() {
    let vendor = Standin::start().await;
    let world = Setup { max_tokens: Some(1), ..Setup::at(&[vendor.url()]) }.open();
    world.account.call(call(Surface::Messages)).await.unwrap();
    let error = world.account.call(call(Surface::Messages)).await.unwrap_err();
    assert!(matches!(error, CallError::Tokens { .. }), "{error}");
    let agent = world.account.totals();
    world.account.call(ModelCall { purpose: Purpose::Judge, ..call(Surface::Messages) }).await.unwrap();
    assert_eq!((world.account.totals(), world.account.judging().calls), (agent, 1));
    let sum = agent.settled.saturating_add(world.account.judging().settled);
    assert_eq!(sum.nanos(), vendor.billed());
}

#[tokio::test]
async fn the_token_budget_ends_calls() {
    let vendor = Standin::start().await;
    let world = Setup { max_tokens: Some(100), ..Setup::at(&[vendor.url()]) }.open();
    let mut calls = 0;
    let (used, most) = loop {
        match world.account.call(call(Surface::Messages)).await {
            Ok(_) => calls += 1,
            Err(CallError::Tokens { used, most }) => break (used, most),
            Err(error) => panic!("{error}"),
        }
    };
    assert!(calls >= 1 && used >= most && most == 100, "{calls} {used}");
}

#[tokio::test]
async fn a_vendor_that_exceeds_the_bound_is_settled_by_the_truth() {
    let vendor = Standin::start().await;
    let world = Setup::at(&[vendor.url()]).open();
    vendor.fault(Fault::Exceed(10));
    world.account.call(call(Surface::ChatCompletions)).await.unwrap();
    let record = &world.journal.records()[0];
    assert_eq!(record.settled.nanos(), vendor.billed());
    assert!(!record.overshoot().is_zero());
    assert_eq!(world.account.totals().overshoot, record.overshoot());
    let warnings = world.account.warnings();
    assert!(warnings.iter().any(|warning| warning.contains("more than its bound")), "{warnings:?}");
    let reported = world.bank.reported.lock().unwrap()[&PurseKind::Episode];
    assert_eq!(reported.settled, record.settled, "the scope hears of it at once");
}

#[tokio::test]
async fn an_answer_without_usage_is_settled_whole() {
    let vendor = Standin::start().await;
    let world = Setup::at(&[vendor.url()]).open();
    for surface in Surface::ALL {
        vendor.fault(Fault::NoUsage);
        world.account.call(call(surface)).await.unwrap();
    }
    for record in world.journal.records() {
        assert_eq!((record.certainty, record.settled), (Certainty::Unconfirmed, record.reserved));
        assert!(record.error.unwrap().contains("no usage"));
    }
    assert!(world.account.totals().settled.nanos() >= vendor.billed());
    assert_eq!(world.account.totals().unconfirmed, world.account.totals().settled);
}

#[tokio::test]
async fn hardware_of_ones_own_is_priced_by_the_time() {
    let vendor = Standin::start().await;
    let mut setup = Setup::at(&[vendor.url()]);
    setup.plan.prices[0].rate = Rate::Time { hour: Money::from_dollars(36) };
    let world = setup.open();
    vendor.fault(Fault::Slow(std::time::Duration::from_millis(300)));
    world.account.call(call(Surface::ChatCompletions)).await.unwrap();
    vendor.fault(Fault::NoUsage);
    world.account.call(call(Surface::ChatCompletions)).await.unwrap();
    for record in world.journal.records() {
        assert_eq!(record.certainty, Certainty::Reported);
        // 36 dollars an hour are ten thousand billionths a millisecond.
        assert_eq!(record.settled.nanos(), record.took.0 * 10_000, "{record:?}");
        assert_eq!(record.reserved.nanos(), 20_000 * 10_000, "the bound is the call's limit");
    }
    assert!(world.journal.records()[0].took.0 >= 300);
}

#[tokio::test]
async fn without_a_cap_what_cannot_be_bounded_passes_and_is_counted() {
    let vendor = Standin::start().await;
    let world = Setup { capped: false, ..Setup::at(&[vendor.url()]) }.open();
    let body = json!({ "input": "go on", "previous_response_id": "resp_0", "tools": [{ "type": "web_search" }] });
    world.account.call(with_body("openai", Surface::Responses, body)).await.unwrap();
    let sent = vendor.calls()[0].json();
    assert_eq!((&sent["previous_response_id"], &sent["store"]), (&json!("resp_0"), &json!(null)));
    let mut unpriced = call(Surface::ChatCompletions);
    unpriced.model = "unknown".to_owned();
    world.account.call(unpriced).await.unwrap();
    let records = world.journal.records();
    assert!(records[0].settled.nanos() > 0 && records[1].settled.is_zero());
    assert!(records.iter().all(|record| record.usage.is_some_and(|usage: Usage| usage.output == 40)));
}

#[tokio::test]
async fn a_model_that_changes_is_named() {
    let vendor = Standin::start().await;
    let world = Setup::at(&[vendor.url()]).open();
    for fingerprint in ["fp_1", "fp_1", "fp_2"] {
        fingerprint.clone_into(&mut vendor.state.lock().unwrap().fingerprint);
        world.account.call(call(Surface::ChatCompletions)).await.unwrap();
    }
    let warnings = world.account.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("`fp_1` to `fp_2` with call 2"), "{warnings:?}");
}

#[tokio::test]
async fn nothing_is_sent_that_cannot_be_written_down() {
    let vendor = Standin::start().await;
    let world = Setup::at(&[vendor.url()]).open();
    *world.journal.full.lock().unwrap() = true;
    let error = world.account.call(call(Surface::Messages)).await.unwrap_err();
    assert!(matches!(error, CallError::Journal(ref error) if error.disk), "{error}");
    assert_eq!((vendor.calls().len(), world.account.calls()), (0, 0));
    *world.journal.full.lock().unwrap() = false;
    world.account.call(call(Surface::Messages)).await.unwrap();
    assert_eq!(world.account.calls(), 1);
}

#[tokio::test]
async fn the_right_to_call_that_runs_out_in_a_wait_is_waited_for_too() {
    let vendor = Standin::start().await;
    let world = Setup::at(&[vendor.url()]).open();
    let key = world.keys.0.lock().unwrap().remove("key").unwrap();
    let calling = world.calling(Surface::Messages);
    until("it waits for its key", || world.gateway.words().iter().any(|word| word.down.is_some())).await;
    world.journal.shut.send_replace(true);
    world.keys.0.lock().unwrap().insert("key".to_owned(), key);
    until("the endpoint is there", || vendor.state.lock().unwrap().probes > 0).await;
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!((vendor.calls().len(), world.account.calls(), calling.is_finished()), (0, 0, false));
    world.journal.shut.send_replace(false);
    calling.await.unwrap().unwrap();
    assert_eq!(world.account.totals().settled.nanos(), vendor.billed());
    // The end of the attempt ends the wait.
    world.journal.shut.send_replace(true);
    let calling = world.calling(Surface::Messages);
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    world.account.close().await;
    assert!(matches!(calling.await.unwrap(), Err(CallError::Closed)));
}

#[tokio::test]
async fn an_answer_that_could_not_be_written_down_is_not_handed_out() {
    let vendor = Standin::start().await;
    let world = Setup::at(&[vendor.url()]).open();
    vendor.fault(Fault::Slow(std::time::Duration::from_millis(300)));
    let calling = world.calling(Surface::Messages);
    until("it is sent", || !vendor.calls().is_empty()).await;
    *world.journal.full.lock().unwrap() = true;
    assert!(matches!(calling.await.unwrap(), Err(CallError::Journal(_))));
    // It is paid all the same, and by as much as whoever finds it open in the journal says.
    let settled = world.account.close().await[0].1.settled;
    let reserved = world.journal.reserved.lock().unwrap()[0].bound;
    assert!(settled == reserved && settled.nanos() >= vendor.billed(), "{settled} of {reserved}");
}

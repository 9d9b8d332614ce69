//! Loops around models, from a lease to the end that the coordinator is told.

use longhaul_core::agent::{AgentPlan, AuditPlan, Harness, ModelAgent};
use longhaul_core::budget::StallPolicy;
use longhaul_core::call::Purpose;
use longhaul_core::endpoint::Protocol;
use longhaul_core::notes::StallNotes;
use longhaul_core::outcome::{EndedBy, FaultClass};
use longhaul_core::plan::EpisodePlan;
use serde_json::{Map, Value, json};

use super::scene::{Scene, Vendor};
use crate::agents::picture;

fn model(harness: Harness) -> ModelAgent {
    ModelAgent {
        harness,
        endpoint: "vendor".to_owned(),
        model: "m".to_owned(),
        max_output: 100,
        // The pictures of these sandboxes are none: they are not looked into.
        image: None,
        keep_images: 2,
        summarize_above: None,
        system: None,
        parameters: Map::new(),
    }
}

pub(super) fn plan(harness: Harness) -> AgentPlan {
    AgentPlan::Model(Box::new(model(harness)))
}

pub(super) const fn protocol(harness: Harness) -> Protocol {
    match harness {
        Harness::AnthropicComputer => Protocol::Anthropic,
        Harness::GeminiComputer => Protocol::Gemini,
        Harness::OpenaiComputer | Harness::Tools => Protocol::OpenAi,
    }
}

/// A response in which the model types, and says something.
pub(super) fn types(harness: Harness, text: &str) -> Value {
    match harness {
        Harness::AnthropicComputer => json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use",
            "content": [{"type": "text", "text": "I type."},
                        {"type": "tool_use", "id": "a", "name": "type", "input": {"text": text}}],
            "usage": {"input_tokens": 10, "output_tokens": 5},
        }),
        Harness::OpenaiComputer => json!({
            "id": "resp_1", "object": "response", "status": "completed", "model": "m",
            "output": [{"type": "computer_call", "id": "c", "call_id": "a", "status": "completed",
                        "pending_safety_checks": [], "actions": [{"type": "type", "text": text}]}],
            "usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
        }),
        Harness::GeminiComputer => json!({
            "candidates": [{"content": {"role": "model", "parts": [
                {"functionCall": {"name": "type", "args": {"text": text}}}]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15},
            "modelVersion": "m",
        }),
        Harness::Tools => json!({
            "id": "c", "object": "chat.completion", "model": "m",
            "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": null,
                "tool_calls": [{"id": "a", "type": "function",
                                "function": {"name": "type", "arguments": json!({"text": text}).to_string()}}]}}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }),
    }
}

/// A response in which it says that it is done.
pub(super) fn done(harness: Harness) -> Value {
    let mut response = types(harness, "");
    match harness {
        Harness::AnthropicComputer => {
            response["content"] = json!([{"type": "text", "text": "It is done."}]);
            response["stop_reason"] = json!("end_turn");
        }
        Harness::OpenaiComputer => {
            response["output"] = json!([{"type": "message", "id": "m", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "It is done.", "annotations": []}]}]);
        }
        Harness::GeminiComputer => {
            response["candidates"][0]["content"]["parts"] = json!([{"text": "It is done."}]);
        }
        Harness::Tools => {
            response["choices"][0]["message"]["tool_calls"][0]["function"] =
                json!({"name": "done", "arguments": "{\"text\": \"It is done.\"}"});
        }
    }
    response
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_loop_goes_from_its_first_observation_to_the_models_word() {
    let scene = Scene::start();
    for harness in Harness::ALL {
        let vendor = Vendor::with(vec![types(harness, "one"), types(harness, "two"), done(harness)]);
        let endpoints = vec![vendor.plan("vendor", protocol(harness))];
        let came = scene.run(plan(harness), endpoints, |_| {}).await;
        assert_eq!(came.ended_by(), EndedBy::Agent, "{}", harness.name());
        let actions: Vec<_> =
            came.steps.iter().filter_map(|step| step.answer.as_ref()).map(|answer| answer.actions.clone()).collect();
        let typed = |text: &str| vec![json!({"keyboard": {"text": text}})];
        assert_eq!(actions, [typed("one"), typed("two"), vec![]], "{}", harness.name());
        let last = came.steps[3].answer.as_ref().unwrap();
        assert_eq!((last.done, last.text.as_deref()), (true, Some("It is done.")));
        let numbers: Vec<_> = came.steps.iter().map(|step| step.calls.clone()).collect();
        assert_eq!(numbers, [vec![], vec![0], vec![1], vec![2]], "{}", harness.name());
        let steps: Vec<u32> = came.calls.iter().map(|call| call.step).collect();
        assert_eq!(steps, [1, 2, 3], "a call is part of the step that follows");
        assert_eq!((came.notes.calls.calls, came.notes.calls.usage.tokens()), (3, 45));
        // The screen that the model was shown is the one that was recorded.
        let requests = vendor.requests.lock().unwrap();
        for (step, (path, body)) in requests.iter().enumerate() {
            let png = scene.coordinator.desk.blobs.lock().unwrap()[&came.steps[step].screen.png].clone();
            assert!(body.to_string().contains(&*picture::encode(&png)), "{path} {step}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn budgets_end_an_episode_in_order_and_the_hooks_still_run() {
    let scene = Scene::start();
    let harness = Harness::Tools;
    let vendor = Vendor::with(vec![types(harness, "again")]);
    let endpoints = || vec![vendor.plan("vendor", protocol(harness))];
    let came = scene.run(plan(harness), endpoints(), |episode| episode.budget.max_steps = 3).await;
    assert_eq!((came.ended_by(), came.steps.len()), (EndedBy::Steps, 4));
    let came = scene.run(plan(harness), endpoints(), |episode| episode.budget.max_tokens = Some(30)).await;
    assert_eq!(came.ended_by(), EndedBy::Tokens);
    assert!(came.notes.calls.usage.tokens() <= 30, "{:?}", came.notes.calls);
    // A step is a turn of the model, however many actions it asks for.
    let mut turn = types(harness, "one");
    let calls = &mut turn["choices"][0]["message"]["tool_calls"];
    let second =
        json!({"id": "b", "type": "function", "function": {"name": "type", "arguments": "{\"text\": \"two\"}"}});
    calls.as_array_mut().unwrap().push(second);
    let vendor = Vendor::with(vec![turn]);
    let endpoints = vec![vendor.plan("vendor", protocol(harness))];
    let came = scene.run(plan(harness), endpoints, |episode| episode.budget.max_steps = 2).await;
    let actions: Vec<_> = came.steps.iter().filter_map(|step| Some(step.answer.as_ref()?.actions.len())).collect();
    assert_eq!((came.ended_by(), actions), (EndedBy::Steps, vec![2, 2]));
    assert_eq!(*scene.world.commands.lock().unwrap(), ["export", "export", "export"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_hangs_does_not_outlast_the_time() {
    let scene = Scene::start();
    let vendor = Vendor::start(|_| {
        std::thread::sleep(std::time::Duration::from_secs(8));
        (200, json!({}))
    });
    let endpoints = vec![vendor.plan("vendor", Protocol::OpenAi)];
    // Long enough that the call is made on a busy machine too.
    let came = scene.run(plan(Harness::Tools), endpoints, |episode| episode.budget.max_time.0 = 3_000).await;
    assert_eq!((came.ended_by(), came.steps.len()), (EndedBy::Time, 1));
    assert!(came.notes.acting_time.0 >= 3_000, "the turn that time ended counts: {:?}", came.notes);
    assert_eq!(came.notes.calls.calls, 1, "and so does its call, which was in flight");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_turn_counts_as_acting_time_whatever_ends_it() {
    let scene = Scene::start();
    scene.world.still.store(true, std::sync::atomic::Ordering::SeqCst);
    let harness = Harness::Tools;
    let answers = |last: u16| {
        let mut calls = 0;
        Vendor::start(move |_| {
            calls += 1;
            if calls == 1 {
                return (200, types(harness, "same"));
            }
            std::thread::sleep(std::time::Duration::from_millis(400));
            (last, types(harness, "same"))
        })
    };
    let vendor = answers(200);
    let stop = |episode: &mut EpisodePlan| episode.stall = StallPolicy::Stop { after: 1 };
    let came = scene.run(plan(harness), vec![vendor.plan("vendor", protocol(harness))], stop).await;
    assert_eq!(came.ended_by(), EndedBy::Stall);
    assert!(came.notes.acting_time.0 >= 400, "{:?}", came.notes);
    let vendor = answers(400);
    let came = scene.run(plan(harness), vec![vendor.plan("vendor", protocol(harness))], |_| {}).await;
    assert_eq!(came.fault().class, FaultClass::AgentCrashed);
    assert!(came.notes.acting_time.0 >= 400, "{:?}", came.notes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vendor_that_refuses_is_a_fault_of_whoever_is_to_blame() {
    let scene = Scene::start();
    for (status, class) in [(404, FaultClass::ModelEndpoint), (400, FaultClass::AgentCrashed)] {
        let vendor = Vendor::start(move |_| (status, json!({"error": {"message": "no such thing"}})));
        let came = scene.run(plan(Harness::Tools), vec![vendor.plan("vendor", Protocol::OpenAi)], |_| {}).await;
        assert_eq!(came.fault().class, class, "{:?}", came.end);
        assert!(came.fault().message.contains("no such thing"), "{:?}", came.end);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_is_recorded_with_what_was_said_about_it() {
    let scene = Scene::start();
    let harness = Harness::Tools;
    let mut bad = types(harness, "x");
    bad["choices"][0]["message"]["tool_calls"][0]["function"]["name"] = json!("jump");
    let vendor = Vendor::with(vec![bad, done(harness)]);
    let came = scene.run(plan(harness), vec![vendor.plan("vendor", protocol(harness))], |_| {}).await;
    assert_eq!(came.ended_by(), EndedBy::Agent);
    assert_eq!(came.steps[1].unreadable, ["jump: there is no function \"jump\" here"]);
    let told = vendor.requests.lock().unwrap()[1].1.to_string();
    assert!(told.contains("there is no function"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_audit_sees_no_word_of_the_agent_and_the_agent_goes_on() {
    let scene = Scene::start();
    let harness = Harness::AnthropicComputer;
    let mut says = types(harness, "zanzibar");
    says["content"][0]["text"] = json!("I am quite sure of quetzal.");
    let vendor = Vendor::with(vec![says, done(harness), types(harness, "three"), done(harness), done(harness)]);
    let finding = |complete: bool, missing: &str| {
        let text = json!({"complete": complete, "missing": missing}).to_string();
        json!({"id": "c", "model": "auditor", "choices": [{"index": 0, "finish_reason": "stop",
               "message": {"role": "assistant", "content": text}}],
               "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}})
    };
    let auditor = Vendor::with(vec![finding(false, "the third line"), finding(true, "")]);
    let endpoints = vec![vendor.plan("vendor", protocol(harness)), auditor.plan("auditor", Protocol::OpenAi)];
    let audit =
        AuditPlan { endpoint: "auditor".to_owned(), model: "auditor".to_owned(), most: 5, max_output: 50, images: 2 };
    let came = scene.run(plan(harness), endpoints, |episode| episode.audit = Some(audit)).await;
    assert_eq!((came.ended_by(), came.notes.audits, came.steps.len()), (EndedBy::Agent, 2, 5));
    let told = came.steps[3].told.as_deref().unwrap();
    assert!(told.contains("the third line"), "{told}");
    assert!(vendor.requests.lock().unwrap()[2].1.to_string().contains("the third line"));
    let purposes: Vec<Purpose> = came.calls.iter().map(|call| call.purpose).collect();
    assert_eq!(purposes.iter().filter(|purpose| **purpose == Purpose::Audit).count(), 2);
    for (_, request) in auditor.requests.lock().unwrap().iter() {
        let text = request.to_string();
        assert!(text.contains("Make the list."));
        for word in ["zanzibar", "quetzal", "It is done", "I type", "keyboard", "tool_use", "three"] {
            assert!(!text.contains(word), "the auditor was told `{word}`");
        }
        let images = request["messages"][1]["content"].as_array().unwrap().len() - 1;
        assert!((1..=2).contains(&images));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalls_are_counted_told_and_stopped_as_the_run_wants_it() {
    let scene = Scene::start();
    scene.world.still.store(true, std::sync::atomic::Ordering::SeqCst);
    let harness = Harness::Tools;
    let mut answers = vec![types(harness, "same"); 5];
    answers.push(done(harness));
    let run = async |stall| {
        let vendor = Vendor::with(answers.clone());
        let endpoints = vec![vendor.plan("vendor", protocol(harness))];
        scene.run(plan(harness), endpoints, |episode| episode.stall = stall).await
    };
    let came = run(StallPolicy::Report).await;
    assert_eq!((came.ended_by(), came.notes.stalls), (EndedBy::Agent, StallNotes { steps: 4, longest: 4 }));
    let came = run(StallPolicy::Nudge { after: 2 }).await;
    let told: Vec<bool> = came.steps.iter().map(|step| step.told.is_some()).collect();
    assert_eq!(told, [false, false, false, false, true, false, true]);
    let came = run(StallPolicy::Stop { after: 3 }).await;
    assert_eq!((came.ended_by(), came.steps.len()), (EndedBy::Stall, 5));
    assert_eq!(came.notes.stalls, StallNotes { steps: 3, longest: 3 });
}

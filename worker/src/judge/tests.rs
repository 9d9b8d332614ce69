//! Judges whose answers can be read, cannot be read, are refused, or never come.

use std::collections::VecDeque;
use std::sync::Mutex;

use longhaul_core::judge::FramePolicy;
use serde_json::json;

use super::*;
use crate::testing::plans;

/// A vendor's answers, in order; the last one again and again.
struct Script {
    answers: Mutex<VecDeque<Result<Value, CallError>>>,
    calls: Mutex<Vec<ModelCall>>,
}

impl Script {
    fn of(answers: impl IntoIterator<Item = Result<Value, CallError>>) -> Self {
        Self { answers: Mutex::new(answers.into_iter().collect()), calls: Mutex::default() }
    }

    fn words(texts: &[&str]) -> Self {
        Self::of(texts.iter().map(|text| Ok(json!({"model": "judge-1", "content": [{"type": "text", "text": text}]}))))
    }

    fn asked(&self) -> usize {
        self.calls.lock().unwrap().len()
    }
}

impl Asks for Script {
    fn ask(&self, call: ModelCall) -> Pending<'_, Result<ModelAnswer, CallError>> {
        let number = u32::try_from(self.asked()).unwrap();
        self.calls.lock().unwrap().push(call);
        let answer = self.answers.lock().unwrap().pop_front().expect("no further question was expected");
        Box::pin(async move { answer.map(|body| ModelAnswer { number, body, shortened_to: None }) })
    }
}

fn rubric() -> Rubric {
    Rubric::parse(
        br#"{"task_completion": [{"id": "a", "points": 60}, {"id": "b", "points": 40}], "integrity": [{"id": "c"}],
            "privileged_info_for_vlm": "the secret is 42"}"#,
    )
    .unwrap()
}

const GOOD: &str = r#"{"task_completion": [{"id": "a", "verdict": "pass"}, {"id": "b", "verdict": "partial"}],
    "integrity": [{"id": "c", "verdict": "pass"}], "overall_reasoning": "Nearly."}"#;

fn plan() -> JudgePlan {
    JudgePlan { frames: FramePolicy::All, ..JudgePlan::published("e".to_owned(), "m".to_owned()) }
}

fn gateway() -> GatewayPlan {
    GatewayPlan { endpoints: vec![plans::endpoint("e", Protocol::Anthropic)], ..GatewayPlan::default() }
}

async fn judged(script: &Script, plan: &JudgePlan) -> Result<Judgement, JudgeError> {
    let screens = [Digest::of(b"0"), Digest::of(b"1")];
    // Its size in the plan is none of the picture's own: it is sent as it is.
    let judge = Judge::new(script, plan, &gateway(), ImageSize { width: 4, height: 3 }).unwrap();
    let load = |index: usize| async move { Ok(Arc::from(png(index).as_slice())) };
    judge.judge("Do it.", &rubric(), &screens, load).await
}

/// A picture of 4 x 3 pixels, each of another shade.
fn png(shade: usize) -> Vec<u8> {
    let mut out = Vec::new();
    crate::screen::write_png(&mut out, &[u8::try_from(shade).unwrap(); 36], 4, 3).unwrap();
    out
}

#[tokio::test]
async fn a_judge_is_shown_the_screenshots_and_then_asked() {
    let script = Script::words(&[GOOD]);
    let judgement = judged(&script, &plan()).await.unwrap();
    assert_eq!((judgement.score, judgement.passed, judgement.shown.as_slice()), (80.0, false, &[0, 1][..]));
    assert_eq!((judgement.judges[0].model.as_str(), judgement.judges[0].asked), ("judge-1", 1));
    let calls = script.calls.lock().unwrap();
    assert_eq!((calls[0].purpose, calls[0].endpoint.as_str(), calls[0].model.as_str()), (Purpose::Judge, "e", "m"));
    let body = &calls[0].body;
    assert_eq!((&body["max_tokens"], &body["temperature"], &body["top_p"]), (&json!(8192), &json!(0.1), &json!(0.95)));
    let parts = body["messages"][0]["content"].as_array().unwrap();
    let kinds: Vec<&str> = parts.iter().map(|part| part["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["image", "image", "text"], "pictures come before the words");
    let text = parts[2]["text"].as_str().unwrap();
    assert!(text.contains("There are 2 screenshots") && text.contains("the secret is 42"), "{text}");
    assert_eq!(judgement.prompt, Digest::of(text.as_bytes()));
}

#[tokio::test]
async fn what_cannot_be_read_or_is_refused_is_asked_again_and_then_no_verdict() {
    let refusal = || Ok(json!({"content": [], "stop_reason": "refusal"}));
    let failing = || CallError::Endpoint { endpoint: "e".to_owned(), message: "503".to_owned(), down: false };
    let script = Script::of([
        Ok(json!({"content": [{"type": "text", "text": "hm"}]})),
        refusal(),
        Ok(json!({"model": "judge-1", "content": [{"type": "text", "text": GOOD}]})),
    ]);
    assert_eq!(judged(&script, &plan()).await.unwrap().judges[0].asked, 3);
    let rejected = CallError::Rejected { status: 400, body: "policy".to_owned() };
    let script = Script::of([refusal(), Err(failing()), Err(rejected)]);
    let error = judged(&script, &plan()).await.unwrap_err().to_string();
    assert!(error.contains("was asked 3 times") && error.contains("policy"), "{error}");
    let half = GOOD.replace("{\"id\": \"b\", \"verdict\": \"partial\"}", "");
    let half = half.replace("\"pass\"}, ]", "\"pass\"}]");
    let script = Script::words(&[half.as_str(), "{}", ""]);
    let error = judged(&script, &plan()).await.unwrap_err();
    assert!(matches!(error, JudgeError::Unanswered { asked: 3, .. }), "{error}");
}

#[tokio::test]
async fn what_asking_again_does_not_cure_is_not_asked_again() {
    let down = CallError::Endpoint { endpoint: "e".to_owned(), message: "gone".to_owned(), down: true };
    let budget = CallError::Budget { scope: "judging, $1.00".to_owned() };
    for (error, said) in [
        (down, "cannot be asked: endpoint e: gone"),
        (budget, "the judge's budget is spent: judging, $1.00"),
        (CallError::Rejected { status: 401, body: "key".to_owned() }, "status 401"),
        (CallError::Unbounded { reason: "no price".to_owned() }, "no price"),
    ] {
        let script = Script::of([Err(error)]);
        let error = judged(&script, &plan()).await.unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
        assert_eq!(script.asked(), 1);
    }
    let script = Script::of([Err(CallError::Closed)]);
    assert!(matches!(judged(&script, &plan()).await, Err(JudgeError::Over(_))));
}

#[tokio::test]
async fn several_judges_are_asked_one_by_one_and_all_of_them_have_to_answer() {
    let worse = GOOD.replace("partial", "fail");
    let script = Script::words(&[GOOD, "hm", worse.as_str(), GOOD]);
    let three = JudgePlan { judges: 3, ..plan() };
    let judgement = judged(&script, &three).await.unwrap();
    assert_eq!((script.asked(), judgement.score, judgement.judges.len()), (4, 80.0, 3));
    let calls: Vec<u32> = judgement.judges.iter().map(|judge| judge.call).collect();
    assert_eq!(calls, [0, 2, 3]);
    assert_eq!(judgement.agreement.map(|agreement| agreement.unanimous), Some(2.0 / 3.0));
    let script = Script::words(&[GOOD, "hm", "hm", "hm"]);
    assert!(judged(&script, &three).await.is_err());
}

#[test]
fn an_endpoint_that_is_not_there_is_named() {
    let elsewhere = JudgePlan { endpoint: "f".to_owned(), ..plan() };
    let script = Script::words(&[]);
    let error = Judge::new(&script, &elsewhere, &gateway(), ImageSize { width: 4, height: 3 }).err().unwrap();
    assert!(error.to_string().contains("no endpoint `f`"), "{error}");
}

#[test]
fn what_program_and_judge_say_is_kept_beside_each_other() {
    use longhaul_core::outcome::{AttemptEnd, EndedBy, FaultClass, Verdict};
    let program = || {
        Program::of(AttemptEnd::Verdict(Verdict {
            passed: true,
            score: 90.0,
            feedback: "fine".to_owned(),
            details: json!({"rows": 3}),
            ended_by: EndedBy::Agent,
            parts: None,
        }))
    };
    let no_answer = end(EndedBy::Steps, Some(program()), Err("silence".to_owned()));
    let AttemptEnd::Unverified { ended_by, reason, fault, parts } = no_answer else { panic!("a verdict") };
    assert_eq!((ended_by, reason.as_str(), fault), (EndedBy::Steps, "silence", Some(FaultClass::Judge)));
    assert!(parts.is_some_and(|parts| parts.program.is_some() && parts.checklist.is_none()));
}

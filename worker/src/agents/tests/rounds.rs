//! Tasks in rounds, from a lease to the end that the coordinator is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use longhaul_core::agent::{AgentPlan, ExternalAgent, Harness};
use longhaul_core::budget::StallPolicy;
use longhaul_core::digest::Digest;
use longhaul_core::endpoint::Protocol;
use longhaul_core::judge::{JudgePlan, Scorer};
use longhaul_core::measure::{Aspect, RoundError, RoundKind};
use longhaul_core::outcome::{AttemptEnd, EndedBy, FaultClass, Verdict};
use longhaul_core::plan::{EpisodePlan, Scoring, TaskPlan, Tree, TreeEntry, TreeNode};
use longhaul_core::rounds::{Assertion, Check, RoundPlan, RoundResult, RoundsPlan, Test};
use longhaul_core::step::StepRecord;
use longhaul_core::time::Millis;
use serde_json::{Value, json};

use super::models::{done, plan as model_plan, protocol, types};
use super::scene::{Came, Scene, Vendor};

/// Says what round it is, and how often a round was opened; the noise is no part of it.
const READ: &str = "#!/bin/sh\necho noise >&2\nopened=$(cat \"$SANDBOX/opened\" 2>/dev/null | wc -l)\n\
    printf '{\"round\": %s, \"kind\": \"%s\", \"opened\": %s}' $LONGHAUL_ROUND $LONGHAUL_ROUND_KIND $opened\n";

/// Notes that it ran, by a file that lies beside it.
const REOPEN: &str = ". ./rounds/lib/note.sh\nnote\n";

const NOTE: &str = "note() { echo once >> \"$SANDBOX/opened\"; }\n";

const FILES: [(&str, &str); 5] = [
    ("rounds", ""),
    ("rounds/lib", ""),
    ("rounds/lib/note.sh", NOTE),
    ("rounds/read.sh", READ),
    ("rounds/reopen.sh", REOPEN),
];

fn reads(id: &str, aspect: Aspect, at: &str, test: Test) -> Assertion {
    Assertion { id: id.to_owned(), aspect, says: id.to_owned(), check: Check::Reading { at: at.to_owned(), test } }
}

fn asks(id: &str) -> Assertion {
    let check = Check::Judge { asks: format!("Is {id} there?") };
    Assertion { id: id.to_owned(), aspect: Aspect::Visible, says: id.to_owned(), check }
}

fn round(kind: RoundKind, goal: &str, assertions: Vec<Assertion>) -> RoundPlan {
    let read = Some("rounds/read.sh".to_owned());
    RoundPlan { kind, goal: goal.to_owned(), before: None, read, budget: Default::default(), assertions }
}

/// Three rounds; what is asserted of the second does not hold.
fn three() -> Vec<RoundPlan> {
    let is = |number: u32| reads("number", Aspect::Visible, "/round", Test::Equals(json!(number)));
    let opened = |times: u32| reads("opened", Aspect::Operations, "/opened", Test::AtMost(times.into()));
    let same = Test::SameAs { round: 1, at: "/round".to_owned() };
    let mut rounds = vec![
        round(RoundKind::Open, "Open it.", vec![is(1), opened(0)]),
        round(RoundKind::Revise, "Change it.", vec![is(2), reads("kept", Aspect::Retention, "/round", same)]),
        round(RoundKind::Return, "Look again.", vec![is(3), opened(1)]),
    ];
    rounds[2].before = Some("rounds/reopen.sh".to_owned());
    rounds
}

/// Runs a task in these rounds.
async fn run(
    scene: &Scene,
    rounds: Vec<RoundPlan>,
    files: &[(&str, &str)],
    agent: AgentPlan,
    vendors: Vec<(&Vendor, Protocol)>,
    change: impl FnOnce(&mut EpisodePlan),
) -> Came {
    let entries = files.iter().map(|(path, text)| {
        let chunks = vec![scene.coordinator.put(text.as_bytes())];
        let node = match *text {
            "" => TreeNode::Dir,
            text => TreeNode::File { executable: false, size: text.len() as u64, chunks },
        };
        TreeEntry { path: (*path).to_owned(), node }
    });
    let files = scene.coordinator.put_json(&Tree { entries: entries.collect() });
    let change_task = |task: &mut TaskPlan| {
        task.files = files;
        task.scoring = Scoring::Rounds;
        task.rounds = Some(RoundsPlan { rounds });
    };
    let endpoints = vendors.iter().map(|(vendor, protocol)| vendor.plan("vendor", *protocol)).collect();
    scene.run_task(agent, endpoints, change_task, change).await
}

fn script(scene: &Scene, lines: &str) -> AgentPlan {
    AgentPlan::Scripted { script: scene.coordinator.put(lines.as_bytes()) }
}

const PRESS: &str = "{\"keyboard\": {\"keys\": [\"a\"]}}\n";
const DONE: &str = "{\"done\": true}\n";

fn verdict(came: &Came) -> (&Verdict, &[RoundResult]) {
    match &came.end {
        AttemptEnd::Verdict(verdict) => (verdict, &verdict.parts.as_ref().unwrap().rounds),
        other => panic!("{other:?}"),
    }
}

fn held(round: &RoundResult) -> Vec<Option<bool>> {
    round.assertions.iter().map(|assertion| assertion.held).collect()
}

fn log(scene: &Scene, name: &str) -> Option<String> {
    let desk = &scene.coordinator.desk;
    let logs = desk.logs.lock().unwrap();
    let digest: Digest = logs.iter().rev().find(|(known, _)| known == name)?.1;
    Some(String::from_utf8(desk.blobs.lock().unwrap()[&digest].clone()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rounds_follow_one_another_in_one_sandbox_also_after_one_that_failed() {
    let scene = Scene::start();
    let agent = script(&scene, &format!("{PRESS}{DONE}{PRESS}{PRESS}{DONE}{DONE}"));
    let came = run(&scene, three(), &FILES, agent, Vec::new(), |_| ()).await;
    let (verdict, rounds) = verdict(&came);
    let expected = [[Some(true), Some(true)], [Some(true), Some(false)], [Some(true), Some(true)]];
    assert_eq!(rounds.iter().map(held).collect::<Vec<_>>(), expected, "{rounds:#?}");
    assert_eq!((verdict.passed, verdict.score.round(), verdict.ended_by), (false, 83.0, EndedBy::Agent));
    assert!(verdict.feedback.starts_with("5 of 6 assertions hold; round 2 (revise) fails first: kept: it is 2"));
    // Each step is of a round; one without an answer opens each further one, with its goal.
    let steps: Vec<_> = came.steps.iter().map(|step| (step.round.unwrap(), step.answer.is_some())).collect();
    let expected =
        [(1, false), (1, true), (1, true), (2, false), (2, true), (2, true), (2, true), (3, false), (3, true)];
    assert_eq!(steps, expected);
    let told: Vec<_> = came.steps.iter().map(|step| step.told.as_deref()).collect();
    assert_eq!((told[0], told[3], told[4], told[7]), (None, Some("Change it."), None, Some("Look again.")));
    let counts: Vec<_> = rounds.iter().map(|round| (round.steps, round.last_step)).collect();
    assert_eq!(counts, [(2, Some(2)), (3, Some(6)), (1, Some(8))]);
    // What was read is kept as it was printed, and what was said beside it.
    let reading = log(&scene, "round-3-reading.json").unwrap();
    assert_eq!(reading, "{\"round\": 3, \"kind\": \"return\", \"opened\": 1}");
    assert_eq!(rounds[2].reading, Some(Digest::of(reading.as_bytes())));
    assert_eq!(log(&scene, "round-1-read").as_deref(), Some("noise\n"));
    let sandboxes = scene.world.requests.lock().unwrap();
    assert_eq!(sandboxes.len(), 1, "one sandbox, and no verifier's");
    // Nothing of the hooks stays in it, nor is in its views.
    let roots = scene.world.roots.lock().unwrap();
    assert!(roots.iter().all(|root| !root.join("var/lib/longhaul-rounds").exists()));
    assert!(sandboxes[0].views.iter().all(|view| !view.source.join("some_task/rounds").exists()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rounds_own_budget_ends_it_and_the_episodes_ends_all() {
    let scene = Scene::start();
    let mut rounds = three();
    rounds[0].budget.steps = Some(2);
    let agent = script(&scene, &PRESS.repeat(9));
    let came = run(&scene, rounds, &FILES, agent, Vec::new(), |episode| episode.budget.max_steps = 5).await;
    let (verdict, rounds) = verdict(&came);
    let ended: Vec<_> = rounds.iter().map(|round| (round.ended_by, round.steps, round.error)).collect();
    assert_eq!(ended[..2], [(Some(EndedBy::Steps), 2, None), (Some(EndedBy::Steps), 3, None)]);
    assert_eq!(ended[2], (None, 0, Some(RoundError::Round)), "it was never reached, and counts");
    assert_eq!(held(&rounds[2]), [Some(false), Some(false)]);
    assert_eq!((verdict.ended_by, verdict.score), (EndedBy::Steps, 50.0));
    let told = came.steps.iter().find_map(|step| step.told.clone()).unwrap();
    assert_eq!(told, "That is over for now; this comes next:\n\nChange it.", "what was cut off is said to be");
    assert_eq!(came.steps.iter().filter(|step| step.answer.is_some()).count(), 5, "openings are no steps of it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_at_its_end_is_done_in_every_round_and_stalls_are_a_rounds() {
    let scene = Scene::start();
    scene.world.still.store(true, Ordering::SeqCst);
    let agent = script(&scene, &PRESS.repeat(6));
    let stop = |episode: &mut EpisodePlan| episode.stall = StallPolicy::Stop { after: 2 };
    let came = run(&scene, three(), &FILES, agent, Vec::new(), stop).await;
    let (verdict, rounds) = verdict(&came);
    let ended: Vec<_> = rounds.iter().map(|round| (round.ended_by.unwrap(), round.steps)).collect();
    assert_eq!(ended, [(EndedBy::Stall, 3), (EndedBy::Stall, 3), (EndedBy::Agent, 0)]);
    assert!(rounds.iter().all(|round| round.error.is_none()), "to be done is an answer");
    assert_eq!((verdict.ended_by, came.notes.stalls.steps, came.notes.stalls.longest), (EndedBy::Agent, 4, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reading_that_cannot_be_had_breaks_its_round_and_no_other() {
    let scene = Scene::start();
    let odd = "#!/bin/sh\n[ $LONGHAUL_ROUND = 1 ] && echo '[1]' && exit\n[ $LONGHAUL_ROUND = 2 ] && { echo gone >&2; exit 3; }\n\
        echo '{\"round\": 3, \"opened\": 1}'\n";
    let mut files = FILES;
    files[3].1 = odd;
    let came = run(&scene, three(), &files, script(&scene, DONE), Vec::new(), |_| ()).await;
    let (verdict, rounds) = verdict(&came);
    let errors: Vec<_> = rounds.iter().map(|round| round.error).collect();
    assert_eq!(errors, [Some(RoundError::Round), Some(RoundError::Round), None]);
    let why = |index: usize| rounds[index].why.as_deref().unwrap();
    assert!(why(0).ends_with("gave no reading: it did not print one JSON object: it is another value"), "{}", why(0));
    assert!(why(1).ends_with("gave no reading: it ended with code 3; it said: gone"), "{}", why(1));
    assert_eq!((verdict.passed, held(&rounds[2])), (false, vec![Some(true), Some(true)]));
    // A much too long one is cut where it comes out of the sandbox.
    files[3].1 = "head -c 10000000 /dev/zero | tr '\\0' '{'\n";
    let came = run(&scene, three(), &files, script(&scene, DONE), Vec::new(), |_| ()).await;
    let (_, rounds) = self::verdict(&came);
    assert!(rounds[0].why.as_deref().unwrap().contains("it printed more than 262144 bytes"), "{:?}", rounds[0].why);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hook_before_a_round_that_fails_is_a_fault_of_ours() {
    let scene = Scene::start();
    let mut files = FILES;
    files[4].1 = "echo 'no app' >&2; exit 1\n";
    let came = run(&scene, three(), &files, script(&scene, DONE), Vec::new(), |_| ()).await;
    let fault = came.fault();
    assert_eq!(fault.class, FaultClass::SetupHook);
    assert_eq!(fault.message, "the hook `rounds/reopen.sh` before round 3 ended with code 1");
    assert_eq!(fault.log_tail.as_deref().map(str::trim), Some("no app"));
    // Before the first round it is part of the setup.
    let mut rounds = three();
    rounds[0].before = Some("rounds/reopen.sh".to_owned());
    let came = run(&scene, rounds, &files, script(&scene, DONE), Vec::new(), |_| ()).await;
    assert_eq!((came.fault().class, came.steps.len()), (FaultClass::SetupHook, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_goes_on_in_the_middle_of_a_round_and_reads_the_earlier_ones_again() {
    let scene = Scene::start();
    let agent = script(&scene, &format!("{PRESS}{DONE}{PRESS}{PRESS}{DONE}{DONE}"));
    let whole = run(&scene, three(), &FILES, agent, Vec::new(), |_| ()).await;
    // Within the second round; where the first and where the last one is over; where one has opened.
    for kept in [5, 3, 9, 8] {
        let came = scene.go_on(&whole, kept, |_| ()).await;
        assert_eq!(verdict(&came), verdict(&whole), "{kept} steps kept");
        let lived = |steps: &[StepRecord]| steps.iter().map(|step| (step.number, step.screen)).collect::<Vec<_>>();
        assert_eq!(lived(&came.steps), lived(&whole.steps[kept..]), "{kept} steps kept");
        assert_eq!(log(&scene, "round-1-reading.json").unwrap(), "{\"round\": 1, \"kind\": \"open\", \"opened\": 0}");
    }
    assert_eq!(scene.coordinator.desk.resumed.lock().unwrap().len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_that_its_own_budget_ended_ends_there_again() {
    let scene = Scene::start();
    let mut rounds = three();
    rounds[0].budget.steps = Some(2);
    let whole = run(&scene, rounds, &FILES, script(&scene, &PRESS.repeat(4)), Vec::new(), |_| ()).await;
    for kept in [4, 6, 7] {
        let came = scene.go_on(&whole, kept, |_| ()).await;
        assert_eq!(verdict(&came), verdict(&whole), "{kept} steps kept");
    }
    // By the time, which the record does not tell to the millisecond.
    scene.world.step_millis.store(600, Ordering::SeqCst);
    let mut rounds = three();
    rounds[0].budget.seconds = Some(1);
    let whole = run(&scene, rounds, &FILES, script(&scene, &PRESS.repeat(9)), Vec::new(), |_| ()).await;
    assert_eq!(verdict(&whole).1[0].ended_by, Some(EndedBy::Time));
    scene.world.step_millis.store(0, Ordering::SeqCst);
    let opening = whole.steps.iter().position(|step| step.number > 0 && step.answer.is_none()).unwrap();
    let came = scene.go_on(&whole, opening + 1, |_| ()).await;
    assert_eq!(verdict(&came), verdict(&whole));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_that_reads_otherwise_ends_the_replay() {
    let scene = Scene::start();
    let agent = script(&scene, &format!("{PRESS}{DONE}{PRESS}{DONE}{DONE}"));
    let whole = run(&scene, three(), &FILES, agent, Vec::new(), |_| ()).await;
    let other = scene.coordinator.put(b"{}");
    let change = |log: &mut (String, Digest)| {
        if log.0 == "round-1-reading.json" {
            log.1 = other;
        }
    };
    let came = scene.go_on(&whole, 5, change).await;
    let fault = came.fault();
    assert_eq!((fault.class, came.steps.len()), (FaultClass::ReplayDiverged, 0));
    assert!(fault.message.contains("at step 3 of 4: the reading of round 1 is "), "{}", fault.message);
    // What was read later than what is kept is nothing to compare with.
    let came = scene.go_on(&whole, 3, change).await;
    assert_eq!(verdict(&came), verdict(&whole));
}

/// How often a request says something.
fn said(body: &Value, text: &str) -> usize {
    body.to_string().matches(text).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_hears_each_goal_in_its_turn_and_as_a_message_of_its_own() {
    for harness in Harness::ALL {
        let scene = Scene::start();
        let answers = vec![types(harness, "x"), done(harness), types(harness, "y"), done(harness), done(harness)];
        let vendor = Vendor::with(answers);
        let came = run(&scene, three(), &FILES, model_plan(harness), vec![(&vendor, protocol(harness))], |_| ()).await;
        let (verdict, rounds) = verdict(&came);
        assert_eq!((verdict.score.round(), rounds.len()), (83.0, 3), "{}", harness.name());
        let requests = vendor.requests.lock().unwrap();
        let heard: Vec<[usize; 4]> = requests
            .iter()
            .map(|(_, body)| ["Make the list.", "Open it.", "Change it.", "Look again."].map(|text| said(body, text)))
            .collect();
        let (first, second, third) = ([1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]);
        assert_eq!(heard, [first, first, second, second, third], "{}", harness.name());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_refuses_a_round_breaks_that_one_alone() {
    let scene = Scene::start();
    let harness = Harness::AnthropicComputer;
    let mut refuses = done(harness);
    refuses["stop_reason"] = json!("refusal");
    refuses["content"] = json!([]);
    let vendor = Vendor::with(vec![done(harness), refuses, types(harness, "x"), done(harness)]);
    let came = run(&scene, three(), &FILES, model_plan(harness), vec![(&vendor, Protocol::Anthropic)], |_| ()).await;
    let (_, rounds) = verdict(&came);
    let errors: Vec<_> = rounds.iter().map(|round| round.error).collect();
    assert_eq!(errors, [None, Some(RoundError::Generation), None]);
    assert_eq!(held(&rounds[1]), [Some(false), Some(false)], "whatever was read");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_that_the_episodes_own_budget_ends_breaks_if_nothing_usable_was_answered_in_it() {
    let harness = Harness::AnthropicComputer;
    let mut flies = types(harness, "x");
    flies["content"][1]["name"] = json!("fly");
    for (max_steps, expected) in [
        (3, (RoundError::Generation, "the agent gave no answer that could be used", 2)),
        (1, (RoundError::Round, "the episode was over before the agent answered", 0)),
    ] {
        let scene = Scene::start();
        let vendor = Vendor::with(vec![done(harness), flies.clone()]);
        let vendors = vec![(&vendor, Protocol::Anthropic)];
        let few = |episode: &mut EpisodePlan| episode.budget.max_steps = max_steps;
        let came = run(&scene, three(), &FILES, model_plan(harness), vendors, few).await;
        let (verdict, rounds) = verdict(&came);
        assert_eq!((verdict.ended_by, rounds[0].error), (EndedBy::Steps, None));
        assert_eq!((rounds[1].error.unwrap(), rounds[1].why.as_deref().unwrap(), rounds[1].steps), expected);
        assert_eq!((held(&rounds[1]), rounds[1].ended_by), (vec![Some(false); 2], Some(EndedBy::Steps)));
        assert_eq!(rounds[2].why.as_deref(), Some("the episode was over before it"));
    }
}

fn judge() -> JudgePlan {
    JudgePlan::published("vendor".to_owned(), "m".to_owned())
}

fn words(text: &str) -> Value {
    json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "judge-1", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": text}], "usage": {"input_tokens": 10, "output_tokens": 5},
    })
}

/// One round with two questions, and one without.
fn asking() -> Vec<RoundPlan> {
    let there = || reads("number", Aspect::Business, "/round", Test::Differs(json!(0)));
    vec![
        round(RoundKind::Open, "Open it.", vec![there(), asks("mark"), asks("title")]),
        round(RoundKind::Return, "Look again.", vec![there()]),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_judge_is_asked_over_the_last_screenshot_of_a_round_when_the_sandbox_is_gone() {
    let scene = Scene::start();
    let live = Arc::new(AtomicU32::new(99));
    let (world, seen) = (Arc::clone(&scene.world), Arc::clone(&live));
    let answer = "{\"task_completion\": [{\"id\": \"mark\", \"verdict\": \"pass\"}, \
        {\"id\": \"title\", \"verdict\": \"partial\", \"evidence\": \"half of it\"}], \"integrity\": []}";
    let vendor = Vendor::start(move |_| {
        seen.store(world.live.load(Ordering::SeqCst), Ordering::SeqCst);
        (200, words(answer))
    });
    let agent = script(&scene, &format!("{PRESS}{DONE}{PRESS}{DONE}"));
    let vendors = vec![(&vendor, Protocol::Anthropic)];
    let came = run(&scene, asking(), &FILES, agent, vendors, |episode| episode.judge = Some(judge())).await;
    let (verdict, rounds) = verdict(&came);
    assert_eq!(held(&rounds[0]), [Some(true), Some(true), Some(false)]);
    assert_eq!(rounds[0].assertions[2].why, "the judge says partial: half of it");
    assert_eq!((verdict.passed, verdict.score), (false, 75.0));
    assert_eq!(rounds[0].judged.as_ref().unwrap().shown, [2]);
    assert!(rounds[1].judged.is_none());
    assert_eq!((came.notes.judging.calls, live.load(Ordering::SeqCst)), (1, 0));
    let requests = vendor.requests.lock().unwrap();
    let content = requests[0].1["messages"][0]["content"].as_array().unwrap();
    assert_eq!(content.len(), 2, "one screenshot, and the question");
    let text = content[1]["text"].as_str().unwrap();
    assert!(text.contains("Is mark there?") && text.contains("Open it.") && !text.contains("Look again."), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_judge_without_an_answer_leaves_no_verdict_and_what_was_read() {
    let scene = Scene::start();
    let silent = Vendor::with(vec![words("I would rather not say.")]);
    let vendors = || vec![(&silent, Protocol::Anthropic)];
    let judged = |episode: &mut EpisodePlan| episode.judge = Some(judge());
    let came = run(&scene, asking(), &FILES, script(&scene, DONE), vendors(), judged).await;
    let AttemptEnd::Unverified { reason, fault, parts, .. } = &came.end else { panic!("{:?}", came.end) };
    assert_eq!(*fault, Some(FaultClass::Judge));
    assert!(reason.starts_with("round 1: the judge m was asked 3 times"), "{reason}");
    let parts = parts.as_ref().unwrap();
    assert_eq!(parts.decided_by, Scorer::Rounds);
    assert_eq!(held(&parts.rounds[0]), [Some(true), None, None]);
    // What broke fails without a judge.
    let mut files = FILES;
    files[3].1 = "exit 1\n";
    let asked = silent.requests.lock().unwrap().len();
    let came = run(&scene, asking(), &files, script(&scene, DONE), vendors(), judged).await;
    assert_eq!((verdict(&came).0.score, silent.requests.lock().unwrap().len()), (0.0, asked));
}

/// Says what it hears of rounds.
const ROUNDS: &str = r#"
from longhaul_agent import Agent, run

class Mine(Agent):
    def reset(self, task):
        assert task["description"] == "Make the list.\n\nOpen it.", task

    def act(self, seen):
        return {"text": "%s %s" % (seen.round, seen.goal), "done": True}

run(Mine())
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_elses_program_is_told_the_round_and_its_goal() {
    let scene = Scene::start();
    let chunks = vec![scene.coordinator.put(ROUNDS.as_bytes())];
    let node = TreeNode::File { executable: false, size: ROUNDS.len() as u64, chunks };
    let files = scene.coordinator.put_json(&Tree { entries: vec![TreeEntry { path: "mine.py".to_owned(), node }] });
    let agent = AgentPlan::External(Box::new(ExternalAgent {
        command: ["python3", "-B", "mine.py"].map(str::to_owned).into(),
        files: Some(files),
        image: None,
        variables: Default::default(),
        endpoints: Vec::new(),
        answer_limit: Millis(20_000),
        memory_mib: 1024,
        net: false,
    }));
    let came = run(&scene, three(), &FILES, agent, Vec::new(), |_| ()).await;
    let said: Vec<_> = came.steps.iter().filter_map(|step| step.answer.as_ref()?.text.as_deref()).collect();
    assert_eq!(said, ["1 None", "2 Change it.", "3 Look again."], "{:?}", came.end);
}

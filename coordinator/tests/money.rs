//! Money, model calls and keys over the wire, with a worker that is played by the test.

mod common;

use common::{FakeWorker, World, png_blob};
use longhaul_core::call::{CallRecord, Certainty, Purpose, PurseKind};
use longhaul_core::digest::Digest;
use longhaul_core::ids::RunId;
use longhaul_core::money::Money;
use longhaul_core::purse::PurseState;
use longhaul_core::time::{Millis, Timestamp};
use longhaul_proto::convert::{self, LeaseRef};
use longhaul_proto::v1;
use longhaul_proto::v1::escrow_answer::Rest;
use longhaul_proto::v1::from_worker::Message as Up;
use longhaul_proto::v1::to_worker::Message as Down;

const fn state(granted: u64, settled: u64, returned: u64) -> PurseState {
    PurseState {
        granted: Money::from_nanos(granted),
        settled: Money::from_nanos(settled),
        returned: Money::from_nanos(returned),
        unconfirmed: Money::ZERO,
        overshoot: Money::ZERO,
    }
}

fn purse(state: PurseState) -> v1::PurseState {
    convert::purse(PurseKind::Episode, &state)
}

/// A question, and the next answer.
async fn ask(worker: &mut FakeWorker, lease: &LeaseRef, known: PurseState, bound: u64) -> v1::EscrowAnswer {
    let wanted = known.returned.nanos() + known.settled.nanos() + bound;
    worker
        .say(Up::EscrowRequest(v1::EscrowRequest {
            attempt: Some((*lease).into()),
            state: Some(purse(known)),
            wanted_nanos: wanted,
            bound_nanos: known.settled.nanos() + bound,
        }))
        .await;
    answer(worker).await
}

async fn answer(worker: &mut FakeWorker) -> v1::EscrowAnswer {
    loop {
        match worker.next().await {
            Down::EscrowAnswer(answer) => return answer,
            Down::HeartbeatAck(_) | Down::CallAck(_) | Down::EscrowRecall(_) | Down::Lease(_) => {}
            other => panic!("{other:?} is no answer about money"),
        }
    }
}

fn call(number: u32, settled: u64) -> CallRecord {
    CallRecord {
        number,
        step: 1,
        at: Timestamp(1_700_000_000_000),
        took: Millis(20),
        purpose: Purpose::Agent,
        endpoint: "stand-in".to_owned(),
        model: "some-model".to_owned(),
        model_reported: None,
        fingerprint: None,
        request_id: None,
        retry_of: None,
        status: Some(200),
        error: None,
        reserved: Money::from_nanos(settled),
        settled: Money::from_nanos(settled),
        certainty: Certainty::Reported,
        usage: None,
        shortened_to: None,
        request: Digest::of(&png_blob()),
        response: None,
        parts: Vec::new(),
        service: None,
    }
}

async fn report_call(worker: &mut FakeWorker, lease: &LeaseRef, number: u32, settled: u64) {
    let record_json = serde_json::to_vec(&call(number, settled)).expect("JSON").into();
    worker.say(Up::Call(v1::CallReport { attempt: Some((*lease).into()), number, record_json })).await;
    loop {
        match worker.next().await {
            Down::CallAck(ack) => return assert_eq!(ack.number, number),
            Down::HeartbeatAck(_) | Down::EscrowRecall(_) | Down::Lease(_) => {}
            other => panic!("{other:?} is no acknowledgement of a call"),
        }
    }
}

async fn end(worker: &mut FakeWorker, lease: &LeaseRef, calls: u32, state: PurseState) -> v1::EndAck {
    let end = longhaul_core::outcome::AttemptEnd::Unverified {
        ended_by: longhaul_core::outcome::EndedBy::Budget,
        reason: "no verifier".to_owned(),
        fault: None,
        parts: None,
    };
    worker
        .say(Up::Ended(v1::AttemptEnded {
            attempt: Some((*lease).into()),
            end_json: serde_json::to_vec(&end).expect("JSON").into(),
            calls,
            purses: vec![purse(state)],
            ..v1::AttemptEnded::default()
        }))
        .await;
    worker.end_ack().await
}

/// A run with a cap, and a worker that has its episode.
async fn leased(cap: u64) -> (World, RunId, FakeWorker, LeaseRef) {
    let world = World::start().await;
    let run = world.submit_with_cap(cap).await;
    let mut worker = FakeWorker::connect(&world.access(), &[]).await;
    let lease = worker.lease().await;
    worker.put_blob(&png_blob()).await;
    (world, run, worker, lease)
}

/// The row of the run, as the coordinator says, and as the store says without one.
async fn budget(world: &World, run: RunId) -> v1::BudgetRow {
    let request = v1::ShowBudgetRequest { run_id: run.to_string() };
    let answer = world.control().await.show_budget(request).await.expect("a budget").into_inner();
    let record = world.coordinator.reader().run(run).expect("readable").expect("there");
    let stored = longhaul_coordinator::view::budget(&record);
    assert_eq!(answer, stored, "the store says the same");
    answer.scopes.into_iter().find(|row| row.scope == "run").expect("the run's own")
}

/// The row of the run, once it is so.
async fn until(world: &World, run: RunId, so: impl Fn(&v1::BudgetRow) -> bool) -> v1::BudgetRow {
    loop {
        let row = budget(world, run).await;
        if so(&row) {
            return row;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn money_is_granted_within_the_cap_and_refused_beyond_it() {
    let (world, run, mut worker, lease) = leased(1000).await;

    let first = ask(&mut worker, &lease, state(0, 0, 0), 400).await;
    assert_eq!(first.rest, None, "it is enough");
    assert!((400..=1000).contains(&first.granted_nanos), "{}", first.granted_nanos);
    let row = budget(&world, run).await;
    assert_eq!((row.cap_nanos, row.escrow_nanos), (Some(1000), first.granted_nanos));

    report_call(&mut worker, &lease, 0, 400).await;
    let known = state(first.granted_nanos, 400, 0);
    let refused = ask(&mut worker, &lease, known, 601).await;
    assert!(matches!(&refused.rest, Some(Rest::Refused(reason)) if reason.contains("run")), "{refused:?}");

    // Durable when answered, and known to the next coordinator.
    let world = world.restart().await;
    let row = budget(&world, run).await;
    assert_eq!((row.cap_nanos, row.settled_nanos), (Some(1000), 400));
    let raise = |cap_nanos| v1::RaiseBudgetRequest {
        run_id: run.to_string(),
        scope: "run".to_owned(),
        cap_nanos,
        by: "a test".to_owned(),
    };
    let lowered = world.control().await.raise_budget(raise(999)).await.expect_err("a cap is never lowered");
    assert_eq!(lowered.code(), tonic::Code::InvalidArgument, "{lowered}");
    let raised = world.control().await.raise_budget(raise(2000)).await.expect("raised").into_inner();
    assert_eq!(raised.scopes[0].cap_nanos, Some(2000));
    let mut worker = FakeWorker::connect_as(worker.id, &world.access(), &[lease]).await;
    let more = ask(&mut worker, &lease, known, 601).await;
    assert_eq!(more.rest, None);
    assert!(more.granted_nanos >= 1001, "{}", more.granted_nanos);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_counts_only_once_all_its_calls_are_stored_and_closes_its_purses() {
    let (world, run, mut worker, lease) = leased(1000).await;
    let granted = ask(&mut worker, &lease, state(0, 0, 0), 300).await.granted_nanos;
    report_call(&mut worker, &lease, 0, 300).await;
    let closed = state(granted, 500, granted.saturating_sub(500));
    let ack = end(&mut worker, &lease, 2, closed).await;
    assert!(!ack.accepted, "a call is missing");
    assert_eq!((ack.resend_from, ack.resend_calls_from), (0, 1));
    report_call(&mut worker, &lease, 1, 200).await;
    // It may come again.
    report_call(&mut worker, &lease, 1, 200).await;
    assert!(end(&mut worker, &lease, 2, closed).await.accepted);

    let row = budget(&world, run).await;
    assert_eq!((row.settled_nanos, row.escrow_nanos), (500, 0));
    let request = v1::ListCallsRequest { attempt_id: lease.attempt.to_string() };
    let mut rows = world.control().await.list_calls(request).await.expect("calls").into_inner();
    let mut listed = Vec::new();
    while let Some(row) = rows.message().await.expect("a call") {
        listed.push(serde_json::from_slice::<CallRecord>(&row.record_json).expect("JSON"));
    }
    assert_eq!(listed, [call(0, 300), call(1, 200)]);
    let runs = world.control().await.list_runs(v1::ListRunsRequest {}).await.expect("runs").into_inner().runs;
    assert_eq!((runs[0].cap_nanos, runs[0].spent_nanos), (Some(1000), 500));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_attempt_was_granted_counts_whole_until_its_spool_is_heard() {
    let (world, run, mut worker, lease) = leased(1000).await;
    let granted = ask(&mut worker, &lease, state(0, 0, 0), 300).await.granted_nanos;
    worker.say(Up::Leaving(v1::Leaving { reason: "it stops".to_owned() })).await;
    let lost = until(&world, run, |row| row.escrow_nanos == 0).await;
    assert_eq!((lost.settled_nanos, lost.unconfirmed_nanos), (granted, granted));

    // Another worker of that node has found what it wrote down.
    let mut next = FakeWorker::connect_with_slots(&world.access(), 1).await;
    report_call(&mut next, &lease, 0, 300).await;
    let state = Some(purse(state(granted, 300, granted - 300)));
    let report = v1::EscrowReport { attempt: Some(lease.into()), state, closed: true };
    next.say(Up::EscrowReport(report)).await;
    let known = until(&world, run, |row| row.settled_nanos != granted).await;
    assert_eq!((known.settled_nanos, known.escrow_nanos), (300, 0));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_go_to_workers_after_their_welcome_and_when_they_change_and_are_never_stored() {
    let world = World::start().await;
    let put = |value: &str| v1::PutSecretsRequest {
        secrets: vec![v1::NamedSecret { name: "SOME_KEY".to_owned(), value: value.to_owned() }],
    };
    world.control().await.put_secrets(put("sk-first-of-all")).await.expect("taken");
    let mut worker = FakeWorker::connect(&world.access(), &[]).await;
    let told = |down: Down| match down {
        Down::Secrets(secrets) => Some(secrets.secrets[0].value.clone()),
        _ => None,
    };
    assert_eq!(told(worker.next().await).as_deref(), Some("sk-first-of-all"));
    world.control().await.put_secrets(put("sk-second")).await.expect("taken");
    assert_eq!(told(worker.next().await).as_deref(), Some("sk-second"));
    let refused = world.control().await.put_secrets(put("")).await.expect_err("no key at all");
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);

    let store = world.store().to_owned();
    let mut folders = vec![store];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(bytes) = std::fs::read(&path) {
                let there = |key: &[u8]| bytes.windows(key.len()).any(|window| window == key);
                assert!(!there(b"sk-first-of-all") && !there(b"sk-second"), "a key is in {}", path.display());
            }
        }
    }
    // Nothing of it outlives the process.
    let world = world.restart().await;
    let mut worker = FakeWorker::connect_as(worker.id, &world.access(), &[]).await;
    world.submit(1).await;
    assert!(matches!(worker.next().await, Down::Lease(_)), "no key was to be told");
    world.stop().await;
}

/// The live attempt, once what it waits for is so.
async fn live(world: &World, so: impl Fn(&str) -> bool) -> v1::LiveAttempt {
    loop {
        let status = common::status(&world.access()).await.expect("a status");
        let live = status.workers.into_iter().flat_map(|worker| worker.attempts).next();
        if let Some(live) = live.filter(|live| live.steps == 1 && so(&live.waiting)) {
            return live;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_live_attempt_waits_for_is_told_wherever_it_is_shown() {
    let world = World::start().await;
    let run = world.submit_with_model("vendor").await;
    let mut worker = FakeWorker::connect(&world.access(), &[]).await;
    let lease = worker.lease().await;
    let word = |down: &str, answered| {
        let (endpoint, down) = ("vendor".to_owned(), down.to_owned());
        Up::EndpointWord(v1::EndpointWord {
            endpoint,
            demand: 1,
            down,
            answered,
            down_millis: 60_000,
            models: Vec::new(),
        })
    };
    let progress = |phase: v1::AttemptPhase| {
        let attempt = Some(lease.into());
        Up::Progress(v1::AttemptProgress { attempt, phase: phase.into(), steps: 1 })
    };
    worker.say(word("no key named `X`", false)).await;
    worker.say(progress(v1::AttemptPhase::Export)).await;
    live(&world, str::is_empty).await;
    worker.say(progress(v1::AttemptPhase::Acting)).await;
    let waits = live(&world, |waiting| !waiting.is_empty()).await;
    assert_eq!(waits.waiting, "endpoint vendor: no key named `X`");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after the epoch").as_millis();
    assert!(u128::from(waits.waiting_since_millis) + 60_000 <= now, "it says since when");

    let update = world.follow(run).await.message().await.expect("an update").expect("there");
    assert_eq!(update.waiting, [waits.waiting.as_str()]);
    let request = v1::ListEpisodesRequest { run_id: run.to_string() };
    let mut rows = world.control().await.list_episodes(request).await.expect("episodes").into_inner();
    let row = rows.message().await.expect("a row").expect("there");
    let request = v1::GetEpisodeRequest { episode_id: common::episode_id(run, 0) };
    let episode = world.control().await.get_episode(request).await.expect("an episode").into_inner();
    for row in [row, episode.row.expect("there")] {
        assert_eq!(row.waiting, waits.waiting);
        assert!(row.waiting_since_millis > 0);
    }

    worker.say(word("", true)).await;
    live(&world, str::is_empty).await;
    world.stop().await;
}

/// Prints how many questions about money are answered in a second, each synced before its answer:
/// the figure of docs/performance.md.
#[tokio::test(flavor = "multi_thread")]
async fn many_attempts_that_ask_at_once_share_the_syncs() {
    const WORKERS: usize = 16;
    const ATTEMPTS: usize = 4;
    const ROUNDS: u32 = 50;
    const LEASE_WAIT: std::time::Duration = std::time::Duration::from_millis(500);
    let world = World::start().await;
    // A cap that is never reached: each question costs what one costs in the common case.
    let run = world.submit_many(WORKERS * ATTEMPTS).await;
    let mut workers = Vec::new();
    let mut attempts = 0;
    for _ in 0..WORKERS {
        let mut worker = FakeWorker::connect_with_slots(&world.access(), 0).await;
        let mut leases = Vec::new();
        // How many it is given at first is the coordinator's business.
        while leases.len() < ATTEMPTS
            && let Ok(lease) = tokio::time::timeout(LEASE_WAIT, worker.lease()).await
        {
            leases.push(lease);
        }
        attempts += leases.len();
        workers.push((worker, leases));
    }
    let start = std::time::Instant::now();
    let asking: Vec<_> =
        workers.into_iter().map(|(worker, leases)| tokio::spawn(ask_in_rounds(worker, leases, ROUNDS))).collect();
    let mut answered = 0;
    for worker in asking {
        answered += worker.await.expect("answered");
    }
    let rate = f64::from(answered) / start.elapsed().as_secs_f64();
    println!("{answered} reservations of {attempts} attempts at a time: {rate:.0} a second");
    assert!(budget(&world, run).await.escrow_nanos > 0);
    world.stop().await;
}

/// Every lease asks again as soon as it was answered; how many answers there were.
async fn ask_in_rounds(mut worker: FakeWorker, leases: Vec<LeaseRef>, rounds: u32) -> u32 {
    let question = |lease: &LeaseRef, granted: u64| {
        // Everything that was granted is spent.
        let bound_nanos = granted + 1000;
        let known = Some(purse(state(granted, granted, 0)));
        let attempt = Some((*lease).into());
        Up::EscrowRequest(v1::EscrowRequest { attempt, state: known, wanted_nanos: bound_nanos, bound_nanos })
    };
    for lease in &leases {
        worker.say(question(lease, 0)).await;
    }
    let asked = u32::try_from(leases.len()).expect("few");
    let total = rounds * asked;
    for answered in 1..=total {
        let answer = answer(&mut worker).await;
        assert_eq!(answer.rest, None);
        let lease = convert::lease(answer.attempt.as_ref()).expect("a lease");
        if answered + asked <= total {
            worker.say(question(&lease, answer.granted_nanos)).await;
        }
    }
    total
}

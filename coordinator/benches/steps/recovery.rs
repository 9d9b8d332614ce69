//! A large store, made by a generator, and how long it takes until a coordinator over it answers.
//!
//! All of it is one open run, so that the engine has every episode of it: what is settled is forgotten
//! otherwise. Steps are written as they come from workers; the journal is cut as the coordinator cuts it.

use std::time::Instant;

use longhaul_core::agent::{AgentSpec, Answer};
use longhaul_core::budget::RunBudgets;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, Epoch, RunId, WorkerId};
use longhaul_core::notes::AttemptNotes;
use longhaul_core::outcome::{AttemptEnd, EndedBy, Settlement, Verdict};
use longhaul_core::plan::{EnvEntry, EpisodeEntry, Resources, RetryPolicy, RunPlan};
use longhaul_core::resume::ResumePolicy;
use longhaul_core::snapshot::SnapshotPolicy;
use longhaul_core::step::{Screenshot, StepRecord, StepTiming};
use longhaul_core::time::{Millis, Timestamp};
use longhaul_engine::{Engine, Event, LeaseRef, Settings};
use longhaul_store::{
    AttemptFinish, AttemptRecord, Blob, Change, EpisodeRecord, EpisodeState, OpenOptions, RunRecord, Store,
};

use crate::common::World;
use crate::on_disk;

/// Episodes that are written at one time.
const AT_ONCE: u32 = 100;

/// The coordinator cuts its journal after so many events.
const SNAPSHOT_EVERY: u64 = 5_000;

const NOW: Timestamp = Timestamp(1_700_000_000_000);
const RESOURCES: Resources = Resources { cpu_millis: 1000, memory_mib: 1024, gpus: 0 };

/// The store as it grows.
struct Generator {
    store: Store,
    engine: Engine,
    run: RunId,
    plan: RunPlan,
    png: Digest,
    steps: u32,
    unsaved: u64,
}

/// Makes it, and opens it again.
pub(crate) async fn measure(episodes: u32, steps: u32) {
    let world = World::start().await;
    let began = Instant::now();
    let world = world
        .restart_after(|path| {
            let mut generator = Generator::open(path, episodes, steps);
            // One stays open, so that the run does.
            for first in (0..episodes - 1).step_by(usize::try_from(AT_ONCE).expect("a few")) {
                generator.episodes(first, (first + AT_ONCE).min(episodes - 1));
            }
        })
        .await;
    let made = began.elapsed();
    let size = on_disk(world.store(), "") / (1 << 20);
    let began = Instant::now();
    let world = world.restart_after(|_| ()).await;
    assert!(crate::answers(&world.access()).await, "it does not answer");
    let took = began.elapsed();
    println!(
        "| recovery of a store of {episodes} episodes and {} steps | {:.2} s | from the end of one coordinator, in \
         order, to an answer of the next; one open run, {size} MiB on the disk (screenshots are not counted), in the \
         page cache; it was made in {} s |",
        u64::from(episodes) * u64::from(steps),
        took.as_secs_f64(),
        made.as_secs()
    );
    world.stop().await;
}

impl Generator {
    fn open(path: &std::path::Path, episodes: u32, steps: u32) -> Self {
        let store = Store::open(path, &OpenOptions::new(1)).expect("a store");
        let blob = |bytes: &[u8]| {
            let blob = Blob::new(bytes.to_vec());
            let digest = *blob.digest();
            store.put_blobs(vec![blob]).wait().expect("put");
            digest
        };
        let (env, each, png) = (blob(b"the plan of an env"), blob(b"the plan of an episode"), blob(b"a screenshot"));
        let entry = |index| EpisodeEntry {
            task: format!("calc_env/task{index}").parse().expect("a task"),
            agent: 0,
            sample: 0,
            plan: each,
            env: 0,
            max_cost: None,
        };
        let plan = RunPlan {
            name: "a large run".to_owned(),
            benchmark: "/nowhere".to_owned(),
            agents: vec![AgentSpec::Idle],
            envs: vec![EnvEntry { name: "calc_env".to_owned(), plan: env, resources: RESOURCES }],
            episodes: (0..episodes).map(entry).collect(),
            retry: RetryPolicy {
                max_attempts: 3,
                max_cut_offs: 3,
                backoff: Millis(1),
                resume: ResumePolicy::Restart,
                snapshots: SnapshotPolicy::OFF,
            },
            budgets: RunBudgets::default(),
            gateway: None,
            until: None,
        };
        let digest = blob(&serde_json::to_vec(&plan).expect("JSON"));
        let run = RunId::new(NOW, 1);
        let mut engine = Engine::new(Settings::default());
        let saved = store.snapshot().expect("readable");
        assert!(saved.is_none(), "a fresh store");
        for entry in store.journal(0).expect("readable") {
            engine.apply(&serde_json::from_slice(&entry.event).expect("an event"));
        }
        let mut this = Self { store, engine, run, plan, png, steps, unsaved: 0 };
        let (at, terms) = (NOW, longhaul_engine::state::RunTerms::default());
        let submitted = Event::RunSubmitted { at, run, digest, plan: this.plan.clone(), terms };
        let mut changes = vec![Change::Run(Box::new(RunRecord {
            id: run,
            name: this.plan.name.clone(),
            benchmark: this.plan.benchmark.clone(),
            plan: digest,
            episodes,
            submitted_at: NOW,
            cancelled: None,
            settled_at: None,
            scopes: Vec::new(),
            file: None,
        }))];
        changes.extend((0..episodes).map(|index| this.episode(index, 0, EpisodeState::Queued)));
        this.append(vec![submitted], changes);
        this
    }

    fn append(&mut self, events: Vec<Event>, changes: Vec<Change>) {
        events.iter().for_each(|event| self.engine.apply(event));
        self.unsaved += u64::try_from(events.len()).expect("a few");
        let events = events.iter().map(|event| serde_json::to_vec(event).expect("JSON")).collect();
        self.store.append(events, changes).wait().expect("appended");
        if self.unsaved >= SNAPSHOT_EVERY {
            let through = self.store.last_sequence().expect("readable");
            let state = serde_json::to_vec(&self.engine.snapshot()).expect("JSON");
            self.store.put_snapshot(through, state).wait().expect("put");
            self.store.prune_journal(through).wait().expect("pruned");
            self.unsaved = 0;
        }
    }

    const fn attempt_id(&self, index: u32) -> AttemptId {
        AttemptId { episode: EpisodeId { run: self.run, index }, number: 1 }
    }

    fn episode(&self, index: u32, attempts: u32, state: EpisodeState) -> Change {
        let entry = &self.plan.episodes[usize::try_from(index).expect("an index")];
        Change::Episode(Box::new(EpisodeRecord {
            id: EpisodeId { run: self.run, index },
            task: entry.task.clone(),
            agent: "idle".to_owned(),
            sample: 0,
            plan: entry.plan,
            attempts,
            state,
            earlier: Vec::new(),
        }))
    }

    fn attempt(&self, index: u32, finish: Option<AttemptFinish>) -> Change {
        Change::Attempt(Box::new(AttemptRecord {
            id: self.attempt_id(index),
            epoch: epoch(index),
            worker: worker(),
            hostname: "node1".to_owned(),
            started: NOW,
            finish,
        }))
    }

    /// Leases, steps and verdicts of some episodes.
    fn episodes(&mut self, first: u32, end: u32) {
        let lease = |this: &Self, index| LeaseRef { attempt: this.attempt_id(index), epoch: epoch(index) };
        let granted = |this: &Self, index| Event::LeaseGranted {
            at: NOW,
            lease: lease(this, index),
            worker: worker(),
            reserved: RESOURCES,
            resumes: false,
        };
        let events = (first..end).map(|index| granted(self, index)).collect();
        let held = |index| {
            let attempt = self.attempt_id(index);
            let lease = Change::Lease { attempt, epoch: epoch(index), resumes: false };
            [self.attempt(index, None), lease, self.episode(index, 1, EpisodeState::Active { attempt })]
        };
        let changes = (first..end).flat_map(held).collect();
        self.append(events, changes);

        let (mut tickets, mut last) = (Vec::new(), None);
        for index in first..end {
            for number in 0..self.steps {
                let record = serde_json::to_vec(&step(number, self.png)).expect("JSON");
                last = Some(Digest::of(&record));
                tickets.push(self.store.put_step(self.attempt_id(index), epoch(index), number, record));
            }
        }
        for ticket in tickets {
            assert!(!ticket.wait().expect("stored").late, "it has the lease");
        }
        let mut events = Vec::new();
        let mut changes = Vec::new();
        for index in first..end {
            let (lease, attempt) = (lease(self, index), self.attempt_id(index));
            let verdict = verdict();
            let settlement = Settlement::Verdict(verdict.clone());
            let end = AttemptEnd::Verdict(verdict);
            events.push(Event::AttemptEnded {
                at: NOW,
                lease,
                worker: worker(),
                end: end.clone(),
                steps: self.steps,
                cut_off: None,
                purses: Vec::new(),
            });
            events.push(Event::EpisodeSettled { at: NOW, episode: attempt.episode, settlement: settlement.clone() });
            let notes = AttemptNotes { hostname: "node1".to_owned(), ..AttemptNotes::default() };
            let finish = AttemptFinish { at: NOW, end, steps: self.steps, last_step: last, notes, late: false };
            let settled = EpisodeState::Settled { settlement, at: NOW, attempt: Some(attempt) };
            changes.push(self.attempt(index, Some(finish)));
            changes.push(self.episode(index, 1, settled));
            changes.push(Change::LeaseOver { episode: attempt.episode });
        }
        self.append(events, changes);
    }
}

fn worker() -> WorkerId {
    WorkerId::new(NOW, 1)
}

fn epoch(index: u32) -> Epoch {
    Epoch(u64::from(index) + 1)
}

fn verdict() -> Verdict {
    Verdict {
        passed: true,
        score: 100.0,
        feedback: "right".to_owned(),
        details: serde_json::Value::Null,
        ended_by: EndedBy::Agent,
        parts: None,
    }
}

/// A step as an agent's is: what it said, and where it clicked.
fn step(number: u32, png: Digest) -> StepRecord {
    let text =
        format!("In step {number} I open the next cell of the column and type the amount that is in the picture.");
    let click = serde_json::json!({"mouse": {"left_click": [number % 1280, number % 720]}});
    StepRecord {
        number,
        at: Timestamp(NOW.0 + u64::from(number)),
        answer: (number > 0).then(|| Answer { text: Some(text), actions: vec![click], ..Answer::default() }),
        outcomes: Vec::new(),
        screen: Screenshot { png, width: 1280, height: 720 },
        rested: true,
        timing: StepTiming::default(),
        calls: Vec::new(),
        told: None,
        unreadable: Vec::new(),
        round: None,
        stirred: Vec::new(),
    }
}

//! A worker in the middle, with a coordinator on one side and a vendor on the other.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_core::agent::AgentPlan;
use longhaul_core::budget::EpisodeBudget;
use longhaul_core::call::CallRecord;
use longhaul_core::digest::Digest;
use longhaul_core::endpoint::{EndpointPlan, GatewayPlan, Protocol};
use longhaul_core::ids::{AttemptId, EpisodeId, Epoch, RunId};
use longhaul_core::notes::AttemptNotes;
use longhaul_core::outcome::AttemptEnd;
use longhaul_core::plan::{EpisodePlan, TaskPlan, Tree};
use longhaul_core::resume::Kept;
use longhaul_core::step::StepRecord;
use longhaul_core::time::{Millis, Timestamp};
use longhaul_proto::convert::LeaseRef;
use longhaul_proto::v1;
use longhaul_proto::v1::to_worker::Message as Down;
use longhaul_proto::v1::trajectory_piece::Piece;
use serde_json::Value;

use crate::session::tests::config;
use crate::testing::coordinator::Coordinator;
use crate::testing::plans;
use crate::testing::sandbox::{FolderDriver, World};
use crate::{Endpoint, Shutdown, ShutdownTrigger, WorkerConfig, run_with};

/// A vendor: what it was asked, and what it answers.
pub(super) struct Vendor {
    port: u16,
    pub(super) requests: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Vendor {
    /// Answers each request with a status and a body.
    pub(super) fn start(answer: impl FnMut(&Value) -> (u16, Value) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (kept, answer) = (Arc::clone(&requests), Arc::new(Mutex::new(answer)));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (kept, answer) = (Arc::clone(&kept), Arc::clone(&answer));
                std::thread::spawn(move || {
                    // A client that goes away is no concern of the vendor's.
                    drop(serve(stream, |path, body| {
                        let answered = (answer.lock().unwrap())(&body);
                        kept.lock().unwrap().push((path, body));
                        answered
                    }));
                });
            }
        });
        Self { port, requests }
    }

    /// Answers with these bodies in turn, the last one again and again.
    pub(super) fn with(bodies: Vec<Value>) -> Self {
        let mut next = 0;
        Self::start(move |_| {
            let body = bodies[next.min(bodies.len() - 1)].clone();
            next += 1;
            (200, body)
        })
    }

    pub(super) fn plan(&self, name: &str, protocol: Protocol) -> EndpointPlan {
        EndpointPlan { urls: vec![format!("http://127.0.0.1:{}", self.port)], ..plans::endpoint(name, protocol) }
    }
}

fn serve(stream: TcpStream, mut answer: impl FnMut(String, Value) -> (u16, Value)) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            if header.trim().is_empty() {
                break;
            }
            if let Some(value) = header.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let (status, body) = answer(path, serde_json::from_slice(&body).unwrap_or(Value::Null));
        let body = body.to_string();
        let head =
            format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
    }
}

/// What came of an episode.
pub(super) struct Came {
    pub(super) end: AttemptEnd,
    pub(super) steps: Vec<StepRecord>,
    pub(super) calls: Vec<CallRecord>,
    pub(super) notes: AttemptNotes,
}

pub(super) struct Scene {
    pub(super) coordinator: Coordinator,
    pub(super) world: Arc<World>,
    pub(super) folder: tempfile::TempDir,
    next: AtomicU32,
    /// The last attempt and its plan.
    last: Mutex<Option<(LeaseRef, Digest)>>,
    _shutdown: ShutdownTrigger,
}

impl Scene {
    pub(super) fn start() -> Self {
        Self::with(Duration::from_secs(600), |_| {})
    }

    /// With leases that last so long, and a worker that is told something else.
    pub(super) fn with(lease: Duration, change: impl FnOnce(&mut WorkerConfig)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let coordinator = Coordinator::start(folder.path(), lease);
        let world = Arc::new(World::default());
        let mut config = config(&folder.path().join("scratch"));
        change(&mut config);
        let endpoint = Endpoint::Unix { path: coordinator.socket.clone(), token: None };
        let (shutdown, heard) = Shutdown::new();
        tokio::spawn(run_with(config, endpoint, heard, Arc::new(FolderDriver(Arc::clone(&world)))));
        Self { coordinator, world, folder, next: AtomicU32::new(0), last: Mutex::default(), _shutdown: shutdown }
    }

    /// Runs an episode to its end. What is not verified is unverified.
    pub(super) async fn run(
        &self,
        agent: AgentPlan,
        endpoints: Vec<EndpointPlan>,
        change: impl FnOnce(&mut EpisodePlan),
    ) -> Came {
        self.run_task(agent, endpoints, |_| {}, change).await
    }

    /// The same, of a task that is something else.
    pub(super) async fn run_task(
        &self,
        agent: AgentPlan,
        endpoints: Vec<EndpointPlan>,
        change_task: impl FnOnce(&mut TaskPlan),
        change: impl FnOnce(&mut EpisodePlan),
    ) -> Came {
        let coordinator = &self.coordinator;
        let tree = coordinator.put_json(&Tree::default());
        let env = coordinator.put_json(&plans::env(tree));
        let mut task = TaskPlan {
            description: "Make the list.".to_owned(),
            post_task: Some("export".to_owned()),
            ..plans::task(env, tree)
        };
        change_task(&mut task);
        let task = coordinator.put_json(&task);
        let plan = GatewayPlan { endpoints, ..GatewayPlan::default() };
        let mut episode = EpisodePlan {
            budget: EpisodeBudget::of(20, Millis(600_000)),
            gateway: Some(coordinator.put_json(&plan)),
            ..plans::episode(task, agent)
        };
        change(&mut episode);
        let plan = coordinator.put_json(&episode);
        let index = self.next.fetch_add(1, Ordering::SeqCst);
        let episode = EpisodeId { run: RunId::new(Timestamp(1), 1), index };
        let lease = LeaseRef { attempt: AttemptId { episode, number: 1 }, epoch: Epoch(u64::from(index) + 1) };
        *self.last.lock().unwrap() = Some((lease, plan));
        self.lead(lease, plan, false).await
    }

    /// Goes on with the last episode, of which so many steps are kept, in a sandbox that draws the same
    /// again; what was written down beside them may be something else.
    pub(super) async fn go_on(&self, came: &Came, steps: usize, change: impl Fn(&mut (String, Digest))) -> Came {
        let desk = &self.coordinator.desk;
        let (lease, plan) = self.last.lock().unwrap().unwrap();
        let (attempt, records) = (lease.attempt.to_string(), &came.steps[..steps]);
        let end = u32::try_from(steps).unwrap();
        let kept = Kept { parent: lease.attempt.number, steps: end, last: records[steps - 1].digest().unwrap() };
        let links = vec![v1::TrajectoryLink { attempt: attempt.clone(), first: 0, end }];
        let kept_json = serde_json::to_vec(&kept).unwrap().into();
        let mut pieces = vec![Piece::Head(v1::TrajectoryHead { kept_json, links })];
        for mut log in desk.logs.lock().unwrap().clone() {
            change(&mut log);
            let digest = log.1.as_bytes().to_vec().into();
            pieces.push(Piece::Log(v1::RecordedLog { attempt: attempt.clone(), name: log.0, digest }));
        }
        for record in records {
            let record_json = serde_json::to_vec(record).unwrap().into();
            let number = record.number;
            pieces.push(Piece::Step(v1::RecordedStep { attempt: attempt.clone(), number, record_json }));
        }
        *desk.kept.lock().unwrap() =
            pieces.into_iter().map(|piece| v1::TrajectoryPiece { piece: Some(piece) }).collect();
        self.world.steps.store(0, Ordering::SeqCst);
        let next = AttemptId { number: lease.attempt.number + 1, ..lease.attempt };
        let lease = LeaseRef { attempt: next, epoch: Epoch(lease.epoch.0 + 1000) };
        *self.last.lock().unwrap() = Some((lease, plan));
        self.lead(lease, plan, true).await
    }

    /// Leads an attempt to its end.
    async fn lead(&self, lease: LeaseRef, plan: Digest, resumes: bool) -> Came {
        let (coordinator, desk) = (&self.coordinator, &self.coordinator.desk);
        let (steps, calls) = (desk.records.lock().unwrap().len(), desk.calls.lock().unwrap().len());
        let plan = plan.as_bytes().to_vec().into();
        let told = v1::Lease { attempt: Some(lease.into()), plan, uncapped: true, resumes, ..v1::Lease::default() };
        coordinator.say(Down::Lease(told)).await;
        let ended = |desk: &crate::testing::coordinator::Desk| {
            desk.ends.lock().unwrap().iter().position(|(seen, ..)| *seen == lease)
        };
        coordinator.until("the end", |desk| ended(desk).is_some()).await;
        let at = ended(desk).unwrap();
        let end = desk.ends.lock().unwrap()[at].1.clone();
        let notes = desk.notes.lock().unwrap()[at].clone();
        let steps = desk.records.lock().unwrap()[steps..].to_vec();
        let calls = desk.calls.lock().unwrap()[calls..].to_vec();
        Came { end, steps, calls, notes }
    }
}

impl Came {
    /// What ended it in order.
    pub(super) fn ended_by(&self) -> longhaul_core::outcome::EndedBy {
        match &self.end {
            AttemptEnd::Unverified { ended_by, .. } => *ended_by,
            other => panic!("{other:?}"),
        }
    }

    /// The fault that ended it.
    pub(super) fn fault(&self) -> &longhaul_core::outcome::Fault {
        match &self.end {
            AttemptEnd::Fault(fault) => fault,
            other => panic!("{other:?}"),
        }
    }
}

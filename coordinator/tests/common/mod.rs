//! What the tests share: a coordinator in a folder of its own, and a played worker.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use longhaul_coordinator::{Config, Coordinator, Listen, StartError};
use longhaul_core::agent::{AgentSpec, Answer, Harness};
use longhaul_core::budget::RunBudgets;
use longhaul_core::digest::Digest;
use longhaul_core::endpoint::GatewayPlan;
use longhaul_core::ids::{EpisodeId, RunId, WorkerId};
use longhaul_core::money::Money;
use longhaul_core::notes::AttemptNotes;
use longhaul_core::outcome::{AttemptEnd, EndedBy, Fault, SettlementKind, Verdict};
use longhaul_core::plan::{EnvEntry, EpisodeEntry, Resources, RetryPolicy, RunPlan};
use longhaul_core::resume::ResumePolicy;
use longhaul_core::step::{Screenshot, StepRecord, StepTiming};
use longhaul_core::time::{Millis, Timestamp};
use longhaul_proto::access::{Access, Connection};
use longhaul_proto::convert::{self, LeaseRef};
use longhaul_proto::v1;
use longhaul_proto::v1::blob_service_client::BlobServiceClient;
use longhaul_proto::v1::control_service_client::ControlServiceClient;
use longhaul_proto::v1::from_worker::Message as Up;
use longhaul_proto::v1::to_worker::Message as Down;
use longhaul_proto::v1::worker_service_client::WorkerServiceClient;
use longhaul_store::{EpisodeState, SpaceFloor};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// A coordinator over a store of its own.
pub(crate) struct World {
    pub(crate) coordinator: Coordinator,
    config: Config,
    folder: tempfile::TempDir,
}

fn config(store: PathBuf) -> Config {
    let engine = longhaul_engine::Settings {
        lease_ttl: Millis::from_secs(60),
        skew: Millis::from_secs(5),
        ..longhaul_engine::Settings::default()
    };
    Config {
        store,
        listen: None,
        runtime_dir: None,
        engine,
        heartbeat: Millis(200),
        floor: SpaceFloor::default(),
        slurm: None,
        generation: None,
    }
}

pub(crate) fn png_blob() -> Vec<u8> {
    b"not really a picture".to_vec()
}

pub(crate) fn episode_id(run: RunId, index: u32) -> String {
    EpisodeId { run, index }.to_string()
}

/// What a client with this access is told.
pub(crate) async fn status(access: &Access) -> Result<v1::StatusResponse, Status> {
    let connection = access.connect().await.expect("reachable");
    ControlServiceClient::new(connection).status(v1::StatusRequest {}).await.map(tonic::Response::into_inner)
}

impl World {
    async fn from(config: Config, folder: tempfile::TempDir) -> Self {
        let coordinator = Coordinator::start(config.clone()).await.expect("a coordinator");
        Self { coordinator, config, folder }
    }

    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self::from(config(folder.path().join("store")), folder).await
    }

    /// Over a copy of a stored example of a store.
    pub(crate) async fn start_on(example: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (from, to) =
            (PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(example), folder.path().join("store"));
        std::fs::create_dir_all(to.join("db")).expect("a folder");
        std::fs::copy(from.join("format"), to.join("format")).expect("copied");
        for file in std::fs::read_dir(from.join("db")).expect("an example") {
            let file = file.expect("an entry");
            std::fs::copy(file.path(), to.join("db").join(file.file_name())).expect("copied");
        }
        Self::from(config(to), folder).await
    }

    /// All of whose workers, which are on one node, may start something at one time.
    pub(crate) async fn start_unpaced() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = config(folder.path().join("store"));
        config.engine.max_starting = u32::MAX;
        Self::from(config, folder).await
    }

    pub(crate) async fn start_with_short_leases() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = config(folder.path().join("store"));
        config.engine.lease_ttl = Millis(1000);
        config.engine.skew = Millis(3000);
        Self::from(config, folder).await
    }

    /// On a disk that counts as full for everything.
    pub(crate) async fn start_on_a_full_disk() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = config(folder.path().join("store"));
        config.floor = SpaceFloor { bulk: u64::MAX, journal: u64::MAX };
        Self::from(config, folder).await
    }

    pub(crate) async fn start_with_tls() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = config(folder.path().join("store"));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        config.listen = Some(Listen { address, host: "127.0.0.1".to_owned() });
        Self::from(config, folder).await
    }

    /// One that gives way to later ones.
    pub(crate) async fn start_as_generation(generation: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = Config { generation: Some(generation), ..config(folder.path().join("store")) };
        Self::from(config, folder).await
    }

    pub(crate) async fn start_second(&self) -> Result<Coordinator, StartError> {
        Coordinator::start(self.config.clone()).await
    }

    pub(crate) async fn restart(self) -> Self {
        self.restart_after(|_| ()).await
    }

    /// Does something with the store while no coordinator has it.
    pub(crate) async fn restart_after(self, act: impl FnOnce(&std::path::Path)) -> Self {
        let Self { coordinator, config, folder } = self;
        coordinator.stop().await.expect("stopped in order");
        act(&config.store);
        Self::from(config, folder).await
    }

    /// Its folder goes with what is given back.
    pub(crate) async fn stop_and_keep(self) -> tempfile::TempDir {
        self.coordinator.stop().await.expect("stopped in order");
        self.folder
    }

    pub(crate) async fn stop(self) {
        self.coordinator.stop().await.expect("stopped in order");
        drop(self.folder);
    }

    pub(crate) fn store(&self) -> &std::path::Path {
        &self.config.store
    }

    pub(crate) fn access(&self) -> Access {
        Access::read(self.coordinator.local_access()).expect("an access file")
    }

    async fn connection(&self) -> Connection {
        self.access().connect().await.expect("reachable")
    }

    pub(crate) async fn control(&self) -> ControlServiceClient<Connection> {
        ControlServiceClient::new(self.connection().await)
    }

    pub(crate) async fn follow(&self, run: RunId) -> Streaming<v1::RunUpdate> {
        let request = v1::FollowRequest { run_id: run.to_string() };
        self.control().await.follow(request).await.expect("followed").into_inner()
    }

    pub(crate) fn new_run(&self) -> RunId {
        RunId::new(Timestamp(1_700_000_000_000), random())
    }

    pub(crate) async fn put_blob(&self, bytes: &[u8]) -> Digest {
        let digest = Digest::of(bytes);
        self.put_blob_as(&digest, bytes).await.expect("put");
        digest
    }

    pub(crate) async fn put_blob_as(&self, digest: &Digest, bytes: &[u8]) -> Result<u32, Status> {
        put(&mut BlobServiceClient::new(self.connection().await), digest, bytes).await
    }

    pub(crate) async fn get_blob(&self, digest: &Digest) -> Result<Vec<u8>, Status> {
        let request = v1::GetBlobRequest { digest: convert::digest_bytes(digest).into() };
        let mut stream = BlobServiceClient::new(self.connection().await).get(request).await?.into_inner();
        let mut bytes = Vec::new();
        while let Some(piece) = stream.message().await? {
            bytes.extend_from_slice(&piece.data);
        }
        Ok(bytes)
    }

    pub(crate) async fn submit(&self, episodes: u32) -> RunId {
        let run = self.new_run();
        self.submit_as(run, episodes).await.expect("submitted");
        run
    }

    pub(crate) async fn submit_as(&self, run: RunId, episodes: u32) -> Result<v1::SubmitResponse, Status> {
        let mut plans = Vec::new();
        for index in 0..episodes {
            plans.push(self.put_blob(format!("the plan of episode {index}").as_bytes()).await);
        }
        self.submit_plans(run, plans).await
    }

    /// A run of many episodes, all with one plan.
    pub(crate) async fn submit_many(&self, episodes: usize) -> RunId {
        let run = self.new_run();
        let plan = self.put_blob(b"the plan of each episode").await;
        self.submit_plans(run, vec![plan; episodes]).await.expect("submitted");
        run
    }

    /// A run of one episode that may spend so many billionths of a dollar.
    pub(crate) async fn submit_with_cap(&self, cap: u64) -> RunId {
        let run = self.new_run();
        let plan = self.put_blob(b"the plan of an episode that costs").await;
        let budgets = RunBudgets { run: Some(Money::from_nanos(cap)), ..RunBudgets::default() };
        self.submit_with(run, vec![plan], budgets, None, AgentSpec::Idle).await.expect("submitted");
        run
    }

    /// A run of one episode that may call these endpoints.
    pub(crate) async fn submit_with_gateway(&self, gateway: &GatewayPlan) -> RunId {
        let run = self.new_run();
        self.submit_gateway_as(run, gateway).await.expect("submitted");
        run
    }

    pub(crate) async fn submit_gateway_as(
        &self,
        run: RunId,
        gateway: &GatewayPlan,
    ) -> Result<v1::SubmitResponse, Status> {
        let plan = self.put_blob(b"the plan of an episode that calls").await;
        let gateway = self.put_blob(&serde_json::to_vec(gateway).expect("JSON")).await;
        self.submit_with(run, vec![plan], RunBudgets::default(), Some(gateway), AgentSpec::Idle).await
    }

    /// A run of one episode whose agent is a model of this endpoint.
    pub(crate) async fn submit_with_model(&self, endpoint: &str) -> RunId {
        let run = self.new_run();
        let plan = self.put_blob(b"the plan of an episode with a model").await;
        let agent = AgentSpec::Model {
            name: "model".to_owned(),
            harness: Harness::Tools,
            endpoint: endpoint.to_owned(),
            model: "model".to_owned(),
        };
        self.submit_with(run, vec![plan], RunBudgets::default(), None, agent).await.expect("submitted");
        run
    }

    async fn submit_plans(&self, run: RunId, plans: Vec<Digest>) -> Result<v1::SubmitResponse, Status> {
        self.submit_with(run, plans, RunBudgets::default(), None, AgentSpec::Idle).await
    }

    async fn submit_with(
        &self,
        run: RunId,
        plans: Vec<Digest>,
        budgets: RunBudgets,
        gateway: Option<Digest>,
        agent: AgentSpec,
    ) -> Result<v1::SubmitResponse, Status> {
        let plan = self.plan_of(plans, budgets, gateway, agent).await;
        let plan = self.put_blob(&serde_json::to_vec(&plan).expect("JSON")).await;
        self.submit_plan(run, &plan).await
    }

    /// A run whose episodes go on where they were cut off.
    pub(crate) async fn submit_that_resumes(&self, episodes: u32) -> RunId {
        let run = self.new_run();
        let mut plans = Vec::new();
        for index in 0..episodes {
            plans.push(self.put_blob(format!("the plan of episode {index}").as_bytes()).await);
        }
        let mut plan = self.plan_of(plans, RunBudgets::default(), None, AgentSpec::Idle).await;
        plan.retry.resume = ResumePolicy::Auto;
        let plan = self.put_blob(&serde_json::to_vec(&plan).expect("JSON")).await;
        self.submit_plan(run, &plan).await.expect("submitted");
        run
    }

    async fn plan_of(
        &self,
        plans: Vec<Digest>,
        budgets: RunBudgets,
        gateway: Option<Digest>,
        agent: AgentSpec,
    ) -> RunPlan {
        let env = self.put_blob(b"the plan of an env").await;
        let entry = |(index, plan)| {
            let task = format!("calc_env/task{index}").parse().expect("a task");
            EpisodeEntry { task, agent: 0, sample: 0, plan, env: 0, max_cost: None }
        };
        let resources = Resources { cpu_millis: 1000, memory_mib: 1024, gpus: 0 };
        RunPlan {
            name: "a test".to_owned(),
            benchmark: "/nowhere".to_owned(),
            agents: vec![agent],
            envs: vec![EnvEntry { name: "calc_env".to_owned(), plan: env, resources }],
            episodes: plans.into_iter().enumerate().map(entry).collect(),
            retry: RetryPolicy {
                max_attempts: 3,
                max_cut_offs: 3,
                backoff: Millis(1),
                resume: ResumePolicy::Restart,
                snapshots: longhaul_core::snapshot::SnapshotPolicy::OFF,
            },
            budgets,
            gateway,
            until: None,
        }
    }

    pub(crate) async fn submit_without_blobs(&self, run: RunId) -> Result<v1::SubmitResponse, Status> {
        self.submit_plan(run, &Digest::of(b"never put")).await
    }

    async fn submit_plan(&self, run: RunId, plan: &Digest) -> Result<v1::SubmitResponse, Status> {
        let plan = convert::digest_bytes(plan).into();
        let request = v1::SubmitRequest { run_id: run.to_string(), plan, ..v1::SubmitRequest::default() };
        self.control().await.submit(request).await.map(tonic::Response::into_inner)
    }

    pub(crate) fn settlement(&self, run: RunId, index: u32) -> Option<SettlementKind> {
        let record = self.coordinator.reader().episode(EpisodeId { run, index }).expect("readable").expect("there");
        match record.state {
            EpisodeState::Settled { settlement, .. } => Some(settlement.kind()),
            EpisodeState::Queued | EpisodeState::Active { .. } => None,
        }
    }
}

async fn put(blobs: &mut BlobServiceClient<Connection>, digest: &Digest, bytes: &[u8]) -> Result<u32, Status> {
    let mut chunks = Vec::new();
    for (index, piece) in bytes.chunks(1 << 20).enumerate() {
        let digest = if index == 0 { convert::digest_bytes(digest) } else { Vec::new() };
        chunks.push(v1::PutBlobChunk { digest: digest.into(), size: bytes.len() as u64, data: piece.to_vec().into() });
    }
    if chunks.is_empty() {
        chunks.push(v1::PutBlobChunk { digest: convert::digest_bytes(digest).into(), ..Default::default() });
    }
    blobs.put(tokio_stream::iter(chunks)).await.map(|answer| answer.into_inner().stored)
}

/// A worker as the coordinator sees one.
#[derive(Debug)]
pub(crate) struct FakeWorker {
    pub(crate) id: WorkerId,
    pub(crate) welcome: v1::Welcome,
    up: mpsc::Sender<v1::FromWorker>,
    down: Streaming<v1::ToWorker>,
    leases: VecDeque<LeaseRef>,
    blobs: BlobServiceClient<Connection>,
}

impl FakeWorker {
    pub(crate) async fn connect(access: &Access, live: &[LeaseRef]) -> Self {
        Self::connect_as(new_worker(), access, live).await
    }

    pub(crate) async fn connect_as(id: WorkerId, access: &Access, live: &[LeaseRef]) -> Self {
        Self::dial(id, access, live, 1, longhaul_proto::PROTOCOL_VERSION).await.expect("a session")
    }

    /// A worker with a lease, whose first observation is acknowledged.
    pub(crate) async fn with_first_step(access: &Access) -> (Self, LeaseRef) {
        let mut worker = Self::connect(access, &[]).await;
        let lease = worker.lease().await;
        worker.put_blob(&png_blob()).await;
        worker.step(&lease, 0).await;
        assert_eq!(worker.step_ack().await, 0);
        (worker, lease)
    }

    pub(crate) async fn connect_with_slots(access: &Access, slots: u32) -> Self {
        Self::dial(new_worker(), access, &[], slots, longhaul_proto::PROTOCOL_VERSION).await.expect("a session")
    }

    pub(crate) async fn try_connect_with_version(access: &Access, version: u32) -> Result<Self, Status> {
        Self::dial(new_worker(), access, &[], 1, version).await
    }

    async fn dial(id: WorkerId, access: &Access, live: &[LeaseRef], slots: u32, version: u32) -> Result<Self, Status> {
        let connection = access.connect().await.expect("reachable");
        let (up, receiver) = mpsc::channel(64);
        let hello = v1::Hello {
            protocol_version: version,
            worker_id: id.to_string(),
            hostname: "node1".to_owned(),
            pid: 1,
            version: "test".to_owned(),
            cpu_millis: 4000,
            memory_mib: 8192,
            gpus: 0,
            max_slots: slots,
            live: live.iter().map(|lease| (*lease).into()).collect(),
            slurm_job_id: String::new(),
            ..v1::Hello::default()
        };
        up.send(v1::FromWorker { message: Some(Up::Hello(hello)) }).await.expect("room");
        let mut client = WorkerServiceClient::new(connection.clone());
        let mut down = client.session(ReceiverStream::new(receiver)).await?.into_inner();
        let first = down.message().await?.and_then(|message| message.message);
        let Some(Down::Welcome(welcome)) = first else { panic!("{first:?} is no welcome") };
        Ok(Self { id, welcome, up, down, leases: VecDeque::new(), blobs: BlobServiceClient::new(connection) })
    }

    pub(crate) async fn say(&self, message: Up) {
        self.up.send(v1::FromWorker { message: Some(message) }).await.expect("the session is open");
    }

    /// Says heartbeats that name a hundred leases which it does not hold, each of which is told to
    /// it, and reads nothing, until the session is closed. Answers with how many were said, or
    /// with nothing if so many were taken.
    pub(crate) async fn flood(&self, most: u64) -> Option<u64> {
        let run = RunId::new(Timestamp(1_700_000_000_000), random());
        let lease = |index| v1::AttemptRef { attempt: format!("{}/1", episode_id(run, index)), epoch: 1 };
        let live: Vec<v1::AttemptRef> = (0..100).map(lease).collect();
        for sequence in 1..=most {
            let beat = v1::Heartbeat { sequence, live: live.clone(), ..v1::Heartbeat::default() };
            if self.up.send(v1::FromWorker { message: Some(Up::Heartbeat(beat)) }).await.is_err() {
                return Some(sequence);
            }
        }
        None
    }

    /// The next message, whatever it is.
    pub(crate) async fn next(&mut self) -> Down {
        let message = self.down.message().await.expect("the session is open").expect("not the end");
        message.message.expect("a message")
    }

    /// What `pick` makes of the first message that it takes; what comes before that is passed over.
    pub(crate) async fn until<T>(&mut self, pick: impl Fn(Down) -> Option<T>) -> T {
        loop {
            if let Some(picked) = pick(self.next().await) {
                return picked;
            }
        }
    }

    /// A lease that comes while something else is waited for; they are also sent again
    /// after a reconnect.
    fn keep(&mut self, lease: &v1::Lease) {
        self.leases.push_back(convert::lease(lease.attempt.as_ref()).expect("a lease"));
    }

    /// How many leases came while something else was waited for.
    pub(crate) fn leases(&self) -> usize {
        self.leases.len()
    }

    /// Why the session ended.
    pub(crate) async fn closed(&mut self) -> Option<Status> {
        loop {
            match self.down.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    }

    pub(crate) async fn lease(&mut self) -> LeaseRef {
        if let Some(lease) = self.leases.pop_front() {
            return lease;
        }
        let message = self.next().await;
        let Down::Lease(lease) = message else { panic!("{message:?} is no lease") };
        convert::lease(lease.attempt.as_ref()).expect("a lease")
    }

    /// Waits for a lease as a worker does, saying now and then that it is there.
    pub(crate) async fn lease_while_beating(&mut self) -> LeaseRef {
        let mut sequence = 0;
        loop {
            sequence += 1;
            self.heartbeat(sequence, &[]).await;
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            match self.next().await {
                Down::Lease(lease) => return convert::lease(lease.attempt.as_ref()).expect("a lease"),
                Down::HeartbeatAck(_) => {}
                other => panic!("{other:?} is no lease"),
            }
        }
    }

    pub(crate) async fn heartbeat(&mut self, sequence: u64, live: &[LeaseRef]) {
        let live = live.iter().map(|lease| (*lease).into()).collect();
        self.say(Up::Heartbeat(v1::Heartbeat { sequence, live, ..v1::Heartbeat::default() })).await;
    }

    pub(crate) async fn renewed(&mut self) -> Vec<v1::AttemptRef> {
        loop {
            match self.next().await {
                Down::HeartbeatAck(ack) => return ack.renewed,
                Down::Lease(lease) => self.keep(&lease),
                other => panic!("{other:?} is no answer to a heartbeat"),
            }
        }
    }

    pub(crate) async fn put_blob(&mut self, bytes: &[u8]) {
        put(&mut self.blobs, &Digest::of(bytes), bytes).await.expect("put");
    }

    pub(crate) async fn step(&self, lease: &LeaseRef, number: u32) {
        let record_json = serde_json::to_vec(&record(number)).expect("JSON").into();
        self.say(Up::Step(v1::StepReport { attempt: Some((*lease).into()), number, record_json })).await;
    }

    /// A step whose screenshot was put before.
    pub(crate) async fn step_showing(&self, lease: &LeaseRef, number: u32, png: Digest) {
        let screen = Screenshot { png, width: 1280, height: 720 };
        let record_json = serde_json::to_vec(&StepRecord { screen, ..record(number) }).expect("JSON").into();
        self.say(Up::Step(v1::StepReport { attempt: Some((*lease).into()), number, record_json })).await;
    }

    pub(crate) async fn step_ack(&mut self) -> u32 {
        loop {
            match self.next().await {
                Down::StepAck(ack) => return ack.number,
                Down::Lease(lease) => self.keep(&lease),
                Down::HeartbeatAck(_) => {}
                other => panic!("{other:?} is no acknowledgement"),
            }
        }
    }

    pub(crate) async fn log(&mut self, lease: &LeaseRef, name: &str, bytes: &[u8]) {
        self.put_blob(bytes).await;
        let blob = convert::digest_bytes(&Digest::of(bytes)).into();
        self.say(Up::Log(v1::AttemptLog { attempt: Some((*lease).into()), name: name.to_owned(), blob })).await;
    }

    pub(crate) async fn end(&self, lease: &LeaseRef, end: &AttemptEnd, steps: u32) {
        let last = steps.checked_sub(1).map(|number| record(number).digest().expect("JSON"));
        self.say(Up::Ended(v1::AttemptEnded {
            attempt: Some((*lease).into()),
            end_json: serde_json::to_vec(end).expect("JSON").into(),
            steps,
            last_step_digest: last.map(|digest| convert::digest_bytes(&digest)).unwrap_or_default().into(),
            notes_json: serde_json::to_vec(&AttemptNotes::default()).expect("JSON").into(),
            ..v1::AttemptEnded::default()
        }))
        .await;
    }

    pub(crate) async fn end_passed(&self, lease: &LeaseRef, steps: u32) {
        let verdict = Verdict {
            passed: true,
            score: 100.0,
            feedback: "right".to_owned(),
            details: serde_json::Value::Null,
            ended_by: EndedBy::Agent,
            parts: None,
        };
        self.end(lease, &AttemptEnd::Verdict(verdict), steps).await;
    }

    pub(crate) async fn end_fault(&self, lease: &LeaseRef, fault: Fault) {
        self.end(lease, &AttemptEnd::Fault(fault), 0).await;
    }

    pub(crate) async fn end_cancelled(&self, lease: &LeaseRef) {
        self.end(lease, &AttemptEnd::Cancelled, 0).await;
    }

    pub(crate) async fn end_unverified(&self, lease: &LeaseRef, ended_by: EndedBy) {
        self.end(
            lease,
            &AttemptEnd::Unverified { ended_by, reason: "no verifier".to_owned(), fault: None, parts: None },
            0,
        )
        .await;
    }

    pub(crate) async fn end_ack(&mut self) -> v1::EndAck {
        loop {
            match self.next().await {
                Down::EndAck(ack) => return ack,
                Down::Lease(lease) => self.keep(&lease),
                Down::StepAck(_) | Down::HeartbeatAck(_) => {}
                other => panic!("{other:?} is no acknowledgement of an end"),
            }
        }
    }

    pub(crate) async fn claim_layer(&self) {
        let key = convert::digest_bytes(&Digest::of(b"a layer")).into();
        self.say(Up::LayerClaim(v1::LayerClaim { key, kind: "install".to_owned(), env: "calc_env".to_owned() })).await;
    }

    pub(crate) async fn layer_ready(&self) {
        let content = convert::digest_bytes(&Digest::of(b"its content")).into();
        self.say(Up::LayerResult(v1::LayerResult {
            key: convert::digest_bytes(&Digest::of(b"a layer")).into(),
            kind: "install".to_owned(),
            env: "calc_env".to_owned(),
            built: true,
            build_millis: 10,
            result: Some(v1::layer_result::Result::Ready(v1::LayerInfo { content, bytes: 3 })),
        }))
        .await;
    }

    pub(crate) async fn layer_answer(&mut self) -> v1::layer_answer::Answer {
        loop {
            match self.next().await {
                Down::LayerAnswer(answer) => return answer.answer.expect("an answer"),
                Down::Lease(lease) => self.keep(&lease),
                Down::HeartbeatAck(_) => {}
                other => panic!("{other:?} is no answer about a layer"),
            }
        }
    }
}

fn new_worker() -> WorkerId {
    WorkerId::new(Timestamp(1_700_000_000_000), random())
}

fn record(number: u32) -> StepRecord {
    StepRecord {
        number,
        at: Timestamp(1_700_000_000_000 + u64::from(number)),
        answer: (number > 0).then(|| Answer { text: Some("next".to_owned()), ..Answer::default() }),
        outcomes: Vec::new(),
        screen: Screenshot { png: Digest::of(&png_blob()), width: 800, height: 600 },
        rested: true,
        timing: StepTiming::default(),
        calls: Vec::new(),
        told: None,
        unreadable: Vec::new(),
        round: None,
        stirred: Vec::new(),
    }
}

/// Tells apart what is made in one test.
fn random() -> u32 {
    use rand::TryRngCore;
    rand::rngs::OsRng.try_next_u32().expect("random bytes")
}

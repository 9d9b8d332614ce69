//! A coordinator for tests: the real services over a real unix socket, with what it answers
//! and what it has seen in the test's hands.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_core::call::CallRecord;
use longhaul_core::digest::Digest;
use longhaul_core::notes::AttemptNotes;
use longhaul_core::outcome::AttemptEnd;
use longhaul_core::resume::Resumed;
use longhaul_core::step::StepRecord;
use longhaul_proto::convert::{self, LeaseRef};
use longhaul_proto::v1;
use longhaul_proto::v1::blob_service_server::{BlobService, BlobServiceServer};
use longhaul_proto::v1::from_worker::Message as Up;
use longhaul_proto::v1::to_worker::Message as Down;
use longhaul_proto::v1::trajectory_service_server::{TrajectoryService, TrajectoryServiceServer};
use longhaul_proto::v1::worker_service_server::{WorkerService, WorkerServiceServer};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

type Boxed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What the coordinator remembers, and how it answers.
pub(crate) struct Desk {
    pub(crate) blobs: Mutex<BTreeMap<Digest, Vec<u8>>>,
    /// Steps by attempt, as they came, repeated ones too.
    pub(crate) steps: Mutex<Vec<(LeaseRef, u32)>>,
    /// The records of steps, as they came.
    pub(crate) records: Mutex<Vec<StepRecord>>,
    /// The records of model calls, as they came.
    pub(crate) calls: Mutex<Vec<CallRecord>>,
    pub(crate) ends: Mutex<Vec<(LeaseRef, AttemptEnd, u32)>>,
    pub(crate) notes: Mutex<Vec<AttemptNotes>>,
    pub(crate) logs: Mutex<Vec<(String, Digest)>>,
    pub(crate) hellos: Mutex<Vec<v1::Hello>>,
    /// Keys of layers that were reported, repeated ones too.
    pub(crate) layers: Mutex<Vec<Digest>>,
    /// Whether the next report of a layer is lost with its session.
    pub(crate) loses_report: AtomicBool,
    pub(crate) leaving: AtomicBool,
    pub(crate) claims: AtomicU32,
    pub(crate) phases: Mutex<Vec<v1::AttemptPhase>>,
    /// Whether steps and ends are acknowledged.
    pub(crate) acknowledges: AtomicBool,
    /// Whether heartbeats renew.
    pub(crate) renews: AtomicBool,
    /// Whether sessions are let in.
    pub(crate) open: AtomicBool,
    /// Why the worker takes no leases, by its last heartbeat.
    pub(crate) unfit: Mutex<String>,
    /// What is kept for an attempt that resumes.
    pub(crate) kept: Mutex<Vec<v1::TrajectoryPiece>>,
    /// What attempts said that they go on from.
    pub(crate) resumed: Mutex<Vec<(LeaseRef, Resumed)>>,
    pub(crate) ttl: Duration,
    pub(crate) stale: Mutex<Vec<LeaseRef>>,
    /// The token that is asked for, if any.
    pub(crate) token: Mutex<Option<String>>,
    session: Mutex<Option<mpsc::Sender<Result<v1::ToWorker, Status>>>>,
}

#[derive(Clone)]
pub(crate) struct Coordinator {
    pub(crate) desk: Arc<Desk>,
    pub(crate) socket: PathBuf,
}

impl Coordinator {
    /// Serves below `folder`.
    pub(crate) fn start(folder: &Path, ttl: Duration) -> Self {
        let socket = folder.join("coordinator.sock");
        let desk = Arc::new(Desk {
            blobs: Mutex::default(),
            steps: Mutex::default(),
            records: Mutex::default(),
            calls: Mutex::default(),
            ends: Mutex::default(),
            notes: Mutex::default(),
            logs: Mutex::default(),
            hellos: Mutex::default(),
            layers: Mutex::default(),
            loses_report: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            claims: AtomicU32::new(0),
            phases: Mutex::default(),
            acknowledges: AtomicBool::new(true),
            renews: AtomicBool::new(true),
            open: AtomicBool::new(true),
            unfit: Mutex::default(),
            kept: Mutex::default(),
            resumed: Mutex::default(),
            ttl,
            stale: Mutex::default(),
            token: Mutex::default(),
            session: Mutex::default(),
        });
        let this = Self { desk, socket: socket.clone() };
        let listener = UnixListener::bind(&socket).unwrap();
        let server = tonic::transport::Server::builder()
            .add_service(WorkerServiceServer::new(this.clone()))
            .add_service(BlobServiceServer::new(this.clone()))
            .add_service(TrajectoryServiceServer::new(this.clone()))
            .serve_with_incoming(UnixListenerStream::new(listener));
        tokio::spawn(server);
        this
    }

    pub(crate) fn put(&self, bytes: &[u8]) -> Digest {
        let digest = Digest::of(bytes);
        self.desk.blobs.lock().unwrap().insert(digest, bytes.to_vec());
        digest
    }

    pub(crate) fn put_json(&self, value: &impl serde::Serialize) -> Digest {
        self.put(&serde_json::to_vec(value).unwrap())
    }

    /// Says something to the worker.
    pub(crate) async fn say(&self, message: Down) {
        let session = loop {
            if let Some(session) = self.desk.session.lock().unwrap().clone() {
                break session;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        session.send(Ok(v1::ToWorker { message: Some(message) })).await.unwrap();
    }

    /// Breaks the session, and lets nobody in until it is open again.
    pub(crate) fn cut(&self) {
        self.desk.open.store(false, Ordering::SeqCst);
        *self.desk.session.lock().unwrap() = None;
    }

    /// Waits, with a generous limit, until something is so.
    pub(crate) async fn until(&self, what: &str, so: impl Fn(&Desk) -> bool) {
        for _ in 0..3000 {
            if so(&self.desk) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never came: {what}");
    }

    fn answer(&self, message: Up) -> Option<Down> {
        let desk = &self.desk;
        let acknowledges = desk.acknowledges.load(Ordering::SeqCst);
        if let Up::Heartbeat(beat) = &message {
            desk.unfit.lock().unwrap().clone_from(&beat.unfit);
        }
        match message {
            Up::Heartbeat(beat) if desk.renews.load(Ordering::SeqCst) => Some(Down::HeartbeatAck(v1::HeartbeatAck {
                sequence: beat.sequence,
                renewed: beat.live,
                ..v1::HeartbeatAck::default()
            })),
            Up::Step(step) => {
                let lease = convert::lease(step.attempt.as_ref()).unwrap();
                let record: StepRecord = convert::from_json("step", &step.record_json).unwrap();
                let there = desk.blobs.lock().unwrap().contains_key(&record.screen.png);
                let before = desk.steps.lock().unwrap().contains(&(lease, step.number));
                assert!(there || before, "a step came before its screenshot");
                desk.steps.lock().unwrap().push((lease, step.number));
                desk.records.lock().unwrap().push(record);
                acknowledges.then(|| Down::StepAck(v1::StepAck { attempt: step.attempt, number: step.number }))
            }
            Up::Resumed(resumed) => {
                let lease = convert::lease(resumed.attempt.as_ref()).unwrap();
                assert!(!desk.steps.lock().unwrap().iter().any(|(seen, _)| *seen == lease), "a step came before");
                let record = convert::from_json("resumed", &resumed.record_json).unwrap();
                desk.resumed.lock().unwrap().push((lease, record));
                acknowledges.then_some(Down::ResumedAck(v1::ResumedAck { attempt: resumed.attempt }))
            }
            Up::Call(call) => {
                let record: CallRecord = convert::from_json("call", &call.record_json).unwrap();
                for blob in record.blobs() {
                    assert!(desk.blobs.lock().unwrap().contains_key(&blob), "a call came before what it names");
                }
                desk.calls.lock().unwrap().push(record);
                acknowledges.then(|| Down::CallAck(v1::CallAck { attempt: call.attempt, number: call.number }))
            }
            Up::Log(log) => {
                let blob = convert::digest("blob", &log.blob).unwrap();
                assert!(desk.blobs.lock().unwrap().contains_key(&blob), "a log came before its text");
                desk.logs.lock().unwrap().push((log.name, blob));
                None
            }
            Up::Ended(ended) => {
                let lease = convert::lease(ended.attempt.as_ref()).unwrap();
                let end = convert::from_json("end", &ended.end_json).unwrap();
                if !acknowledges {
                    return None;
                }
                desk.notes.lock().unwrap().push(convert::from_json("notes", &ended.notes_json).unwrap());
                desk.ends.lock().unwrap().push((lease, end, ended.steps));
                Some(Down::EndAck(v1::EndAck { attempt: ended.attempt, accepted: true, ..v1::EndAck::default() }))
            }
            Up::LayerClaim(claim) => {
                desk.claims.fetch_add(1, Ordering::SeqCst);
                let answer = Some(v1::layer_answer::Answer::Build(v1::Empty {}));
                Some(Down::LayerAnswer(v1::LayerAnswer { key: claim.key, answer }))
            }
            Up::LayerResult(_) if desk.loses_report.swap(false, Ordering::SeqCst) => {
                *desk.session.lock().unwrap() = None;
                None
            }
            Up::LayerResult(result) => {
                desk.layers.lock().unwrap().push(convert::digest("key", &result.key).unwrap());
                None
            }
            Up::Progress(progress) => {
                desk.phases.lock().unwrap().push(progress.phase());
                None
            }
            Up::Leaving(_) => {
                desk.leaving.store(true, Ordering::SeqCst);
                *desk.session.lock().unwrap() = None;
                None
            }
            _ => None,
        }
    }
}

#[tonic::async_trait]
impl WorkerService for Coordinator {
    type SessionStream = Boxed<v1::ToWorker>;

    async fn session(
        &self,
        request: Request<Streaming<v1::FromWorker>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        if !self.desk.open.load(Ordering::SeqCst) {
            return Err(Status::unavailable("closed by the test"));
        }
        let wanted = self.desk.token.lock().unwrap().clone().map(|token| format!("Bearer {token}"));
        let given = request.metadata().get("authorization").and_then(|value| value.to_str().ok()).map(str::to_owned);
        if wanted.is_some() && wanted != given {
            return Err(Status::unauthenticated("no such token"));
        }
        let mut incoming = request.into_inner();
        let (sender, receiver) = mpsc::channel(256);
        let this = self.clone();
        tokio::spawn(async move {
            let Ok(Some(v1::FromWorker { message: Some(Up::Hello(hello)) })) = incoming.message().await else { return };
            this.desk.hellos.lock().unwrap().push(hello);
            let stale = this.desk.stale.lock().unwrap().iter().map(|lease| (*lease).into()).collect();
            let welcome = v1::Welcome {
                coordinator_version: "test".to_owned(),
                incarnation: "one".to_owned(),
                lease_ttl_millis: u64::try_from(this.desk.ttl.as_millis()).unwrap(),
                heartbeat_millis: 50,
                stale,
            };
            sender.send(Ok(v1::ToWorker { message: Some(Down::Welcome(welcome)) })).await.unwrap();
            *this.desk.session.lock().unwrap() = Some(sender.clone());
            let weak = sender.downgrade();
            drop(sender);
            while let Ok(Some(message)) = incoming.message().await {
                let Some(sender) = weak.upgrade() else { return };
                if let Some(message) = message.message
                    && let Some(answer) = this.answer(message)
                {
                    let _ = sender.send(Ok(v1::ToWorker { message: Some(answer) })).await;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

#[tonic::async_trait]
impl TrajectoryService for Coordinator {
    type GetStream = Boxed<v1::TrajectoryPiece>;

    async fn get(&self, _: Request<v1::TrajectoryRequest>) -> Result<Response<Self::GetStream>, Status> {
        let mut pieces = self.desk.kept.lock().unwrap().clone();
        if pieces.is_empty() {
            let head = v1::TrajectoryHead::default();
            pieces.push(v1::TrajectoryPiece { piece: Some(v1::trajectory_piece::Piece::Head(head)) });
        }
        Ok(Response::new(Box::pin(tokio_stream::iter(pieces.into_iter().map(Ok)))))
    }
}

#[tonic::async_trait]
impl BlobService for Coordinator {
    type GetStream = Boxed<v1::BlobChunk>;

    async fn missing(&self, request: Request<v1::MissingRequest>) -> Result<Response<v1::MissingResponse>, Status> {
        let blobs = self.desk.blobs.lock().unwrap();
        let mut digests = request.into_inner().digests;
        digests.retain(|digest| !blobs.contains_key(&convert::digest("digest", digest).unwrap()));
        Ok(Response::new(v1::MissingResponse { digests }))
    }

    async fn put(
        &self,
        request: Request<Streaming<v1::PutBlobChunk>>,
    ) -> Result<Response<v1::PutBlobsResponse>, Status> {
        let mut stream = request.into_inner();
        let mut blobs: Vec<(Digest, u64, Vec<u8>)> = Vec::new();
        while let Some(piece) = stream.next().await {
            let piece = piece?;
            if !piece.digest.is_empty() {
                blobs.push((convert::digest("digest", &piece.digest).unwrap(), piece.size, Vec::new()));
            }
            blobs.last_mut().unwrap().2.extend_from_slice(&piece.data);
        }
        for (digest, size, bytes) in &blobs {
            assert_eq!(Digest::of(bytes), *digest);
            assert_eq!(bytes.len() as u64, *size);
            self.put(bytes);
        }
        Ok(Response::new(v1::PutBlobsResponse { stored: u32::try_from(blobs.len()).unwrap() }))
    }

    async fn get(&self, request: Request<v1::GetBlobRequest>) -> Result<Response<Self::GetStream>, Status> {
        let digest = convert::digest("digest", &request.into_inner().digest).unwrap();
        let bytes = self.desk.blobs.lock().unwrap().get(&digest).cloned();
        let bytes = bytes.ok_or_else(|| Status::not_found("no such blob"))?;
        let pieces: Vec<_> = bytes.chunks(7).map(|piece| Ok(v1::BlobChunk { data: piece.to_vec().into() })).collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(pieces))))
    }
}

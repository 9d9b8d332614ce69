//! Trajectories for workers: what is kept of an episode, for the attempt that is to go on with it.
//!
//! It is read from the store in the order in which it happened and sent in bounded messages, a few
//! ahead of the worker. Blobs are asked for one by one, as always.

use std::iter::Peekable;
use std::sync::Arc;

use longhaul_core::call::{CallRecord, Purpose};
use longhaul_core::ids::AttemptId;
use longhaul_core::snapshot::snapshot_step;
use longhaul_core::text::chain;
use longhaul_engine::AllocationId;
use longhaul_proto::convert;
use longhaul_proto::v1;
use longhaul_proto::v1::trajectory_piece::Piece;
use longhaul_proto::v1::trajectory_service_server::TrajectoryService;
use longhaul_store::{Link, ReadError, Store, StoredCall};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use crate::auth::Caller;
use crate::message::{self, Ask, Message};
use crate::session;

/// Pieces that are read ahead of a receiver.
const PIECES_AHEAD: usize = 16;

/// The service for trajectories.
#[derive(Clone, Debug)]
pub(crate) struct Trajectories {
    pub(crate) mailbox: mpsc::Sender<Message>,
    pub(crate) store: Arc<Store>,
    /// Who reads the store: it is free for the next coordinator once they have ended.
    pub(crate) tasks: TaskTracker,
}

/// Who holds a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The allocation that its worker runs in, if it does.
    pub(crate) allocation: Option<AllocationId>,
}

#[tonic::async_trait]
impl TrajectoryService for Trajectories {
    type GetStream = ReceiverStream<Result<v1::TrajectoryPiece, Status>>;

    async fn get(&self, request: Request<v1::TrajectoryRequest>) -> Result<Response<Self::GetStream>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let lease = session::lease(request.into_inner().attempt.as_ref())
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let holder = message::ask(&self.mailbox, |reply| Ask::Holder { lease, reply })
            .await?
            .ok_or_else(|| Status::failed_precondition(format!("the lease of {lease} is over")))?;
        match caller {
            Some(Caller::Person) => {}
            Some(Caller::Allocation(id)) if holder.allocation == Some(id.clone()) => {}
            Some(Caller::Allocation(_)) | None => {
                return Err(Status::permission_denied(format!("another worker holds the lease of {lease}")));
            }
        }
        let (pieces, receiver) = mpsc::channel(PIECES_AHEAD);
        let store = Arc::clone(&self.store);
        self.tasks.spawn_blocking(move || {
            let send =
                |piece| pieces.blocking_send(Ok(v1::TrajectoryPiece { piece: Some(piece) })).map_err(|_| Stop::Gone);
            match read(&store, lease.attempt, send) {
                Ok(()) | Err(Stop::Gone) => {}
                Err(Stop::Failed(reason)) => {
                    tracing::error!(attempt = %lease.attempt, reason, "a trajectory cannot be read");
                    // Said so that the worker does not ask for the same again; whoever has gone away needs
                    // no answer.
                    drop(pieces.blocking_send(Err(Status::data_loss(reason))));
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// Why nothing more is read.
enum Stop {
    /// Nobody listens.
    Gone,
    /// The store cannot be read, or holds what cannot be understood.
    Failed(String),
}

impl From<ReadError> for Stop {
    fn from(error: ReadError) -> Self {
        Self::Failed(chain(&error))
    }
}

/// Sends what an attempt keeps: the head, then each link's logs, calls and steps.
fn read(store: &Store, attempt: AttemptId, mut send: impl FnMut(Piece) -> Result<(), Stop>) -> Result<(), Stop> {
    let kept = store.line(attempt)?.map(|line| line.kept);
    let kept_json = match &kept {
        None => Vec::new(),
        Some(kept) => serde_json::to_vec(kept).map_err(|error| Stop::Failed(error.to_string()))?,
    };
    let links = store.kept(attempt)?;
    let shown = links.iter().map(|link| v1::TrajectoryLink {
        attempt: link.attempt.to_string(),
        first: link.first,
        end: link.end,
    });
    send(Piece::Head(v1::TrajectoryHead { kept_json: kept_json.into(), links: shown.collect() }))?;
    links.into_iter().try_for_each(|link| read_link(store, link, &mut send))
}

/// The logs; the calls before each step, the step; and at the end the calls that no step came of.
fn read_link(store: &Store, link: Link, send: &mut impl FnMut(Piece) -> Result<(), Stop>) -> Result<(), Stop> {
    let attempt = link.attempt;
    for (name, blob) in store.logs(attempt)? {
        // A snapshot of a step that came late is of a course that nobody went on with.
        if snapshot_step(&name).is_some_and(|step| step >= link.end) {
            continue;
        }
        let digest = convert::digest_bytes(&blob).into();
        send(Piece::Log(v1::RecordedLog { attempt: attempt.to_string(), name, digest }))?;
    }
    let in_time = |call: &Result<StoredCall, ReadError>| !matches!(call, Ok(call) if call.late);
    let mut calls = store.calls(attempt, 0).filter(in_time).peekable();
    for step in store.steps(attempt, link.first).take((link.end - link.first) as usize) {
        let step = step?;
        send_calls(attempt, &mut calls, step.number, send)?;
        let record_json = step.record_json.into();
        send(Piece::Step(v1::RecordedStep { attempt: attempt.to_string(), number: step.number, record_json }))?;
    }
    send_calls(attempt, &mut calls, u32::MAX, send)
}

/// Sends the calls that came before step `until` was recorded.
fn send_calls<I: Iterator<Item = Result<StoredCall, ReadError>>>(
    attempt: AttemptId,
    calls: &mut Peekable<I>,
    until: u32,
    send: &mut impl FnMut(Piece) -> Result<(), Stop>,
) -> Result<(), Stop> {
    loop {
        let record: CallRecord = match calls.peek() {
            None => return Ok(()),
            Some(Ok(call)) => call.record().map_err(|error| Stop::Failed(error.to_string()))?,
            Some(Err(_)) => return calls.next().map_or(Ok(()), |call| call.map(drop).map_err(Stop::from)),
        };
        if record.step > until {
            return Ok(());
        }
        if let Some(call) = calls.next().transpose()?
            && record.purpose != Purpose::Judge
        {
            let record_json = call.record_json.into();
            send(Piece::Call(v1::RecordedCall { attempt: attempt.to_string(), number: call.number, record_json }))?;
        }
    }
}

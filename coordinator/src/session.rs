//! Sessions: one bidirectional stream per worker.
//!
//! Three tasks share a session. The reader takes what the worker says and never waits for
//! a disk. The recorder takes steps, calls, logs and ends in their order, waits until the store
//! has them, and acknowledges. The actor sends leases and answers. What goes to the worker
//! passes through one bounded channel; a worker that does not read loses its session, and
//! says hello again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longhaul_core::digest::Digest;
use longhaul_core::ids::WorkerId;
use longhaul_core::money::Money;
use longhaul_core::plan::LayerKind;
use longhaul_core::text::chain;
use longhaul_core::time::{Millis, Timestamp};
use longhaul_engine::state::{Capacity, LayerInfo, Readiness, WorkerProfile};
use longhaul_engine::{JobId, LayerOutcome, LeaseRef, Token, WorkerAllocation};
use longhaul_proto::convert::{self, ConvertError};
use longhaul_proto::v1;
use longhaul_proto::v1::from_worker::Message as Up;
use longhaul_proto::v1::to_worker::Message as Down;
use longhaul_proto::v1::worker_service_server::WorkerService;
use longhaul_store::{LogError, ReadError, Receipt, ReportError, ReportKind, Store, Ticket};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};

use crate::auth::Caller;
use crate::message::{Message, OUTGOING_CAPACITY, Outgoing, Report};
use crate::project::EndDetails;

/// How long a worker may take to say hello.
const HELLO_LIMIT: Duration = Duration::from_secs(15);

/// How many steps of one worker may wait for the disk: then its stream is read no further.
const RECORDER_CAPACITY: usize = 512;

/// The service that workers dial.
#[derive(Clone, Debug)]
pub(crate) struct Sessions {
    pub(crate) mailbox: mpsc::Sender<Message>,
    pub(crate) store: Arc<Store>,
    pub(crate) next_session: Arc<AtomicU64>,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

/// What is recorded, in the order in which the worker said it.
enum Entry {
    Reported { what: ReportKind, lease: LeaseRef, number: u32, ticket: Ticket<Receipt, ReportError> },
    Resumed { lease: LeaseRef, ticket: Ticket<Receipt, ReportError> },
    Log { lease: LeaseRef, name: String, ticket: Ticket<(), LogError> },
    End { lease: LeaseRef, ended: v1::AttemptEnded },
}

#[tonic::async_trait]
impl WorkerService for Sessions {
    type SessionStream = ReceiverStream<Result<v1::ToWorker, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<v1::FromWorker>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let mut stream = request.into_inner();
        let first = tokio::time::timeout(HELLO_LIMIT, stream.message())
            .await
            .map_err(|_| Status::deadline_exceeded("the worker did not say hello"))??;
        let Some(Up::Hello(hello)) = first.and_then(|message| message.message) else {
            return Err(Status::invalid_argument("the first message of a session is Hello"));
        };
        if hello.protocol_version != longhaul_proto::PROTOCOL_VERSION {
            return Err(Status::failed_precondition(format!(
                "this coordinator speaks protocol {}, and the worker {} ({}): use the same version of longhaul",
                longhaul_proto::PROTOCOL_VERSION,
                hello.protocol_version,
                hello.version,
            )));
        }
        // Who has an allocation's token is that allocation's worker, and no other.
        if let Some(Caller::Allocation(id)) = caller
            && hello.allocation.as_ref().map(|wire| allocation(wire).id()) != Some(id)
        {
            return Err(Status::permission_denied("the token is that of another allocation"));
        }
        let worker: WorkerId = convert::parsed("worker_id", &hello.worker_id).map_err(invalid)?;
        let live = leases(&hello.live).map_err(invalid)?;
        let session = self.next_session.fetch_add(1, Ordering::Relaxed);
        let (outgoing, receiver) = mpsc::channel(OUTGOING_CAPACITY);
        let (reply, answer) = oneshot::channel();
        let close = self.stop.child_token();
        let message = Message::Hello {
            worker,
            session,
            profile: profile(&hello),
            readiness: readiness(&hello),
            live,
            outgoing: outgoing.clone(),
            close: close.clone(),
            reply,
        };
        self.mailbox.send(message).await.map_err(|_| stopping())?;
        answer
            .await
            .map_err(|_| stopping())?
            .map_err(|rejection| Status::failed_precondition(rejection.to_string()))?;
        tracing::info!(%worker, session, hostname = %hello.hostname, "a worker opened a session");
        let sessions = self.clone();
        self.tasks.spawn(async move { sessions.serve(worker, session, stream, outgoing, close).await });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

impl Sessions {
    async fn serve(
        self,
        worker: WorkerId,
        session: u64,
        mut stream: Streaming<v1::FromWorker>,
        outgoing: Outgoing,
        close: CancellationToken,
    ) {
        let (entries, receiver) = mpsc::channel(RECORDER_CAPACITY);
        let recorder =
            self.tasks.spawn(self.clone().record(worker, session, receiver, outgoing.clone(), close.clone()));
        let end = loop {
            let message = tokio::select! {
                message = stream.message() => message,
                () = outgoing.closed() => break "the worker reads no more".to_owned(),
                () = close.cancelled() => break "the coordinator ends it".to_owned(),
            };
            let message = match message {
                Ok(Some(v1::FromWorker { message: Some(message) })) => message,
                Ok(Some(_)) => continue,
                Ok(None) => break "the worker closed it".to_owned(),
                Err(status) => break status.message().to_owned(),
            };
            match self.receive(worker, session, message, &entries).await {
                Ok(()) => {}
                Err(ReceiveError::Stopping) => break "the coordinator stops".to_owned(),
                Err(ReceiveError::Malformed(error)) => {
                    tracing::error!(%worker, session, %error, "a worker's message is malformed");
                    // A full channel ends the session as well, only without the reason.
                    let _full = outgoing.try_send(Err(invalid(error)));
                    break "a message is malformed".to_owned();
                }
            }
        };
        tracing::info!(%worker, session, reason = %end, "a session ended");
        drop(entries);
        // What the worker has delivered is still recorded; only nobody hears of it.
        if let Err(error) = recorder.await {
            tracing::error!(%worker, session, %error, "the recorder of a session failed");
        }
        // The actor may be gone already, and the message with it.
        let _gone = self.mailbox.send(Message::Goodbye { worker, session }).await;
    }

    async fn receive(
        &self,
        worker: WorkerId,
        session: u64,
        message: Up,
        entries: &mpsc::Sender<Entry>,
    ) -> Result<(), ReceiveError> {
        let report = match message {
            Up::Hello(_) => return Err(ConvertError::Missing { field: "anything but a second Hello" }.into()),
            Up::Step(step) => {
                let lease = lease(step.attempt.as_ref())?;
                let ticket = self.store.put_step(lease.attempt, lease.epoch, step.number, step.record_json.to_vec());
                let entry = Entry::Reported { what: ReportKind::Step, lease, number: step.number, ticket };
                return entries.send(entry).await.map_err(|_| ReceiveError::Stopping);
            }
            Up::Call(call) => {
                let lease = lease(call.attempt.as_ref())?;
                let ticket = self.store.put_call(lease.attempt, lease.epoch, call.number, call.record_json.to_vec());
                let entry = Entry::Reported { what: ReportKind::Call, lease, number: call.number, ticket };
                return entries.send(entry).await.map_err(|_| ReceiveError::Stopping);
            }
            Up::Resumed(resumed) => {
                let lease = lease(resumed.attempt.as_ref())?;
                let record = convert::from_json("record_json", &resumed.record_json)?;
                let ticket = self.store.put_resumed(lease.attempt, lease.epoch, record);
                return entries.send(Entry::Resumed { lease, ticket }).await.map_err(|_| ReceiveError::Stopping);
            }
            Up::Log(log) => {
                let lease = lease(log.attempt.as_ref())?;
                let blob = convert::digest("blob", &log.blob)?;
                let ticket = self.store.put_log(lease.attempt, lease.epoch, log.name.clone(), blob);
                let entry = Entry::Log { lease, name: log.name, ticket };
                return entries.send(entry).await.map_err(|_| ReceiveError::Stopping);
            }
            Up::Ended(ended) => {
                let entry = Entry::End { lease: lease(ended.attempt.as_ref())?, ended };
                return entries.send(entry).await.map_err(|_| ReceiveError::Stopping);
            }
            Up::Heartbeat(beat) => Report::Heartbeat {
                sequence: beat.sequence,
                live: leases(&beat.live)?,
                unfit: Some(beat.unfit).filter(|reason| !reason.is_empty()),
                shares: beat.shares,
                undelivered: beat.undelivered,
            },
            Up::Progress(progress) => Report::Progress {
                lease: lease(progress.attempt.as_ref())?,
                phase: progress.phase(),
                steps: progress.steps,
            },
            Up::LayerClaim(claim) => Report::ClaimLayer {
                key: convert::digest("key", &claim.key)?,
                kind: layer_kind(&claim.kind)?,
                env: claim.env,
            },
            Up::LayerResult(result) => layer_report(result)?,
            Up::Leaving(leaving) => Report::Leaving { reason: leaving.reason },
            Up::EscrowRequest(request) => {
                let wire = convert::required("state", request.state.as_ref())?;
                let (purse, state) = convert::purse_state(wire)?;
                Report::MoneyWanted {
                    lease: lease(request.attempt.as_ref())?,
                    purse,
                    state,
                    wanted: Money::from_nanos(request.wanted_nanos),
                    bound: Money::from_nanos(request.bound_nanos),
                }
            }
            Up::EscrowReport(report) => {
                let (purse, state) = convert::purse_state(convert::required("state", report.state.as_ref())?)?;
                Report::Purse { lease: lease(report.attempt.as_ref())?, purse, state, closed: report.closed }
            }
            Up::EndpointWord(word) => Report::Endpoint(word),
        };
        self.report(worker, session, report).await
    }

    async fn report(&self, worker: WorkerId, session: u64, report: Report) -> Result<(), ReceiveError> {
        let message = Message::Report { worker, session, report: Box::new(report) };
        self.mailbox.send(message).await.map_err(|_| ReceiveError::Stopping)
    }

    async fn record(
        self,
        worker: WorkerId,
        session: u64,
        mut entries: mpsc::Receiver<Entry>,
        outgoing: Outgoing,
        close: CancellationToken,
    ) {
        while let Some(entry) = entries.recv().await {
            let answer = match entry {
                Entry::Reported { what, lease, number, ticket } => match ticket.await {
                    Ok(receipt) => {
                        if receipt.late {
                            tracing::warn!(
                                attempt = %lease.attempt, epoch = %lease.epoch, number, "a {what} came late"
                            );
                        }
                        let attempt = Some(wire(lease));
                        Ok(Some(match what {
                            ReportKind::Step => Down::StepAck(v1::StepAck { attempt, number }),
                            ReportKind::Call => Down::CallAck(v1::CallAck { attempt, number }),
                        }))
                    }
                    Err(error) => self.refused(worker, session, &what.to_string(), lease, number, &error).await,
                },
                Entry::Resumed { lease, ticket } => match ticket.await {
                    Ok(_) => Ok(Some(Down::ResumedAck(v1::ResumedAck { attempt: Some(wire(lease)) }))),
                    Err(error) => self.refused(worker, session, "report that it resumed", lease, 0, &error).await,
                },
                Entry::Log { lease, name, ticket } => {
                    if let Err(error) = ticket.await {
                        let error = chain(&error);
                        tracing::warn!(attempt = %lease.attempt, name, error, "a log was not kept");
                    }
                    Ok(None)
                }
                Entry::End { lease, ended } => self.end(worker, session, lease, ended).await,
            };
            let message = match answer {
                Ok(None) => continue,
                Ok(Some(message)) => Ok(v1::ToWorker { message: Some(message) }),
                // The session ends: the worker comes back and sends again what has no answer.
                Err(status) => Err(status),
            };
            let refused = message.is_err();
            tokio::select! {
                // If nobody reads, what is queued is still recorded.
                sent = outgoing.send(message) => drop(sent),
                () = close.cancelled() => {}
            }
            if refused {
                close.cancel();
            }
        }
    }

    /// Answers a report that the store refuses. Whether an attempt that it does not know may have begun after
    /// the backup that it was restored from, the actor knows, and answers.
    async fn refused(
        &self,
        worker: WorkerId,
        session: u64,
        what: &str,
        lease: LeaseRef,
        number: u32,
        error: &ReportError,
    ) -> Result<Option<Down>, Status> {
        let answer = refused(what, lease, number, error);
        if !matches!(error, ReportError::UnknownAttempt { .. }) {
            return answer;
        }
        match self.report(worker, session, Report::Unknown { lease }).await {
            Ok(()) => Ok(None),
            Err(_) => Err(stopping()),
        }
    }

    /// Checks that the store has the whole attempt, calls too, before the engine hears of its end.
    async fn end(
        &self,
        worker: WorkerId,
        session: u64,
        lease: LeaseRef,
        ended: v1::AttemptEnded,
    ) -> Result<Option<Down>, Status> {
        let last_step = match ended.last_step_digest.as_ref() {
            [] => None,
            bytes => Some(convert::digest("last_step_digest", bytes).map_err(invalid)?),
        };
        let end = convert::from_json("end_json", &ended.end_json).map_err(invalid)?;
        let notes = match ended.notes_json.as_ref() {
            [] => longhaul_core::notes::AttemptNotes::default(),
            bytes => convert::from_json("notes_json", bytes).map_err(invalid)?,
        };
        let unreadable = |error: ReadError| Status::internal(chain(&error));
        let stored = self.store.progress(lease.attempt).map_err(unreadable)?;
        let calls = self.store.call_progress(lease.attempt).map_err(unreadable)?;
        let lacks_steps = stored.next < ended.steps || (stored.next == ended.steps && stored.last != last_step);
        let lacks_calls = calls.totals.calls < ended.calls;
        let purses = ended.purses.iter().map(convert::purse_state).collect::<Result<Vec<_>, _>>().map_err(invalid)?;
        if lacks_steps || lacks_calls {
            if self.store.attempt(lease.attempt).map_err(unreadable)?.is_none() {
                // As with its steps: an answer would have its worker throw away what may be taken in yet.
                return match self.report(worker, session, Report::Unknown { lease }).await {
                    Ok(()) => Ok(None),
                    Err(_) => Err(stopping()),
                };
            }
            // What is lacking may never come again, if a store that is lost had it: what was spent counts.
            for (purse, state) in purses {
                let report = Report::Purse { lease, purse, state, closed: true };
                self.report(worker, session, report).await.map_err(|_| stopping())?;
            }
            let resend_from = match () {
                () if !lacks_steps => ended.steps,
                () if stored.next < ended.steps => stored.next,
                () => 0,
            };
            let resend_calls_from = if lacks_calls { calls.next } else { ended.calls };
            tracing::warn!(
                attempt = %lease.attempt, steps = ended.steps, stored = stored.next, calls = ended.calls,
                stored_calls = calls.totals.calls, "an end came before its steps or calls"
            );
            let ack = v1::EndAck { attempt: Some(wire(lease)), accepted: false, resend_from, resend_calls_from };
            return Ok(Some(Down::EndAck(ack)));
        }
        let details = EndDetails { last_step, notes };
        let report = Report::Ended { lease, end, steps: ended.steps, purses, details };
        // The actor answers, once the end is durable.
        match self.report(worker, session, report).await {
            Ok(()) => Ok(None),
            Err(_) => Err(stopping()),
        }
    }
}

/// What a worker is told about a report that the store refuses.
fn refused(what: &str, lease: LeaseRef, number: u32, error: &ReportError) -> Result<Option<Down>, Status> {
    let text = chain(error);
    tracing::error!(attempt = %lease.attempt, epoch = %lease.epoch, number, error = text, "a {what} was refused");
    match error {
        // Nothing that this attempt says can be kept: it is to be given up.
        ReportError::UnknownAttempt { .. }
        | ReportError::WrongEpoch { .. }
        | ReportError::Conflict { .. }
        | ReportError::NotKept { .. }
        // Blobs are put first: what is lacking was put to a store that is lost, and does not come again.
        | ReportError::MissingBlob { .. } => {
            let reason = v1::RevokeReason::Refused.into();
            Ok(Some(Down::Revoke(v1::Revoke { attempt: Some(wire(lease)), reason })))
        }
        ReportError::Invalid { .. } => Err(Status::invalid_argument(text)),
        ReportError::Write(_) => Err(Status::unavailable(text)),
    }
}

enum ReceiveError {
    Stopping,
    Malformed(ConvertError),
}

impl From<ConvertError> for ReceiveError {
    fn from(error: ConvertError) -> Self {
        Self::Malformed(error)
    }
}

fn profile(hello: &v1::Hello) -> WorkerProfile {
    WorkerProfile {
        hostname: hello.hostname.clone(),
        slurm_job_id: Some(hello.slurm_job_id.clone()).filter(|id| !id.is_empty()),
        capacity: Capacity {
            cpu_millis: hello.cpu_millis,
            memory_mib: hello.memory_mib,
            gpus: hello.gpus,
            max_slots: hello.max_slots,
        },
        allocation: hello.allocation.as_ref().map(allocation),
    }
}

fn readiness(hello: &v1::Hello) -> Readiness {
    match hello.unfit.clone() {
        reason if reason.is_empty() => Readiness::Fit,
        reason if hello.preparing => Readiness::Preparing(reason),
        reason => Readiness::Unfit(reason),
    }
}

fn allocation(wire: &v1::Allocation) -> WorkerAllocation {
    WorkerAllocation {
        token: Token(wire.token.clone()),
        job: JobId(wire.job.clone()),
        task: wire.task,
        restarts: wire.restarts,
        ends_at: wire.ends_at_millis.map(Timestamp),
    }
}

fn layer_report(result: v1::LayerResult) -> Result<Report, ConvertError> {
    let outcome = match convert::required("result", result.result)? {
        v1::layer_result::Result::Ready(info) => LayerOutcome::Ready {
            info: LayerInfo { content: convert::digest("content", &info.content)?, bytes: info.bytes },
            built: result.built,
            took: Millis(result.build_millis),
        },
        v1::layer_result::Result::FailedFaultJson(fault) => {
            LayerOutcome::Failed(convert::from_json("failed_fault_json", &fault)?)
        }
    };
    let key: Digest = convert::digest("key", &result.key)?;
    Ok(Report::Layer { key, kind: layer_kind(&result.kind)?, env: result.env, outcome })
}

fn layer_kind(name: &str) -> Result<LayerKind, ConvertError> {
    [LayerKind::Base, LayerKind::Install, LayerKind::Configure]
        .into_iter()
        .find(|kind| kind.name() == name)
        .ok_or_else(|| ConvertError::Invalid { field: "kind", reason: format!("`{name}` is no kind of layer") })
}

pub(crate) fn lease(wire: Option<&v1::AttemptRef>) -> Result<LeaseRef, ConvertError> {
    let lease = convert::lease(wire)?;
    Ok(LeaseRef { attempt: lease.attempt, epoch: lease.epoch })
}

fn leases(wire: &[v1::AttemptRef]) -> Result<Vec<LeaseRef>, ConvertError> {
    wire.iter().map(|one| lease(Some(one))).collect()
}

/// A lease as it goes over the wire.
pub(crate) fn wire(lease: LeaseRef) -> v1::AttemptRef {
    v1::AttemptRef { attempt: lease.attempt.to_string(), epoch: lease.epoch.0 }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn invalid(error: ConvertError) -> Status {
    Status::invalid_argument(error.to_string())
}

fn stopping() -> Status {
    Status::unavailable("the coordinator stops")
}

//! One session, from the dialling to its loss, as events for the actor.

use std::time::Duration;

use longhaul_proto::v1;
use longhaul_proto::v1::worker_service_client::WorkerServiceClient;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::{Transport, Uplink, up};
use crate::lease::Moment;
use crate::moment;

/// How long the coordinator may take to say Welcome.
const WELCOME_LIMIT: Duration = Duration::from_secs(30);

/// Messages that wait to be sent; each is small.
const QUEUE: usize = 256;

/// What happens to a session.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// The coordinator said Welcome.
    Welcomed(Box<Welcomed>),
    /// A message came.
    Message(Box<v1::to_worker::Message>),
    /// The session is lost, or never came about.
    Lost(String),
    /// The coordinator refuses this worker, and will again.
    Refused(String),
}

/// A session that stands.
#[derive(Debug)]
pub(crate) struct Welcomed {
    pub(crate) welcome: v1::Welcome,
    /// When Hello was sent.
    pub(crate) hello_sent: Moment,
    pub(crate) uplink: Uplink,
    /// For heartbeats, which nothing may delay.
    pub(crate) urgent: mpsc::Sender<v1::FromWorker>,
}

/// Dials, says Hello and reads until the session is lost. Every event carries its generation,
/// so that the actor can tell a late one of an earlier session. Ends with one `Lost` or `Refused`.
pub(crate) async fn run(
    transport: Transport,
    hello: v1::Hello,
    generation: u64,
    events: mpsc::Sender<(u64, LinkEvent)>,
) {
    let last = match session(transport, hello, generation, &events).await {
        Ok(()) => LinkEvent::Lost("the coordinator closed the session".to_owned()),
        Err(status) => {
            let reason = format!("{:?}: {}", status.code(), status.message());
            if is_refusal(status.code()) { LinkEvent::Refused(reason) } else { LinkEvent::Lost(reason) }
        }
    };
    // The actor may have ended.
    let _ = events.send((generation, last)).await;
}

/// Codes that another try does not change.
const fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::Unauthenticated
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::Unimplemented
            | Code::InvalidArgument
    )
}

async fn session(
    transport: Transport,
    hello: v1::Hello,
    generation: u64,
    events: &mpsc::Sender<(u64, LinkEvent)>,
) -> Result<(), Status> {
    let (urgent, urgent_queue) = mpsc::channel(QUEUE);
    let (bulk, bulk_queue) = mpsc::channel(QUEUE);
    let first = tokio_stream::once(up(v1::from_worker::Message::Hello(hello)));
    let outgoing = first.chain(ReceiverStream::new(urgent_queue).merge(ReceiverStream::new(bulk_queue)));
    let hello_sent = moment::now();
    let late = |_| Status::deadline_exceeded("no welcome came");
    let mut client = WorkerServiceClient::new(transport);
    let mut incoming = tokio::time::timeout(WELCOME_LIMIT, client.session(outgoing)).await.map_err(late)??.into_inner();
    let first = tokio::time::timeout(WELCOME_LIMIT, incoming.message()).await.map_err(late)??;
    let Some(v1::ToWorker { message: Some(v1::to_worker::Message::Welcome(welcome)) }) = first else {
        return Err(Status::unavailable("the first message was no welcome"));
    };
    let welcomed = Welcomed { welcome, hello_sent, uplink: Uplink { generation, bulk }, urgent };
    let gone = |_| Status::cancelled("the worker ends");
    events.send((generation, LinkEvent::Welcomed(Box::new(welcomed)))).await.map_err(gone)?;
    while let Some(message) = incoming.message().await? {
        if let Some(message) = message.message {
            events.send((generation, LinkEvent::Message(Box::new(message)))).await.map_err(gone)?;
        }
    }
    Ok(())
}

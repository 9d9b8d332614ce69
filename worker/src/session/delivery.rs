//! Delivers one attempt's outbox: blobs first, then the records in order, and again after a
//! lost session.

use std::sync::Arc;

use longhaul_proto::convert::{self, ConvertError, LeaseRef};
use longhaul_proto::v1;
use longhaul_proto::v1::from_worker::Message;
use tokio::sync::watch;

use super::{Link, Uplink, connected, up};
use crate::backoff::Backoff;
use crate::blobs::BlobClient;
use crate::spool::{Outbox, Outgoing, Record};

/// Where an attempt is, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) phase: v1::AttemptPhase,
    pub(crate) steps: u32,
}

/// Why a delivery stopped short.
#[derive(Debug, thiserror::Error)]
enum DeliveryError {
    #[error("the session is lost")]
    Lost,
    #[error(transparent)]
    Blob(#[from] crate::blobs::BlobError),
    #[error(transparent)]
    Spool(#[from] crate::spool::SpoolError),
    #[error(transparent)]
    Convert(#[from] ConvertError),
}

/// Delivers until the outbox is finished.
pub(crate) async fn run(
    outbox: Arc<Outbox>,
    blobs: BlobClient,
    mut link: Link,
    mut progress: Option<watch::Receiver<Progress>>,
) {
    let mut changes = outbox.subscribe();
    let mut backoff = Backoff::default();
    let mut generation = None;
    while !outbox.is_finished() {
        let uplink = connected(&mut link).await;
        if generation != Some(uplink.generation) {
            generation = Some(uplink.generation);
            outbox.rewind();
            if let Some(progress) = &mut progress {
                progress.mark_changed();
            }
        }
        changes.borrow_and_update();
        match deliver(&outbox, &blobs, &uplink).await {
            Ok(()) => backoff.reset(),
            Err(DeliveryError::Lost) => {}
            Err(error) => {
                tracing::warn!(attempt = %outbox.lease().attempt, error = %crate::chain(&error), "a delivery is tried again");
                backoff.wait().await;
                continue;
            }
        }
        if outbox.is_finished() {
            break;
        }
        tokio::select! {
            // The outbox outlives this loop, so its sender cannot be gone.
            _ = changes.changed() => {}
            _ = link.changed() => {}
            now = next_progress(&mut progress) => tell_progress(&uplink, outbox.lease(), now),
        }
    }
}

async fn deliver(outbox: &Outbox, blobs: &BlobClient, uplink: &Uplink) -> Result<(), DeliveryError> {
    while let Some(mut outgoing) = outbox.next()? {
        let waiting = std::mem::take(&mut outgoing.blobs);
        if !waiting.is_empty() {
            blobs.put(waiting).await?;
        }
        send(&outgoing, outbox.lease(), uplink).await?;
        outbox.sent(&outgoing);
    }
    Ok(())
}

async fn send(outgoing: &Outgoing, lease: LeaseRef, uplink: &Uplink) -> Result<(), DeliveryError> {
    for record in &outgoing.records {
        let Some(message) = wire(record, lease)? else { continue };
        uplink.bulk.send(up(message)).await.map_err(|_| DeliveryError::Lost)?;
    }
    Ok(())
}

/// A record as it goes out; nothing for one that stays here.
fn wire(record: &Record, lease: LeaseRef) -> Result<Option<Message>, ConvertError> {
    let attempt = Some(v1::AttemptRef::from(lease));
    Ok(Some(match record {
        Record::Step { number, json, .. } => {
            Message::Step(v1::StepReport { attempt, number: *number, record_json: json.clone().into_bytes().into() })
        }
        Record::Call(call) => {
            let record_json = call.json.clone().into_bytes().into();
            Message::Call(v1::CallReport { attempt, number: call.number, record_json })
        }
        Record::Resumed { record } => Message::Resumed(v1::AttemptResumed {
            attempt,
            record_json: convert::to_json("record_json", record)?.into(),
        }),
        Record::Log { name, blob } => {
            Message::Log(v1::AttemptLog { attempt, name: name.clone(), blob: convert::digest_bytes(blob).into() })
        }
        Record::Reserved(_) | Record::Granted { .. } => return Ok(None),
        Record::End { end, notes, steps, last_step, calls, purses } => Message::Ended(v1::AttemptEnded {
            attempt,
            end_json: convert::to_json("end_json", end)?.into(),
            steps: *steps,
            last_step_digest: last_step.as_ref().map(convert::digest_bytes).unwrap_or_default().into(),
            notes_json: convert::to_json("notes_json", notes)?.into(),
            calls: *calls,
            purses: purses.iter().map(|(kind, state)| convert::purse(*kind, state)).collect(),
        }),
    }))
}

async fn next_progress(progress: &mut Option<watch::Receiver<Progress>>) -> Progress {
    if let Some(receiver) = progress
        && receiver.changed().await.is_ok()
    {
        return *receiver.borrow_and_update();
    }
    std::future::pending().await
}

/// Told if there is room: it is for people, and the next one says more.
fn tell_progress(uplink: &Uplink, lease: LeaseRef, progress: Progress) {
    let message =
        v1::AttemptProgress { attempt: Some(lease.into()), phase: progress.phase.into(), steps: progress.steps };
    let _ = uplink.bulk.try_send(up(Message::Progress(message)));
}

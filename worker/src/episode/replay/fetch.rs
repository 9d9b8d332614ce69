//! The record of the attempts before, as the coordinator kept it for this one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use longhaul_core::call::CallRecord;
use longhaul_core::digest::Digest;
use longhaul_core::outcome::{Fault, FaultClass};
use longhaul_core::resume::Kept;
use longhaul_core::screen::{Area, masks};
use longhaul_core::step::StepRecord;
use longhaul_gateway::{JoinError, PastCall, join};
use longhaul_proto::v1::trajectory_piece::Piece;
use longhaul_proto::{convert, v1};
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use tonic::Code;

use super::Past;
use crate::backoff::Backoff;
use crate::blobs::{BlobClient, BlobError};
use crate::episode::{Attempt, blob_fault, fault};

/// So many responses are fetched at once.
const AT_ONCE: usize = 16;

/// Why there is no record to be followed.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("the coordinator cannot be asked for the record: {0}")]
    Unreachable(String),
    #[error("the coordinator does not give the record: {0}")]
    Refused(String),
    #[error("the record cannot be followed: {0}")]
    Broken(String),
    #[error(transparent)]
    Blob(#[from] BlobError),
}

/// What is kept of the attempts before; nothing, if this one starts like a first one. While the
/// coordinator cannot be reached it is asked again: the caller decides how long that may take.
pub(in crate::episode) async fn fetch(attempt: &Attempt) -> Result<Option<Past>, Fault> {
    if !attempt.resumes {
        return Ok(None);
    }
    let mut backoff = Backoff::default();
    let found = loop {
        match ask(attempt).await {
            Err(FetchError::Unreachable(message)) => {
                tracing::debug!(attempt = %attempt.lease.attempt, message, "the record is asked for again");
                backoff.wait().await;
            }
            other => break other,
        }
    };
    let pieces = match found {
        Ok(Some(pieces)) => pieces,
        Ok(None) => return Ok(None),
        Err(error) => return Err(unfollowed(&error)),
    };
    past(pieces, &attempt.shared.blobs).await.map(Some).map_err(|error| unfollowed(&error))
}

/// A record that is no record is none to be followed; another way is taken then.
fn unfollowed(error: &FetchError) -> Fault {
    match error {
        FetchError::Blob(error) if !error.is_missing() => blob_fault(error),
        FetchError::Refused(_) => fault(FaultClass::Store, crate::chain(error)),
        _ => fault(FaultClass::ReplayDiverged, crate::chain(error)),
    }
}

/// The record as it came.
#[derive(Debug)]
struct Pieces {
    kept: Kept,
    links: Vec<v1::TrajectoryLink>,
    steps: Vec<StepRecord>,
    /// With the attempt that made each.
    calls: Vec<(String, CallRecord)>,
    /// What the attempts wrote down beside their steps; of a name, what the last one did.
    logs: BTreeMap<String, Digest>,
}

async fn ask(attempt: &Attempt) -> Result<Option<Pieces>, FetchError> {
    let refused = |status: tonic::Status| match status.code() {
        Code::FailedPrecondition | Code::PermissionDenied | Code::NotFound | Code::Unimplemented => {
            FetchError::Refused(status.message().to_owned())
        }
        Code::DataLoss => FetchError::Broken(status.message().to_owned()),
        _ => FetchError::Unreachable(format!("{:?}: {}", status.code(), status.message())),
    };
    let broken = |what: &str, error: serde_json::Error| FetchError::Broken(format!("{what}: {error}"));
    let request = v1::TrajectoryRequest { attempt: Some(attempt.lease.into()) };
    let mut stream = attempt.shared.trajectories.clone().get(request).await.map_err(refused)?.into_inner();
    let mut found: Option<Pieces> = None;
    while let Some(piece) = stream.next().await {
        match (piece.map_err(refused)?.piece, &mut found) {
            (Some(Piece::Head(head)), None) => {
                if head.kept_json.is_empty() {
                    return Ok(None);
                }
                let kept = serde_json::from_slice(&head.kept_json).map_err(|error| broken("what is kept", error))?;
                let (steps, calls, logs) = (Vec::new(), Vec::new(), BTreeMap::new());
                found = Some(Pieces { kept, links: head.links, steps, calls, logs });
            }
            (Some(Piece::Step(step)), Some(pieces)) => {
                let read = serde_json::from_slice(&step.record_json);
                pieces.steps.push(read.map_err(|error| broken(&format!("step {}", step.number), error))?);
            }
            (Some(Piece::Call(call)), Some(pieces)) => {
                let read = serde_json::from_slice(&call.record_json);
                let read = read.map_err(|error| broken(&format!("call {}", call.number), error))?;
                pieces.calls.push((call.attempt, read));
            }
            (Some(Piece::Log(log)), Some(pieces)) => {
                let digest = convert::digest("digest", &log.digest);
                let digest = digest.map_err(|error| FetchError::Broken(error.to_string()))?;
                pieces.logs.insert(log.name, digest);
            }
            (Some(Piece::Head(_)), Some(_)) | (Some(_), None) => {
                return Err(FetchError::Broken("its head is not where it belongs".to_owned()));
            }
            (None, _) => {}
        }
    }
    found.map(Some).ok_or_else(|| FetchError::Broken("it has no head".to_owned()))
}

/// The record with all that is needed to follow it but the screenshots.
async fn past(pieces: Pieces, blobs: &BlobClient) -> Result<Past, FetchError> {
    let Pieces { kept, links, steps, calls, logs } = pieces;
    whole(&kept, &steps).map_err(FetchError::Broken)?;
    let masks = masks_of(&steps);
    let bodies = bodies(&calls, blobs).await?;
    let mut found = Vec::with_capacity(calls.len());
    for (attempt, record) in calls {
        let link = links.iter().zip(0_u32..).find(|(link, _)| link.attempt == attempt);
        let Some((link, index)) = link else {
            return Err(FetchError::Broken(format!(
                "a call is of `{}`, which is no part of it",
                attempt.escape_debug()
            )));
        };
        let body = record.response.and_then(|response| bodies.get(&response)).cloned().unwrap_or_default();
        found.push(PastCall { attempt: index, end: link.end, record, body: body.into() });
    }
    Ok(Past { kept, steps, calls: found, masks, logs })
}

/// Each step is there once, and in its place.
fn whole(kept: &Kept, steps: &[StepRecord]) -> Result<(), String> {
    if kept.steps == 0 || steps.len() != kept.steps as usize {
        return Err(format!("it has {} steps where {} are kept", steps.len(), kept.steps));
    }
    match steps.iter().zip(0_u32..).find(|(step, number)| step.number != *number) {
        Some((step, number)) => Err(format!("step {} stands in the place of step {number}", step.number)),
        None => Ok(()),
    }
}

/// What is masked in each observation: where it changed by itself is recorded with the step after.
fn masks_of(steps: &[StepRecord]) -> Vec<Vec<Area>> {
    let screen = steps.first().map(|step| step.screen);
    let (width, height) = screen.map_or((0, 0), |screen| (screen.width, screen.height));
    let after = steps.iter().skip(1).map(|step| step.stirred.as_slice());
    let stirred: Vec<&[Area]> = after.chain([[].as_slice()]).collect();
    masks(width, height, &stirred)
}

/// The responses of the calls, by the digests of their skeletons.
async fn bodies(calls: &[(String, CallRecord)], blobs: &BlobClient) -> Result<BTreeMap<Digest, Vec<u8>>, FetchError> {
    let wanted: BTreeSet<Digest> = calls.iter().filter_map(|(_, record)| record.response).collect();
    let wanted: Vec<Digest> = wanted.into_iter().collect();
    let mut found: BTreeMap<Digest, Vec<u8>> = BTreeMap::new();
    for some in wanted.chunks(AT_ONCE) {
        let mut fetching = JoinSet::new();
        for digest in some.iter().copied() {
            let blobs = blobs.clone();
            fetching.spawn(async move { body(digest, &blobs).await.map(|body| (digest, body)) });
        }
        while let Some(fetched) = fetching.join_next().await {
            let (digest, body) = fetched.map_err(|_| BlobError::GivenUp)??;
            found.insert(digest, body);
        }
    }
    Ok(found)
}

/// A body of which the skeleton's digest is known.
async fn body(skeleton: Digest, blobs: &BlobClient) -> Result<Vec<u8>, FetchError> {
    let bytes = blobs.get(skeleton).await?;
    let mut parts: HashMap<Digest, Vec<u8>> = HashMap::new();
    loop {
        match join(&bytes, |digest| parts.get(digest).cloned()) {
            Ok(body) => return Ok(body),
            Err(JoinError::Missing { digest }) if !parts.contains_key(&digest) => {
                parts.insert(digest, blobs.get(digest).await?);
            }
            Err(error) => return Err(FetchError::Broken(error.to_string())),
        }
    }
}

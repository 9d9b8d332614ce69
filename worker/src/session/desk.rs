//! Claims of layers: asked of the coordinator, one attempt of this worker at a time for each
//! layer, and asked again when a session is lost with a claim open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longhaul_core::digest::Digest;
use longhaul_core::outcome::Fault;
use longhaul_core::plan::LayerKind;
use longhaul_proto::v1;
use longhaul_proto::{convert, v1::from_worker::Message};
use tokio::sync::{OwnedMutexGuard, watch};

use super::{Link, Uplink, connected, up};

/// What the coordinator says to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Build it and report.
    Build,
    /// It is there; or was, when it was last heard of.
    Ready,
    /// It was tried and failed.
    Failed(Fault),
}

#[derive(Debug, Default)]
struct Key {
    /// Held by the attempt that claims and builds.
    turn: Arc<tokio::sync::Mutex<()>>,
    answer: Option<watch::Sender<Option<Answer>>>,
    reported: bool,
}

/// The claims of one worker.
#[derive(Clone, Debug)]
pub(crate) struct LayerDesk {
    keys: Arc<Mutex<HashMap<Digest, Key>>>,
    link: Link,
}

impl LayerDesk {
    pub(crate) fn new(link: Link) -> Self {
        Self { keys: Arc::default(), link }
    }

    /// Waits until no other attempt of this worker claims or builds the layer.
    pub(crate) async fn turn(&self, key: Digest) -> OwnedMutexGuard<()> {
        let turn = Arc::clone(&self.keys().entry(key).or_default().turn);
        turn.lock_owned().await
    }

    /// Asks whether the layer may be built, until the answer is more than "wait". To be called
    /// by who has the turn.
    pub(crate) async fn claim(&self, key: Digest, kind: LayerKind, env: &str) -> Answer {
        let (sender, mut answer) = watch::channel(None);
        self.keys().entry(key).or_default().answer = Some(sender);
        let mut link = self.link.clone();
        loop {
            let uplink = connected(&mut link).await;
            let claim = v1::LayerClaim {
                key: convert::digest_bytes(&key).into(),
                kind: kind.name().to_owned(),
                env: env.to_owned(),
            };
            if uplink.bulk.send(up(Message::LayerClaim(claim))).await.is_err() {
                lost(&mut link, &uplink).await;
                continue;
            }
            tokio::select! {
                answered = given(&mut answer) => return answered,
                () = lost(&mut link, &uplink) => {}
            }
        }
    }

    /// Whether this layer is not reported yet; from now on it counts as reported.
    pub(crate) fn first_report(&self, key: Digest) -> bool {
        !std::mem::replace(&mut self.keys().entry(key).or_default().reported, true)
    }

    /// Tells of a layer that was found in the folder; only for people, so it waits for nothing.
    pub(crate) fn report_found(&self, result: v1::LayerResult) {
        if let Some(uplink) = self.link.borrow().as_ref() {
            let _ = uplink.bulk.try_send(up(Message::LayerResult(result)));
        }
    }

    /// Reports a layer that was built, or could not be. Without a session, the report waits
    /// for one.
    pub(crate) async fn report(&self, result: v1::LayerResult) {
        let mut link = self.link.clone();
        loop {
            let uplink = connected(&mut link).await;
            if uplink.bulk.send(up(Message::LayerResult(result.clone()))).await.is_ok() {
                return;
            }
            lost(&mut link, &uplink).await;
        }
    }

    /// The coordinator answered.
    pub(crate) fn answered(&self, wire: &v1::LayerAnswer) -> Result<(), convert::ConvertError> {
        use v1::layer_answer::Answer as Wire;
        let key = convert::digest("key", &wire.key)?;
        let answer = match convert::required("answer", wire.answer.as_ref())? {
            Wire::Wait(_) => return Ok(()),
            Wire::Build(_) => Answer::Build,
            Wire::Ready(_) => Answer::Ready,
            Wire::FailedFaultJson(json) => Answer::Failed(convert::from_json("failed_fault_json", json)?),
        };
        if let Some(sender) = self.keys().get(&key).and_then(|key| key.answer.as_ref()) {
            sender.send_replace(Some(answer));
        }
        Ok(())
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<Digest, Key>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for an answer.
async fn given(answer: &mut watch::Receiver<Option<Answer>>) -> Answer {
    loop {
        if let Some(answer) = answer.borrow_and_update().clone() {
            return answer;
        }
        if answer.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Waits until this session is not the one any more.
async fn lost(link: &mut Link, uplink: &Uplink) {
    let other = |now: &Option<Uplink>| now.as_ref().is_none_or(|now| now.generation != uplink.generation);
    if link.wait_for(other).await.is_err() {
        std::future::pending::<()>().await;
    }
}

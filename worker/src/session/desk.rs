//! Claims of layers: asked of the coordinator, one attempt of this worker at a time for each
//! layer, and asked again when a session is lost with a claim open. Reports are repeated until
//! they were heard ([`super::hearing`]).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longhaul_core::digest::Digest;
use longhaul_core::outcome::Fault;
use longhaul_core::plan::LayerKind;
use longhaul_proto::v1;
use longhaul_proto::{convert, v1::from_worker::Message};
use tokio::sync::{OwnedMutexGuard, watch};

use super::hearing::Hearing;
use super::{Link, Uplink, connected, up};

/// What the coordinator says to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Build it and report.
    Build,
    /// It is there; or was, when it was last heard of.
    Ready(Digest),
    /// It was tried and failed.
    Failed(Fault),
}

#[derive(Debug, Default)]
struct Key {
    /// Held by the attempt that claims and builds.
    turn: Arc<tokio::sync::Mutex<()>>,
    answer: Option<watch::Sender<Option<Answer>>>,
    reported: bool,
    /// What the coordinator is not known to have heard.
    report: Option<Report>,
}

/// A report on its way.
#[derive(Debug)]
struct Report {
    result: v1::LayerResult,
    hearing: Hearing,
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
        {
            let mut keys = self.keys();
            let known = keys.entry(key).or_default();
            known.answer = Some(sender);
            // What was said of an earlier try says nothing of the one that may begin now.
            known.report = None;
        }
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

    /// Reports a layer that was found, was built, or could not be: now if there is a session,
    /// and in every further one until it was heard.
    pub(crate) fn report(&self, key: Digest, result: v1::LayerResult) {
        self.keys().entry(key).or_default().report = Some(Report { result, hearing: Hearing::default() });
        self.hand_over();
    }

    /// Hands the session that there is now every report that it was not handed yet. What it has
    /// no room for waits for the next time.
    pub(crate) fn hand_over(&self) {
        let Some(uplink) = self.link.borrow().clone() else { return };
        for report in self.keys().values_mut().filter_map(|key| key.report.as_mut()) {
            if report.hearing.is_due(&uplink)
                && uplink.bulk.try_send(up(Message::LayerResult(report.result.clone()))).is_ok()
            {
                report.hearing.handed(&uplink);
            }
        }
    }

    /// A heartbeat of this number is about to be sent: it follows whatever has left the queue.
    pub(crate) fn before_heartbeat(&self, sequence: u64) {
        self.hand_over();
        let Some(uplink) = self.link.borrow().clone() else { return };
        if !uplink.is_drained() {
            return;
        }
        for report in self.keys().values_mut().filter_map(|key| key.report.as_mut()) {
            report.hearing.before_heartbeat(&uplink, sequence);
        }
    }

    /// The session's heartbeat of this number was answered.
    pub(crate) fn heartbeat_answered(&self, sequence: u64) {
        let Some(uplink) = self.link.borrow().clone() else { return };
        for key in self.keys().values_mut() {
            if key.report.as_ref().is_some_and(|report| report.hearing.is_heard(&uplink, sequence)) {
                key.report = None;
            }
        }
    }

    /// The coordinator answered.
    pub(crate) fn answered(&self, wire: &v1::LayerAnswer) -> Result<(), convert::ConvertError> {
        use v1::layer_answer::Answer as Wire;
        let key = convert::digest("key", &wire.key)?;
        let answer = match convert::required("answer", wire.answer.as_ref())? {
            Wire::Wait(_) => return Ok(()),
            Wire::Build(_) => Answer::Build,
            Wire::Ready(info) => Answer::Ready(convert::digest("content", &info.content)?),
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

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    const KEY: Digest = Digest::from_bytes([7; 32]);

    fn session(generation: u64) -> (Option<Uplink>, mpsc::Receiver<v1::FromWorker>) {
        let (bulk, queue) = mpsc::channel(8);
        (Some(Uplink { generation, bulk }), queue)
    }

    fn reports(queue: &mut mpsc::Receiver<v1::FromWorker>) -> usize {
        let mut count = 0;
        while let Ok(message) = queue.try_recv() {
            count += usize::from(matches!(message.message, Some(Message::LayerResult(_))));
        }
        count
    }

    #[test]
    fn a_report_is_repeated_in_every_session_until_a_heartbeat_after_it_is_answered() {
        let (link, receiver) = watch::channel(None);
        let desk = LayerDesk::new(receiver);
        desk.report(KEY, v1::LayerResult::default());
        let (uplink, mut first) = session(1);
        link.send_replace(uplink);
        desk.hand_over();
        // It waits in the queue yet: this heartbeat may overtake it.
        desk.before_heartbeat(1);
        desk.heartbeat_answered(1);
        assert_eq!(reports(&mut first), 1);
        desk.before_heartbeat(2);

        let (uplink, mut second) = session(2);
        link.send_replace(uplink);
        desk.hand_over();
        desk.hand_over();
        assert_eq!(reports(&mut second), 1, "the first session was lost before the answer");
        // A number means nothing in another session.
        desk.heartbeat_answered(2);
        desk.before_heartbeat(1);
        desk.heartbeat_answered(0);
        let (uplink, mut third) = session(3);
        link.send_replace(uplink);
        desk.hand_over();
        assert_eq!(reports(&mut third), 1);
        desk.before_heartbeat(1);
        desk.heartbeat_answered(1);
        let (uplink, mut fourth) = session(4);
        link.send_replace(uplink);
        desk.hand_over();
        assert_eq!(reports(&mut fourth), 0, "it was heard");
    }
}

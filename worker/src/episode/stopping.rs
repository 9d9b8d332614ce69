//! Stopping the sandboxes of an attempt, and removing what they leave on disk.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Known;
use crate::sandbox::Sandbox;
use crate::session::actor::Shared;

/// How long a sandbox gets to end in order.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Ends what lives, and removes what it left on disk.
pub(super) async fn release(known: &Known, scratch: &Path, shared: &Shared) {
    stop_all(known).await;
    remove_scratch(scratch, shared).await;
}

/// Ends what lives, and gives back what it had.
pub(super) async fn stop_all(known: &Known) {
    // An agent first: it may still want something.
    for place in [&known.agent_sandbox, &known.sandbox] {
        stop_kept(place).await;
    }
    known.gpus.lock().unwrap_or_else(PoisonError::into_inner).take();
}

/// Stops the sandbox that is kept there. It is known until it is stopped: who is cancelled meanwhile
/// leaves it to whoever ends the attempt.
pub(super) async fn stop_kept(place: &Mutex<Option<Arc<dyn Sandbox>>>) {
    let kept = || place.lock().unwrap_or_else(PoisonError::into_inner);
    let sandbox = kept().clone();
    if let Some(sandbox) = sandbox {
        stop(sandbox.as_ref()).await;
        kept().take_if(|known| Arc::ptr_eq(known, &sandbox));
    }
}

async fn stop(sandbox: &dyn Sandbox) {
    match tokio::time::timeout(STOP_LIMIT, sandbox.stop()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "a sandbox did not stop in order"),
        Err(_) => sandbox.kill().await,
    }
}

/// Removes a folder of an attempt or of a layer's build.
pub(super) async fn remove_scratch(scratch: &Path, shared: &Shared) {
    if scratch.exists()
        && let Err(error) = shared.driver.remove(scratch).await
    {
        tracing::warn!(folder = %scratch.display(), %error, "scratch stays on disk until the next worker cleans up");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::sandbox::{Driver as _, SandboxRequest};
    use crate::testing::sandbox::{FolderDriver, World};

    #[tokio::test]
    async fn a_sandbox_is_known_until_it_is_stopped_whoever_is_cancelled_meanwhile() {
        let world = Arc::new(World::default());
        world.stop_millis.store(3_600_000, Ordering::SeqCst);
        let driver = FolderDriver(Arc::clone(&world));
        let known = Known::default();
        for place in [&known.agent_sandbox, &known.sandbox] {
            let request = SandboxRequest {
                id: "some".to_owned(),
                env: None,
                layers: Vec::new(),
                views: Vec::new(),
                accounts: Vec::new(),
                net: false,
                gpus: None,
            };
            *place.lock().unwrap() = Some(driver.start(request).await.unwrap());
        }
        let cancelled = tokio::time::timeout(Duration::from_millis(20), stop_all(&known)).await;
        assert!(cancelled.is_err(), "it was in the middle");
        assert!(known.agent_sandbox.lock().unwrap().is_some() && known.sandbox.lock().unwrap().is_some());
        assert_eq!(world.stopped.load(Ordering::SeqCst), 0);
        world.stop_millis.store(0, Ordering::SeqCst);
        stop_all(&known).await;
        assert_eq!((world.stopped.load(Ordering::SeqCst), world.live.load(Ordering::SeqCst)), (2, 0));
    }
}

//! Stopping the sandboxes of an attempt, and removing what they leave on disk.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Known;
use crate::sandbox::Sandbox;
use crate::session::actor::Shared;

/// How long a sandbox gets to end in order.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// How often is looked whether what could not be ended is gone.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Ends what lives, and removes what it left on disk.
pub(super) async fn release(known: &Known, scratch: &Path, shared: &Shared) {
    stop_all(known).await;
    remove_scratch(scratch, shared).await;
}

/// Ends what lives, and gives back what it had.
pub(super) async fn stop_all(known: &Known) {
    // An agent first: it may still want something.
    stop_kept(&known.agent_sandbox).await;
    let survivor = stop_kept(&known.sandbox).await;
    let gpus = known.gpus.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let (Some(gpus), Some(survivor)) = (gpus, survivor) {
        let ids = gpus.gpus().ids().join(",");
        tracing::error!(ids, "a sandbox was not ended: its graphics processors are kept from others until it is");
        tokio::spawn(gpus.withhold(end_of(survivor)));
    }
}

/// Stops the sandbox that is kept there; it comes back if something of it may live on. It is known until it
/// is stopped: who is cancelled meanwhile leaves it to whoever ends the attempt.
pub(super) async fn stop_kept(place: &Mutex<Option<Arc<dyn Sandbox>>>) -> Option<Arc<dyn Sandbox>> {
    let kept = || place.lock().unwrap_or_else(PoisonError::into_inner);
    let sandbox = kept().clone()?;
    let is_gone = stop(sandbox.as_ref()).await;
    kept().take_if(|known| Arc::ptr_eq(known, &sandbox));
    (!is_gone).then_some(sandbox)
}

/// Stops one; whether nothing of it is left.
async fn stop(sandbox: &dyn Sandbox) -> bool {
    match tokio::time::timeout(STOP_LIMIT, sandbox.stop()).await {
        Ok(Ok(())) => return true,
        Ok(Err(error)) => tracing::warn!(%error, "a sandbox did not stop in order"),
        Err(_) => sandbox.kill().await,
    }
    sandbox.is_gone().await
}

/// Resolves when nothing is left of a sandbox that did not end in order.
async fn end_of(sandbox: Arc<dyn Sandbox>) {
    while !sandbox.is_gone().await {
        sandbox.kill().await;
        tokio::time::sleep(LOOK_AGAIN).await;
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
                tops: Vec::new(),
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

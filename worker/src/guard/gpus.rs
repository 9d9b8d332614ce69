//! Shares of the node's graphics processors: each is given to one sandbox at a time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use longhaul_apptainer::{Gpus, Maker};
use tokio::sync::Notify;

/// How long an attempt waits for processors that a sandbox holds which could not be ended.
const HELD_LIMIT: Duration = Duration::from_secs(60);

/// The graphics processors that a worker gives out.
#[derive(Clone, Debug)]
pub struct GpuShares(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    maker: Option<Maker>,
    all: usize,
    pools: Mutex<Pools>,
    freed: Notify,
}

/// Those that nobody has, and those that nobody may have.
#[derive(Debug)]
struct Pools {
    free: Vec<String>,
    withheld: Vec<String>,
}

/// Graphics processors of one sandbox, given back when dropped: not before the sandbox is gone.
#[derive(Debug)]
pub struct GpuShare {
    gpus: Gpus,
    from: GpuShares,
}

/// Why an env gets no graphics processors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoGpus {
    /// It asks for more of them than this worker has in all.
    #[error("the env asks for {asked} graphics processors, and this worker has {all}")]
    TooFew {
        /// How many are asked for.
        asked: u32,
        /// How many there are.
        all: usize,
    },
    /// There would be enough, had a sandbox been ended.
    #[error("{0}")]
    Withheld(String),
}

impl GpuShares {
    /// Over these, if there are any.
    #[must_use]
    pub fn new(gpus: Option<&Gpus>) -> Self {
        let free: Vec<String> = gpus.map(|gpus| gpus.ids().to_vec()).unwrap_or_default();
        let (maker, all) = (gpus.map(Gpus::maker), free.len());
        let pools = Mutex::new(Pools { free, withheld: Vec::new() });
        Self(Arc::new(Inner { maker, all, pools, freed: Notify::new() }))
    }

    /// So many that nobody else has. Those of an attempt that was superseded may be held until its sandbox
    /// is gone, and are waited for.
    ///
    /// # Errors
    ///
    /// There are not as many, or they are withheld.
    pub async fn take(&self, asked: u32) -> Result<Option<GpuShare>, NoGpus> {
        if asked == 0 {
            return Ok(None);
        }
        let all = self.0.all;
        let count = usize::try_from(asked).unwrap_or(usize::MAX);
        let maker = self.0.maker.filter(|_| count <= all).ok_or(NoGpus::TooFew { asked, all })?;
        loop {
            let freed = self.0.freed.notified();
            tokio::pin!(freed);
            // Before looking, so that what is given back meanwhile is not missed.
            freed.as_mut().enable();
            if let Some(gpus) = self.try_take(maker, count) {
                return Ok(Some(GpuShare { gpus, from: self.clone() }));
            }
            let waited = tokio::time::timeout(HELD_LIMIT, freed).await;
            if let Some(trouble) = self.trouble().filter(|_| waited.is_err()) {
                return Err(NoGpus::Withheld(trouble));
            }
        }
    }

    fn try_take(&self, maker: Maker, count: usize) -> Option<Gpus> {
        let mut pools = self.pools();
        if pools.free.len() < count {
            return None;
        }
        Gpus::new(maker, pools.free.drain(..count).collect())
    }

    /// Why this worker is to get no more attempts, if so: processors that it offers are held by a sandbox
    /// that could not be ended.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let withheld = self.pools().withheld.join(", ");
        let trouble = || format!("a sandbox that could not be ended may still use the graphics processors {withheld}");
        (!withheld.is_empty()).then(trouble)
    }

    fn pools(&self) -> std::sync::MutexGuard<'_, Pools> {
        self.0.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GpuShare {
    /// Which they are.
    #[must_use]
    pub const fn gpus(&self) -> &Gpus {
        &self.gpus
    }

    /// Gives them back when `gone` says that nobody uses them any more; until then nobody gets them, and
    /// [`GpuShares::trouble`] says so.
    pub async fn withhold(self, gone: impl Future<Output = ()>) {
        self.from.pools().withheld.extend_from_slice(self.gpus.ids());
        gone.await;
        self.from.pools().withheld.retain(|id| !self.gpus.ids().contains(id));
    }
}

impl Drop for GpuShare {
    fn drop(&mut self) {
        self.from.pools().free.extend_from_slice(self.gpus.ids());
        self.from.0.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(ids: &[&str]) -> GpuShares {
        GpuShares::new(Gpus::new(Maker::Nvidia, ids.iter().map(|id| (*id).to_owned()).collect()).as_ref())
    }

    #[tokio::test]
    async fn none_is_given_to_two_at_one_time() {
        let shares = shares(&["0", "1", "GPU-2"]);
        let one = shares.take(1).await.unwrap().unwrap();
        let two = shares.take(2).await.unwrap().unwrap();
        assert_eq!(
            (one.gpus().ids(), two.gpus().ids()),
            (&["0".to_owned()][..], &["1".to_owned(), "GPU-2".to_owned()][..])
        );
        let third = tokio::spawn({
            let shares = shares.clone();
            async move { shares.take(2).await.unwrap().unwrap().gpus().ids().to_vec() }
        });
        tokio::task::yield_now().await;
        drop(one);
        tokio::task::yield_now().await;
        assert!(!third.is_finished(), "one of them is too few");
        drop(two);
        assert_eq!(third.await.unwrap(), ["0", "1"]);
    }

    #[tokio::test]
    async fn what_is_not_there_is_not_waited_for() {
        assert!(shares(&["0"]).take(0).await.unwrap().is_none());
        assert_eq!(shares(&["0"]).take(2).await.unwrap_err(), NoGpus::TooFew { asked: 2, all: 1 });
        assert_eq!(shares(&[]).take(1).await.unwrap_err(), NoGpus::TooFew { asked: 1, all: 0 });
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_survivor_may_use_is_given_to_nobody_and_is_waited_for_in_vain_no_longer_than_a_minute() {
        let shares = shares(&["0", "1"]);
        let share = shares.take(2).await.unwrap().unwrap();
        assert_eq!(shares.trouble(), None);
        let (tell, gone) = tokio::sync::oneshot::channel::<()>();
        let withheld = tokio::spawn(share.withhold(async {
            let _ = gone.await;
        }));
        tokio::task::yield_now().await;
        assert!(shares.trouble().unwrap().ends_with(" 0, 1"));
        assert!(matches!(shares.take(1).await.unwrap_err(), NoGpus::Withheld(_)));
        tell.send(()).unwrap();
        withheld.await.unwrap();
        assert_eq!(shares.trouble(), None);
        assert_eq!(shares.take(2).await.unwrap().unwrap().gpus().ids(), ["0", "1"]);
    }
}

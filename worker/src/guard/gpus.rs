//! Shares of the node's graphics processors: each is given to one sandbox at a time.

use std::sync::{Arc, Mutex, PoisonError};

use longhaul_apptainer::{Gpus, Maker};
use tokio::sync::Notify;

/// The graphics processors that a worker gives out.
#[derive(Clone, Debug)]
pub struct GpuShares(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    maker: Option<Maker>,
    all: usize,
    free: Mutex<Vec<String>>,
    freed: Notify,
}

/// Graphics processors of one sandbox, given back when dropped: not before the sandbox is gone.
#[derive(Debug)]
pub struct GpuShare {
    gpus: Gpus,
    from: GpuShares,
}

/// An env asks for more of them than this worker has in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the env asks for {asked} graphics processors, and this worker has {all}")]
pub struct TooFewGpus {
    /// How many are asked for.
    pub asked: u32,
    /// How many there are.
    pub all: usize,
}

impl GpuShares {
    /// Over these, if there are any.
    #[must_use]
    pub fn new(gpus: Option<&Gpus>) -> Self {
        let free: Vec<String> = gpus.map(|gpus| gpus.ids().to_vec()).unwrap_or_default();
        let (maker, all) = (gpus.map(Gpus::maker), free.len());
        Self(Arc::new(Inner { maker, all, free: Mutex::new(free), freed: Notify::new() }))
    }

    /// So many that nobody else has. Those of an attempt that was superseded may be held until its sandbox
    /// is gone, and are waited for.
    ///
    /// # Errors
    ///
    /// There are not as many.
    pub async fn take(&self, asked: u32) -> Result<Option<GpuShare>, TooFewGpus> {
        if asked == 0 {
            return Ok(None);
        }
        let all = self.0.all;
        let count = usize::try_from(asked).unwrap_or(usize::MAX);
        let maker = self.0.maker.filter(|_| count <= all).ok_or(TooFewGpus { asked, all })?;
        loop {
            let freed = self.0.freed.notified();
            tokio::pin!(freed);
            // Before looking, so that what is given back meanwhile is not missed.
            freed.as_mut().enable();
            if let Some(gpus) = self.try_take(maker, count) {
                return Ok(Some(GpuShare { gpus, from: self.clone() }));
            }
            freed.await;
        }
    }

    fn try_take(&self, maker: Maker, count: usize) -> Option<Gpus> {
        let mut free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < count {
            return None;
        }
        Gpus::new(maker, free.drain(..count).collect())
    }
}

impl GpuShare {
    /// Which they are.
    #[must_use]
    pub const fn gpus(&self) -> &Gpus {
        &self.gpus
    }
}

impl Drop for GpuShare {
    fn drop(&mut self) {
        let mut free = self.from.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.extend_from_slice(self.gpus.ids());
        drop(free);
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
        assert_eq!(shares(&["0"]).take(2).await.unwrap_err(), TooFewGpus { asked: 2, all: 1 });
        assert_eq!(shares(&[]).take(1).await.unwrap_err(), TooFewGpus { asked: 1, all: 0 });
    }
}

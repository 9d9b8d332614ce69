//! What the session tells an attempt: go on, park, or stop.

use std::time::Duration;

use tokio::sync::watch;

/// What an attempt is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The lease holds.
    Go,
    /// The lease is over for now: the sandbox is kept, and nothing is spent.
    Park,
    /// It is over.
    Stop(StopReason),
}

/// Why an attempt is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// A person cancelled it.
    Cancelled,
    /// Another worker may have the episode.
    Stale,
    /// The worker has to stop.
    Preempted,
    /// It was parked too long.
    Parked,
}

/// An attempt's end of it.
#[derive(Clone, Debug)]
pub(crate) struct Control(watch::Receiver<Order>);

impl Control {
    pub(crate) const fn new(order: watch::Receiver<Order>) -> Self {
        Self(order)
    }

    /// Resolves when the attempt is to stop.
    pub(crate) async fn stopped(&self) -> StopReason {
        let mut order = self.0.clone();
        let told = order.wait_for(|order| matches!(order, Order::Stop(_))).await.map(|order| *order);
        match told {
            Ok(Order::Stop(reason)) => reason,
            // The session is gone without a word: the worker is ending.
            Ok(Order::Go | Order::Park) | Err(_) => StopReason::Preempted,
        }
    }

    pub(crate) fn is_parked(&self) -> bool {
        *self.0.borrow() == Order::Park
    }

    /// Resolves when the attempt was parked for as long as `limit` without a break.
    pub(crate) async fn parked_for(&self, limit: Duration) -> StopReason {
        let mut order = self.0.clone();
        loop {
            let parked = order.wait_for(|order| *order == Order::Park).await.is_ok();
            let other = order.wait_for(|order| *order != Order::Park);
            match tokio::time::timeout(limit, other).await {
                Err(_) => return StopReason::Parked,
                Ok(Ok(_)) if parked => {}
                // The session is gone without a word: the worker is ending.
                Ok(_) => return StopReason::Preempted,
            }
        }
    }

    /// Waits while the attempt is parked, `limit` at most. A stop is heard by [`Self::stopped`].
    ///
    /// # Errors
    ///
    /// The limit has passed.
    pub(crate) async fn unparked(&self, limit: Duration) -> Result<(), StopReason> {
        let mut order = self.0.clone();
        let go = order.wait_for(|order| *order == Order::Go);
        match tokio::time::timeout(limit, go).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(StopReason::Preempted),
            Err(_) => Err(StopReason::Parked),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_parked_attempt_goes_on_when_told_and_gives_up_at_the_limit() {
        let (sender, receiver) = watch::channel(Order::Park);
        let control = Control::new(receiver);
        assert_eq!(control.unparked(Duration::from_secs(60)).await, Err(StopReason::Parked));
        assert_eq!(control.parked_for(Duration::from_secs(60)).await, StopReason::Parked);
        sender.send(Order::Go).unwrap();
        assert_eq!(control.unparked(Duration::from_secs(60)).await, Ok(()));
        let parked = control.parked_for(Duration::from_secs(60));
        tokio::pin!(parked);
        for order in [Order::Park, Order::Go, Order::Park, Order::Go] {
            sender.send(order).unwrap();
            let early = tokio::time::timeout(Duration::from_secs(40), parked.as_mut()).await;
            assert!(early.is_err(), "each time is shorter than the limit: {early:?}");
        }
        sender.send(Order::Stop(StopReason::Cancelled)).unwrap();
        assert_eq!(control.stopped().await, StopReason::Cancelled);
        drop(sender);
        let (_, receiver) = watch::channel(Order::Go);
        assert_eq!(Control::new(receiver).stopped().await, StopReason::Preempted);
    }
}

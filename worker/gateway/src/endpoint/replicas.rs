//! Several addresses that serve the same model, which may come and go: who gets the next call. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// An address and what is known of it.
#[derive(Clone, Debug)]
struct Replica {
    url: String,
    in_flight: u32,
    failures: u32,
    /// Until when it is left out.
    out_until: Option<Instant>,
}

/// The addresses of an endpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replicas(Vec<Replica>);

/// The wait before an address that failed is tried again: at first, and at most.
const OUT_FIRST: Duration = Duration::from_secs(2);
const OUT_MOST: Duration = Duration::from_secs(60);

impl Replicas {
    /// Takes the next call among `urls`: the one with the fewest calls in flight, those that
    /// failed of late left out while others are there. The one that the attempt used last has
    /// its history in its cache, and is taken while it is not busier than others.
    pub(crate) fn take(&mut self, urls: &[String], last: Option<&str>, now: Instant) -> Option<String> {
        // Whoever is named no more, and serves no call, is forgotten, unless it failed just now.
        self.0.retain(|replica| {
            replica.in_flight > 0 || replica.out_until.is_some_and(|until| until > now) || urls.contains(&replica.url)
        });
        for url in urls {
            if !self.0.iter().any(|replica| replica.url == *url) {
                self.0.push(Replica { url: url.clone(), in_flight: 0, failures: 0, out_until: None });
            }
        }
        let wait =
            |replica: &Replica| replica.out_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        let order = |replica: &Replica| {
            let used = last == Some(replica.url.as_str());
            (wait(replica), replica.in_flight.saturating_sub(u32::from(used)), !used)
        };
        let chosen =
            self.0.iter_mut().filter(|replica| urls.contains(&replica.url)).min_by_key(|replica| order(replica))?;
        chosen.in_flight += 1;
        Some(chosen.url.clone())
    }

    /// A call of an address is over; `failed` says whether the address itself failed.
    pub(crate) fn give_back(&mut self, url: &str, failed: Option<bool>, now: Instant) {
        let Some(replica) = self.0.iter_mut().find(|replica| replica.url == url) else { return };
        replica.in_flight = replica.in_flight.saturating_sub(1);
        match failed {
            Some(true) => {
                let wait = OUT_FIRST.saturating_mul(1 << replica.failures.min(8)).min(OUT_MOST);
                replica.failures += 1;
                replica.out_until = Some(now + wait);
            }
            Some(false) => (replica.failures, replica.out_until) = (0, None),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_go_to_the_least_busy_that_lives() {
        let now = Instant::now();
        let urls = ["a", "b", "c"].map(str::to_owned).to_vec();
        let mut replicas = Replicas::default();
        let mut taken: Vec<_> = (0..6).map(|_| replicas.take(&urls, None, now).unwrap()).collect();
        taken.sort();
        assert_eq!(taken, ["a", "a", "b", "b", "c", "c"]);
        replicas.give_back("a", Some(true), now);
        replicas.give_back("a", Some(true), now);
        assert_ne!(replicas.take(&urls, None, now).unwrap(), "a", "what failed is left out");
        let later = now + Duration::from_secs(5);
        assert_eq!(replicas.take(&urls, None, later).unwrap(), "a", "and tried again");
        assert_eq!(replicas.take(&urls[1..], None, later).unwrap(), "c", "others of the plan only");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_named_no_more_gets_no_call_and_is_forgotten_after_its_last() {
        let now = Instant::now();
        let urls = ["a", "b"].map(str::to_owned).to_vec();
        let mut replicas = Replicas::default();
        assert_eq!(replicas.take(&urls, None, now).unwrap(), "a");
        for _ in 0..3 {
            assert_eq!(replicas.take(&urls[1..], Some("a"), now).unwrap(), "b");
        }
        assert_eq!(replicas.0.len(), 2, "its call is still in flight");
        replicas.give_back("a", Some(false), now);
        assert_eq!(replicas.take(&urls[1..], Some("a"), now).unwrap(), "b");
        assert_eq!(replicas.0.len(), 1);
        assert_eq!(replicas.take(&[], None, now), None);
        assert_eq!(replicas.take(&urls, None, now).unwrap(), "a", "it is there again, and idle");
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_stays_with_its_address_while_that_is_no_busier() {
        let now = Instant::now();
        let urls = ["a", "b"].map(str::to_owned).to_vec();
        let mut replicas = Replicas::default();
        assert_eq!(replicas.take(&urls, Some("b"), now).unwrap(), "b");
        assert_eq!(replicas.take(&urls, Some("b"), now).unwrap(), "b");
        assert_eq!(replicas.take(&urls, Some("b"), now).unwrap(), "a");
        replicas.give_back("b", Some(true), now);
        assert_eq!(replicas.take(&urls, Some("b"), now).unwrap(), "a");
    }
}

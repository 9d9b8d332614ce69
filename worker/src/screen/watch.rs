//! Waits for the screen to come to rest, at little cost: the server says where something
//! was drawn (DAMAGE), and only that part is fetched and compared, so that a program that
//! draws the same picture again and again counts as still. Without that extension the
//! whole frame is compared, less often.

use std::time::{Duration, Instant};

use x11rb::connection::Connection;
use x11rb::protocol::Event;
use x11rb::protocol::damage::{self, ConnectionExt as _};
use x11rb::protocol::xfixes::{self, ConnectionExt as _};

use super::capture::Capture;
use super::error::{ScreenError, during, reply};
use super::link::Link;
use super::rest::{Next, Rest, RestRule, Waiting};

const WATCHING: &str = "waiting for the screen to rest";

/// How often the whole frame is looked at where the server does not say what was drawn: a
/// frame is fetched for each look, so the looks are few.
const BLIND_INTERVAL: Duration = Duration::from_millis(100);

/// What tells us of changes.
#[derive(Debug)]
pub(super) enum Watch {
    /// The server does.
    Damage {
        /// Collects what is drawn.
        damage: damage::Damage,
        /// Takes what was collected.
        region: xfixes::Region,
    },
    /// Nothing does.
    Blind,
}

impl Watch {
    /// Starts to collect damage, if the server can. XFIXES must have been asked for.
    pub(super) fn new(link: &Link, root: u32) -> Result<Self, ScreenError> {
        if !link.has(damage::X11_EXTENSION_NAME)? {
            return Ok(Self::Blind);
        }
        let client = &link.client;
        client.damage_query_version(1, 1).map_err(during(WATCHING))?.reply().map_err(reply(WATCHING))?;
        let damage = client.generate_id().map_err(during(WATCHING))?;
        client.damage_create(damage, root, damage::ReportLevel::NON_EMPTY).map_err(during(WATCHING))?;
        let region = client.generate_id().map_err(during(WATCHING))?;
        client.xfixes_create_region(region, &[]).map_err(during(WATCHING))?;
        Ok(Self::Damage { damage, region })
    }

    /// Brings the frame up to date. Returns whether it has changed.
    fn look(&self, link: &Link, capture: &mut Capture) -> Result<bool, ScreenError> {
        let client = &link.client;
        match *self {
            Self::Damage { damage, region } => {
                client.damage_subtract(damage, x11rb::NONE, region).map_err(during(WATCHING))?;
                let drawn =
                    client.xfixes_fetch_region(region).map_err(during(WATCHING))?.reply().map_err(reply(WATCHING))?;
                capture.refresh_part(client, drawn.extents)
            }
            Self::Blind => capture.refresh(client),
        }
    }

    /// Forgets what was drawn up to now: called before input, so that the wait after it
    /// sees what the input did.
    pub(super) fn forget(&self, link: &Link, capture: &mut Capture) -> Result<(), ScreenError> {
        self.look(link, capture).map(drop)
    }

    /// Waits until the screen rests by `rule`, or its limit is over. `works` says whether
    /// something inside works; it is asked only when the screen is about to count as at rest.
    pub(super) fn rest(
        &self,
        link: &Link,
        capture: &mut Capture,
        rule: RestRule,
        works: impl Fn() -> bool,
    ) -> Result<Rest, ScreenError> {
        let mut waiting = Waiting::new(rule, Instant::now());
        let interval = match self {
            Self::Damage { .. } => rule.interval,
            Self::Blind => rule.interval.max(BLIND_INTERVAL),
        };
        let mut frames = Frames { interval, next: Instant::now() };
        loop {
            let looked = Instant::now();
            // Looking also asks for the next notice: the server sends one only when
            // something is drawn after nothing was left to report.
            let is_cheap = matches!(self, Self::Damage { .. });
            let is_due = is_cheap || frames.is_due(looked, matches!(waiting.decide(looked), Next::Over(_)));
            if is_due && self.look(link, capture)? {
                waiting.changed(Instant::now());
            }
            if waiting.minds_work(Instant::now()) && works() {
                waiting.worked(Instant::now());
            }
            match waiting.decide(Instant::now()) {
                Next::Over(rest) => return Ok(rest),
                Next::Until(deadline) => {
                    let next_look = match self {
                        Self::Damage { .. } => {
                            wait_for_notice(link, deadline)?;
                            (looked + interval).min(deadline)
                        }
                        Self::Blind => frames.next.min(deadline),
                    };
                    std::thread::sleep(next_look.saturating_duration_since(Instant::now()));
                }
            }
        }
    }
}

/// When a whole frame is fetched: once in an interval, however often it matters what works
/// inside, and at the end, so that what is taken for rest was seen to rest.
#[derive(Debug)]
struct Frames {
    interval: Duration,
    next: Instant,
}

impl Frames {
    /// Whether one is fetched now; `is_over` says that nothing else is waited for.
    fn is_due(&mut self, now: Instant, is_over: bool) -> bool {
        let due = is_over || now >= self.next;
        if due {
            self.next = now + self.interval;
        }
        due
    }
}

/// Waits until the server says that something was drawn, or until `deadline`.
fn wait_for_notice(link: &Link, deadline: Instant) -> Result<(), ScreenError> {
    while let Some(event) = link.event_before(deadline, WATCHING)? {
        if matches!(event, Event::DamageNotify(_)) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_damage_few_frames_are_fetched_and_the_last_one_is_what_rested() {
        let start = Instant::now();
        let rule = RestRule::STEP;
        let waiting = Waiting::new(rule, start);
        let mut frames = Frames { interval: BLIND_INTERVAL, next: start };
        let (mut fetched, mut looks, mut now) = (Vec::new(), 0, start);
        // A program works inside all the time: near the end it is looked for every 25 ms.
        loop {
            let over = matches!(waiting.decide(now), Next::Over(_));
            looks += 1;
            if frames.is_due(now, over) {
                fetched.push(now.duration_since(start).as_millis());
            }
            match waiting.decide(now) {
                Next::Over(_) => break,
                Next::Until(deadline) => now = frames.next.min(deadline),
            }
        }
        assert_eq!(fetched, [0, 100, 200, 300, 350]);
        assert!(looks > fetched.len(), "what works inside is looked at more often: {looks}");
    }
}

//! A screen's thread, and the handle by which async code uses it.
//!
//! Every call is bounded: by the X client's own limits, and if a server should get around
//! those (by trickling bytes, say), by a limit here, after which the connection is cut.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_core::action::{self, Input};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::client::{Ender, Frame, Performed, Screen, Stepped};
use super::display::Works;
use super::error::{InputError, ScreenError};
use super::keyboard::MAX_TEXT;
use super::link::SILENCE_LIMIT;
use super::rest::{Rest, RestRule};

/// What a call may take beyond the time that its actions ask for.
const CALL_LIMIT: Duration = Duration::from_secs(3 * SILENCE_LIMIT.as_secs());

type Call = Box<dyn FnOnce(&mut Screen) -> Keep + Send>;

/// Whether a screen can still be used after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    Yes,
    No,
}

/// A screen on its own thread. Dropping the handle ends the thread, which releases what is
/// held and gives borrowed keys back.
pub struct ScreenHandle {
    calls: mpsc::Sender<Call>,
    ender: Ender,
}

impl fmt::Debug for ScreenHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScreenHandle").finish_non_exhaustive()
    }
}

impl ScreenHandle {
    /// As [`Screen::connect`], on a new thread. With `works`, the screen counts as at rest
    /// only when nothing behind it works ([`RestRule::working`]).
    ///
    /// # Errors
    ///
    /// As [`Screen::connect`]; also when the thread cannot be started, or connecting takes
    /// too long.
    pub async fn connect(socket: &Path, width: u16, height: u16, works: Option<Works>) -> Result<Self, ScreenError> {
        let path: PathBuf = socket.to_owned();
        // One call at a time: the worker awaits each before the next.
        let (calls, mut inbox) = mpsc::channel::<Call>(1);
        let (ready, connected) = oneshot::channel();
        std::thread::Builder::new()
            .name("screen".to_owned())
            .spawn(move || {
                let opened = Screen::connect(&path, width, height).and_then(|screen| Ok((screen.ender()?, screen)));
                let mut screen = match opened {
                    Ok((ender, mut screen)) => {
                        if let Some(works) = works {
                            screen.watch_work(works);
                        }
                        if ready.send(Ok(ender)).is_err() {
                            return;
                        }
                        screen
                    }
                    Err(error) => {
                        // Who asked may have gone; then nobody wants to know.
                        drop(ready.send(Err(error)));
                        return;
                    }
                };
                while let Some(call) = inbox.blocking_recv() {
                    if call(&mut screen) == Keep::No {
                        return;
                    }
                }
            })
            .map_err(|source| ScreenError::Thread { source })?;
        match tokio::time::timeout(CALL_LIMIT, connected).await {
            Ok(Ok(opened)) => Ok(Self { calls, ender: opened? }),
            Ok(Err(_)) => Err(ScreenError::Closed),
            Err(_) => Err(ScreenError::Silent { during: "connecting", limit: CALL_LIMIT }),
        }
    }

    /// As [`Screen::capture`].
    ///
    /// # Errors
    ///
    /// As [`Screen::capture`]; after any error the screen is closed.
    pub async fn capture(&self) -> Result<Frame, ScreenError> {
        self.call("capturing the screen", CALL_LIMIT, Screen::capture).await
    }

    /// As [`Screen::rest`].
    ///
    /// # Errors
    ///
    /// As [`Screen::rest`]; after any error the screen is closed.
    pub async fn rest(&self, rule: RestRule) -> Result<Rest, ScreenError> {
        let limit = CALL_LIMIT + rule.limit;
        self.call("waiting for the screen to rest", limit, move |screen| screen.rest(rule)).await
    }

    /// As [`Screen::perform`].
    ///
    /// # Errors
    ///
    /// As [`Screen::perform`]; after any error the screen is closed.
    pub async fn perform(&self, actions: Vec<Value>) -> Result<Performed, ScreenError> {
        let limit = CALL_LIMIT + longest(&actions);
        self.call("injecting input", limit, move |screen| screen.perform(&actions)).await
    }

    /// As [`Screen::act`].
    ///
    /// # Errors
    ///
    /// As [`Screen::act`]; after an error of the display the screen is closed.
    pub async fn act(&self, inputs: Vec<Input>) -> Result<(), InputError> {
        let limit = CALL_LIMIT + inputs.iter().map(time_for).sum::<Duration>();
        let act = move |screen: &mut Screen| match screen.act(&inputs) {
            Ok(()) => Ok(Ok(())),
            Err(InputError::Refused(reason)) => Ok(Err(reason)),
            Err(InputError::Screen(error)) => Err(error),
        };
        self.call("injecting input", limit, act).await?.map_err(InputError::Refused)
    }

    /// As [`Screen::step`].
    ///
    /// # Errors
    ///
    /// As [`Screen::step`]; after any error the screen is closed.
    pub async fn step(&self, actions: Vec<Value>, rule: RestRule) -> Result<Stepped, ScreenError> {
        let limit = CALL_LIMIT + longest(&actions) + rule.limit;
        self.call("carrying out a step", limit, move |screen| screen.step(&actions, rule)).await
    }

    /// As [`Screen::release_all`].
    ///
    /// # Errors
    ///
    /// As [`Screen::release_all`]; after any error the screen is closed.
    pub async fn release_all(&self) -> Result<(), ScreenError> {
        self.call("releasing keys", CALL_LIMIT, Screen::release_all).await
    }

    async fn call<T: Send + 'static>(
        &self,
        during: &'static str,
        limit: Duration,
        call: impl FnOnce(&mut Screen) -> Result<T, ScreenError> + Send + 'static,
    ) -> Result<T, ScreenError> {
        let (answer, answered) = oneshot::channel();
        let call: Call = Box::new(move |screen| {
            let result = call(screen);
            // A broken connection stays broken, and after a refused request nobody knows
            // what the server did: the attempt ends as a fault of the display.
            let keep = if result.is_ok() { Keep::Yes } else { Keep::No };
            // Who asked may have been cancelled.
            drop(answer.send(result));
            keep
        });
        let asked = async {
            self.calls.send(call).await.map_err(|_| ScreenError::Closed)?;
            answered.await.map_err(|_| ScreenError::Closed)?
        };
        let Ok(result) = tokio::time::timeout(limit, asked).await else {
            self.ender.cut();
            return Err(ScreenError::Silent { during, limit });
        };
        result
    }
}

impl Drop for ScreenHandle {
    fn drop(&mut self) {
        self.ender.stop();
    }
}

/// How long actions may take, generously: they must not be cut off on a slow node.
fn longest(actions: &[Value]) -> Duration {
    actions.iter().filter_map(|action| action::parse(action).ok()).flatten().map(|input| time_for(&input)).sum()
}

fn time_for(input: &Input) -> Duration {
    match input {
        Input::Wait(millis) => Duration::from_millis(*millis),
        // Each character may need a borrowed key, and each batch of those a rest.
        Input::Text(text) => {
            let characters = u32::try_from(text.chars().count().min(MAX_TEXT)).unwrap_or(u32::MAX);
            Duration::from_secs(10) + Duration::from_millis(50) * characters
        }
        _ => Duration::from_secs(10),
    }
}

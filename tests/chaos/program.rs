//! A process that is harmed, and started again.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use longhaul_tests::command::{Longhaul, Running};
use nix::sys::signal::Signal;

use crate::schedule::Harm;

/// How long it may take to end in order; only what hangs takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a program ends that was told to.
pub(crate) const ORDERLY: &str = "exit status: 0";

/// How it is started.
type Make = Box<dyn Fn() -> Result<Longhaul> + Send + Sync>;

/// A program, and its process.
pub(crate) struct Program {
    make: Make,
    running: Option<Running>,
    /// Told a second time to end, soon after the first: it does not wait for what runs.
    twice: bool,
}

impl Program {
    /// Starts it.
    pub(crate) fn start(twice: bool, make: Make) -> Result<Self> {
        let mut program = Self { make, running: None, twice };
        program.again()?;
        Ok(program)
    }

    /// Starts it again.
    pub(crate) fn again(&mut self) -> Result<()> {
        self.running = Some((self.make)()?.start()?);
        Ok(())
    }

    /// How it ended by itself, if it did.
    pub(crate) fn ended(&mut self) -> Result<Option<String>> {
        let Some(running) = &mut self.running else { return Ok(None) };
        if running.runs()? {
            return Ok(None);
        }
        let Some(running) = self.running.take() else { return Ok(None) };
        Ok(Some(running.end()?.status().to_string()))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        self.running.as_ref().map_or(Ok(()), |running| running.signal(signal))
    }

    /// Kills it where it is.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let Some(running) = self.running.take() else { return Ok(()) };
        running.signal(Signal::SIGKILL)?;
        running.end().map(drop)
    }

    /// Tells it to end, and waits until it did: how.
    pub(crate) async fn leave(&mut self) -> Result<String> {
        let Some(mut running) = self.running.take() else { return Ok("it ran no more".to_owned()) };
        running.signal(Signal::SIGTERM)?;
        if self.twice {
            tokio::time::sleep(Duration::from_millis(200)).await;
            // It may have ended meanwhile.
            let _ = running.signal(Signal::SIGTERM);
        }
        let told = Instant::now();
        while running.runs()? {
            if told.elapsed() > PATIENCE {
                bail!("it was told to end, and did not within {} s", PATIENCE.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(running.end()?.status().to_string())
    }

    /// Harms it, and has it run again then.
    pub(crate) async fn harm(&mut self, harm: Harm, time: Duration) -> Result<()> {
        match harm {
            Harm::Kill => {
                self.kill()?;
                tokio::time::sleep(time).await;
                self.again()
            }
            Harm::Leave => {
                self.leave().await?;
                tokio::time::sleep(time).await;
                self.again()
            }
            Harm::Stop => {
                self.signal(Signal::SIGSTOP)?;
                tokio::time::sleep(time).await;
                self.signal(Signal::SIGCONT)
            }
            Harm::Slow => {
                let until = Instant::now() + time;
                while Instant::now() < until {
                    self.signal(Signal::SIGSTOP)?;
                    tokio::time::sleep(Duration::from_millis(90)).await;
                    self.signal(Signal::SIGCONT)?;
                    tokio::time::sleep(Duration::from_millis(30)).await;
                }
                Ok(())
            }
        }
    }
}

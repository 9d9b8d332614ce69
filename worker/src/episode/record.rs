//! What an attempt records: steps and logs, to the spool and to the folder that the verifier
//! will see.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longhaul_core::agent::Answer;
use longhaul_core::digest::Digest;
use longhaul_core::outcome::{Fault, FaultClass};
use longhaul_core::step::{Screenshot, StepRecord, StepTiming};
use longhaul_core::time::Millis;
use serde_json::{Value, json};

use super::fault;
use crate::moment::{self, millis};
use crate::sandbox::Display;
use crate::screen::{Frame, RestRule, Stepped};
use crate::session::actor::Shared;
use crate::spool::{Outbox, SpoolError};

/// The most of a log that is kept: its end.
pub(super) const LOG_LIMIT: usize = 1024 * 1024;

/// The most bytes of a step's record: a message of a session holds 4 MB.
const MAX_STEP: usize = 3 * 1024 * 1024;

/// What goes with an answer: where it came from, and what was said to its agent.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// The numbers of the model calls.
    pub(crate) calls: Vec<u32>,
    /// What somebody else than the agent said to it before.
    pub(crate) told: Option<String>,
    /// What of it could not be read.
    pub(crate) unreadable: Vec<String>,
    /// What of its time was none of the agent's.
    pub(crate) paused: Millis,
    /// The round that it belongs to, if the task has rounds.
    pub(crate) round: Option<u32>,
}

/// The folder of one trajectory, in the layout that verifiers expect, and the outbox.
pub(crate) struct Recorder {
    outbox: Arc<Outbox>,
    shared: Arc<Shared>,
    folder: PathBuf,
    frames: Vec<String>,
    last: Option<Digest>,
    steps: Vec<Value>,
    screens: Vec<(Screenshot, PathBuf)>,
    /// Steps without an answer.
    openings: u32,
}

impl Recorder {
    pub(crate) fn new(outbox: Arc<Outbox>, shared: Arc<Shared>, folder: PathBuf) -> Result<Self, Fault> {
        let made =
            fs::create_dir_all(&folder).and_then(|()| fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)));
        made.map_err(|error| disk(&folder, &error))?;
        Ok(Self {
            outbox,
            shared,
            folder,
            frames: Vec::new(),
            last: None,
            steps: Vec::new(),
            screens: Vec::new(),
            openings: 0,
        })
    }

    /// The folder with the frames.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The names of the frames, by step.
    pub(crate) fn frames(&self) -> &[String] {
        &self.frames
    }

    /// The steps as verifiers see them.
    pub(crate) fn steps(&self) -> &[Value] {
        &self.steps
    }

    /// The screens of the steps, and the one after the export hook if there is one, each with its
    /// picture.
    pub(crate) fn screens(&self) -> &[(Screenshot, PathBuf)] {
        &self.screens
    }

    /// Steps with an answer of the agent.
    pub(crate) fn answers(&self) -> u32 {
        self.next().saturating_sub(self.openings)
    }

    /// The number of the last step.
    pub(crate) fn seen(&self) -> u32 {
        self.next().saturating_sub(1)
    }

    /// The number of the step to come.
    pub(crate) fn next(&self) -> u32 {
        u32::try_from(self.frames.len()).unwrap_or(u32::MAX)
    }

    /// Looks at the screen where nobody acted, and records what is seen as [`Self::step`] does.
    pub(crate) async fn observe(&mut self, display: &dyn Display, rest: RestRule, said: Said) -> Result<Frame, Fault> {
        let stepped = display.step(Vec::new(), rest).await.map_err(|error| error.fault())?;
        let frame = stepped.frame.clone();
        self.step(None, stepped, Millis(0), said).await?;
        Ok(frame)
    }

    /// Takes a step of an earlier attempt, which is recorded already.
    pub(crate) fn replayed(&mut self, record: &StepRecord, frame: &Frame) -> Result<(), Fault> {
        self.keep(record.number, record.answer.as_ref(), frame)
    }

    /// Records a step, and waits until it is durable at the coordinator; or, while there is no
    /// session, until it is spooled and the bounds of running ahead allow one more.
    pub(crate) async fn step(
        &mut self,
        answer: Option<Answer>,
        stepped: Stepped,
        agent_time: Millis,
        said: Said,
    ) -> Result<(), Fault> {
        let number = self.next();
        self.keep(number, answer.as_ref(), &stepped.frame)?;
        let record = StepRecord {
            number,
            at: moment::wall(),
            answer,
            outcomes: stepped.performed.outcomes,
            screen: stepped.frame.screenshot,
            rested: stepped.rest.rested,
            timing: StepTiming {
                agent: agent_time,
                inject: millis(stepped.performed.took),
                rest: millis(stepped.rest.waited),
                capture: millis(stepped.capture),
                paused: said.paused,
            },
            calls: said.calls,
            told: said.told,
            unreadable: said.unreadable,
            stirred: stepped.stirred,
            round: said.round,
        };
        let size = serde_json::to_vec(&record).map_or(usize::MAX, |bytes| bytes.len());
        if size > MAX_STEP {
            // It would never fit into a message, and the session would break on it for ever.
            let message = format!("the agent's answer at step {number} has {size} bytes, and {MAX_STEP} are the most");
            return Err(fault(FaultClass::AgentCrashed, message));
        }
        self.outbox.step(&record, &stepped.frame.png).map_err(|error| spool_fault(&error))?;
        self.durable(number).await
    }

    /// Records a log by name; only its end if it is long.
    pub(crate) fn log(&self, name: &str, bytes: &[u8]) -> Result<(), Fault> {
        let end = &bytes[bytes.len().saturating_sub(LOG_LIMIT)..];
        self.outbox.log(name, end).map_err(|error| spool_fault(&error))
    }

    /// Records a picture by name, whole.
    pub(crate) fn picture(&self, name: &str, frame: &Frame) -> Result<(), Fault> {
        self.whole(name, &frame.png)
    }

    /// Records something by name, whole.
    pub(crate) fn whole(&self, name: &str, bytes: &[u8]) -> Result<(), Fault> {
        self.outbox.log(name, bytes).map_err(|error| spool_fault(&error))
    }

    /// Keeps the picture after the export hook, for the verifier and as a log.
    pub(crate) fn after_export(&mut self, frame: &Frame) -> Result<(), Fault> {
        let path = self.folder.join("post_verification.png");
        write(&path, &frame.png)?;
        self.screens.push((frame.screenshot, path));
        if let Some(last) = self.frames.last() {
            let path = self.folder.join("final.png");
            fs::hard_link(self.folder.join(last), &path).map_err(|error| disk(&path, &error))?;
        }
        self.picture("post_verification.png", frame)
    }

    /// Keeps a step for the verifier.
    fn keep(&mut self, number: u32, answer: Option<&Answer>, frame: &Frame) -> Result<(), Fault> {
        self.openings += u32::from(answer.is_none());
        self.keep_frame(number, frame)?;
        self.steps.push(verifier_view(number, answer, &self.frames));
        Ok(())
    }

    fn keep_frame(&mut self, number: u32, frame: &Frame) -> Result<(), Fault> {
        let name = format!("frame_{number:05}.png");
        let path = self.folder.join(&name);
        match (self.frames.last(), self.last) {
            (Some(before), Some(digest)) if digest == frame.screenshot.png => {
                fs::hard_link(self.folder.join(before), &path).map_err(|error| disk(&path, &error))?;
            }
            _ => write(&path, &frame.png)?,
        }
        self.last = Some(frame.screenshot.png);
        self.screens.push((frame.screenshot, path));
        self.frames.push(name);
        Ok(())
    }

    async fn durable(&self, number: u32) -> Result<(), Fault> {
        let mut changes = self.outbox.subscribe();
        let mut link = self.shared.link.clone();
        let limits = &self.shared.config.limits;
        loop {
            changes.borrow_and_update();
            let connected = link.borrow_and_update().is_some();
            self.outbox.whole().map_err(|error| spool_fault(&error))?;
            if !self.outbox.is_waiting(number) {
                return Ok(());
            }
            let ahead = || self.outbox.waiting_steps() < limits.spool_steps as usize;
            if !connected && ahead() && self.shared.room.is_there() {
                return Ok(());
            }
            tokio::select! {
                // Both senders outlive every attempt, or end it.
                _ = changes.changed() => {}
                _ = link.changed() => {}
                // Other attempts' bytes count too.
                () = self.shared.room.freed(), if !connected && ahead() => {}
            }
        }
    }
}

/// A step as Gym-Anything's traj.jsonl has it.
fn verifier_view(number: u32, answer: Option<&Answer>, frames: &[String]) -> Value {
    json!({
        "step": number,
        "idx": number,
        "action": answer.map(|answer| answer.actions.clone()).unwrap_or_default(),
        "text": answer.and_then(|answer| answer.text.clone()),
        "observation": {"screen": {"path": frames.last().map(|name| format!("/verify/episode/{name}"))}},
    })
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Fault> {
    fs::write(path, bytes)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o644)))
        .map_err(|error| disk(path, &error))
}

pub(super) fn disk(path: &Path, error: &std::io::Error) -> Fault {
    fault(FaultClass::NodeDisk, format!("cannot write {}: {error}", path.display()))
}

pub(super) fn spool_fault(error: &SpoolError) -> Fault {
    let class = if error.is_disk() { FaultClass::NodeDisk } else { FaultClass::Store };
    fault(class, crate::chain(error))
}

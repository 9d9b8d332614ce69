//! Whether the next attempt of an episode goes on where the last one was cut off.
//!
//! Only that is decided here. How much of the record is kept is the store's to fix, with the
//! lease, and an episode of which nothing was recorded starts like a new one.

use longhaul_core::outcome::FaultClass;
use longhaul_core::resume::ResumePolicy;

use crate::settings::Settings;
use crate::state::{Episode, PastAttempt, PastEnd, Run};

/// Whether the next attempt is to go on where the last one was.
pub(super) fn resumes(settings: &Settings, run: &Run, episode: &Episode) -> bool {
    let Some(last) = episode.past.last() else { return false };
    if episode.verifies().is_some() {
        // It ran to its end: it is gone through again, and never run again.
        return true;
    }
    match run.plan.retry.resume {
        ResumePolicy::Restart => false,
        // Bounded as every fault is: there is nothing else to try.
        ResumePolicy::Replay => true,
        ResumePolicy::Auto => !may_be_in_the_record(last) && diverged(episode) < settings.max_replays.max(1),
    }
}

/// Whether what ended the attempt may lie in what it did, so that whoever does the same again
/// ends the same way: it is tried once.
const fn may_be_in_the_record(last: &PastAttempt) -> bool {
    match last.end {
        PastEnd::Fault(class) | PastEnd::Lost(class) => match class {
            FaultClass::AgentCrashed | FaultClass::Memory => last.resumes,
            FaultClass::WorkerLost
            | FaultClass::Preempted
            | FaultClass::LayerBuild
            | FaultClass::SandboxStart
            | FaultClass::SetupHook
            | FaultClass::Display
            | FaultClass::NodeDisk
            | FaultClass::ModelEndpoint
            | FaultClass::Store
            | FaultClass::Verifier
            | FaultClass::Judge
            | FaultClass::ReplayDiverged => false,
        },
        PastEnd::Scored | PastEnd::Cancelled => false,
    }
}

/// How many attempts in a row did not get where they were to go on from. One that has steps got
/// there, and ends the row; of one that was lost it may not be known.
pub(super) fn diverged(episode: &Episode) -> u32 {
    let stays = |past: &&PastAttempt| past.resumes && (past.end.diverged() || past.steps == 0);
    let row = episode.recent().iter().rev().take_while(stays);
    u32::try_from(row.filter(|past| past.end.diverged()).count()).unwrap_or(u32::MAX)
}

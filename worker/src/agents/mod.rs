//! Agents: what answers observations with actions.
//!
//! * [`conversation`]: the loop around a model, pure; [`harness`]: the vendors' forms of it.
//! * [`external`]: somebody else's program, in a sandbox of its own.
//! * [`audit`], [`stall`]: what is done beside an agent, whichever it is.
//! * [`caller`]: what of the gateway all of these need.
//!
//! The rules of the loops, for people, are in `docs/agents-loops.md`; the protocol of external
//! agents is in `docs/agents-protocol.md`.

pub(crate) mod audit;
pub(crate) mod caller;
pub(crate) mod conversation;
pub(crate) mod external;
mod gesture;
mod harness;
mod history;
mod options;
pub(crate) mod picture;
mod place;
pub(crate) mod stall;
#[cfg(test)]
mod tests;

use longhaul_core::outcome::{EndedBy, Fault, FaultClass};

pub(crate) use harness::{image_part, text_part};
pub(crate) use place::fit;

/// Why an agent gives no further answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AgentEnd {
    /// The episode ends in order.
    By(EndedBy),
    /// The round that it is in does, and the episode with the last one.
    Round(EndedBy),
    /// We failed, or the agent did.
    Fault(Fault),
}

impl From<Fault> for AgentEnd {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// The agent failed, and its episode with it.
pub(crate) const fn crashed(message: String) -> Fault {
    Fault { class: FaultClass::AgentCrashed, message, log_tail: None }
}

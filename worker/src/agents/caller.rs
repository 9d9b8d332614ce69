//! What agents need of the gateway, and what its refusals mean for an episode.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use longhaul_core::money::Money;
use longhaul_core::outcome::{EndedBy, Fault, FaultClass};
use longhaul_gateway::{Account, CallError, GatewayError, ModelAnswer, ModelCall, Replayed};

use super::AgentEnd;
use crate::sandbox::Pending;

/// The account of an attempt, as agents use it.
pub(crate) trait Caller: fmt::Debug + Send + Sync {
    /// Makes a call.
    fn call(&self, call: ModelCall) -> Pending<'_, Result<ModelAnswer, CallError>>;
    /// Serves the vendors' protocols on a unix socket, until dropped.
    fn listen<'a>(&'a self, socket: &'a Path) -> Pending<'a, Result<(), GatewayError>>;
    /// The number that the next step will have.
    fn set_step(&self, step: u32);
    /// The numbers of the calls since this was last asked.
    fn take_numbers(&self) -> Vec<u32>;
    /// The tokens of the episode, those of earlier attempts included as far as they were followed.
    fn tokens(&self) -> u64;
    /// What became of following earlier attempts.
    fn replayed(&self) -> Replayed;
    /// Nothing is followed any more.
    fn is_live(&self);
    /// How long calls waited for what is not the agent's doing.
    fn paused(&self) -> Duration;
    /// What its calls have cost so far, those of earlier attempts aside.
    fn cost(&self) -> Money;
    /// Which budget is spent, once a call was refused for want of money.
    fn spent(&self) -> Option<String>;
    /// A round begins, whose calls may cost no more than this, if anything is said.
    fn begin_round(&self, most: Option<Money>);
    /// Whether a call of the round was refused, since the round has spent what it may.
    fn round_spent(&self) -> bool;
}

impl Caller for Account {
    fn call(&self, call: ModelCall) -> Pending<'_, Result<ModelAnswer, CallError>> {
        Box::pin(Self::call(self, call))
    }

    fn listen<'a>(&'a self, socket: &'a Path) -> Pending<'a, Result<(), GatewayError>> {
        Box::pin(Self::listen(self, socket))
    }

    fn set_step(&self, step: u32) {
        Self::set_step(self, step);
    }

    fn take_numbers(&self) -> Vec<u32> {
        Self::take_numbers(self)
    }

    fn tokens(&self) -> u64 {
        Self::tokens(self)
    }

    fn replayed(&self) -> Replayed {
        Self::replayed(self)
    }

    fn is_live(&self) {
        Self::is_live(self);
    }

    fn paused(&self) -> Duration {
        Self::paused(self)
    }

    fn cost(&self) -> Money {
        self.totals().settled
    }

    fn spent(&self) -> Option<String> {
        Self::spent(self)
    }

    fn begin_round(&self, most: Option<Money>) {
        Self::begin_round(self, most);
    }

    fn round_spent(&self) -> bool {
        Self::round_spent(self)
    }
}

/// What a call without an answer means for its episode.
///
/// A spent budget ends it in order, or the round whose it is. A vendor that does not answer, or that
/// takes neither the key nor the model, is a fault of the endpoint: another attempt may find it well. A
/// request that the vendor refuses for what is in it, or that cannot be bounded, is a fault of the agent
/// as it is configured, which another attempt will not cure. What cannot be written down is a fault of the
/// node's disk or of the store.
pub(crate) fn end_of(error: &CallError) -> AgentEnd {
    let class = match error {
        CallError::Budget { .. } => return AgentEnd::By(EndedBy::Budget),
        CallError::Tokens { .. } => return AgentEnd::By(EndedBy::Tokens),
        CallError::Round { .. } => return AgentEnd::Round(EndedBy::Budget),
        CallError::Endpoint { .. } | CallError::Rejected { status: 401 | 403 | 404 | 407, .. } => {
            FaultClass::ModelEndpoint
        }
        CallError::Rejected { .. } | CallError::Unbounded { .. } => FaultClass::AgentCrashed,
        CallError::Journal(journal) if journal.disk => FaultClass::NodeDisk,
        CallError::Journal(_) | CallError::Closed => FaultClass::Store,
        CallError::NotRecorded { .. } => FaultClass::ReplayDiverged,
    };
    AgentEnd::Fault(Fault { class, message: error.to_string(), log_tail: None })
}

/// What it means once the agent's part is over, which no budget can end any more.
pub(crate) fn fault_of(error: &CallError) -> Fault {
    match end_of(error) {
        AgentEnd::Fault(fault) => fault,
        AgentEnd::By(_) | AgentEnd::Round(_) => {
            Fault { class: FaultClass::Store, message: error.to_string(), log_tail: None }
        }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_gateway::ports::JournalError;

    use super::*;

    #[test]
    fn each_refusal_ends_the_episode_by_the_documented_rule() {
        let endpoint = || CallError::Endpoint { endpoint: "e".to_owned(), message: "503".to_owned(), down: true };
        let rejected = |status| CallError::Rejected { status, body: "no".to_owned() };
        let journal = |disk| CallError::Journal(JournalError { message: "full".to_owned(), disk });
        let class = |error: &CallError| match end_of(error) {
            AgentEnd::Fault(fault) => fault.class,
            AgentEnd::By(by) | AgentEnd::Round(by) => panic!("{by}"),
        };
        assert_eq!(end_of(&CallError::Budget { scope: "run".to_owned() }), AgentEnd::By(EndedBy::Budget));
        assert_eq!(end_of(&CallError::Tokens { used: 5, most: 4 }), AgentEnd::By(EndedBy::Tokens));
        assert_eq!(end_of(&CallError::Round { scope: "round".to_owned() }), AgentEnd::Round(EndedBy::Budget));
        assert_eq!(class(&endpoint()), FaultClass::ModelEndpoint);
        assert_eq!(class(&rejected(401)), FaultClass::ModelEndpoint);
        assert_eq!(class(&rejected(400)), FaultClass::AgentCrashed);
        assert_eq!(class(&CallError::Unbounded { reason: "file ids".to_owned() }), FaultClass::AgentCrashed);
        assert_eq!((class(&journal(true)), class(&journal(false))), (FaultClass::NodeDisk, FaultClass::Store));
    }
}

//! The agent's part: answers, actions, observations, until the agent is done or a budget ends it.

use longhaul_core::budget::EpisodeBudget;
use longhaul_core::outcome::EndedBy;
use longhaul_core::time::Millis;
use longhaul_proto::v1::AttemptPhase;

use super::agent::Agent;
use super::record::{Recorder, millis};
use super::{Attempt, Ending, fault, wait_for_lease};
use crate::moment;
use crate::sandbox::Display;
use crate::screen::RestRule;
use crate::shutdown::Urgency;

/// The agent's part of one attempt.
pub(crate) struct Acting<'a> {
    pub(crate) attempt: &'a Attempt,
    pub(crate) display: &'a dyn Display,
    pub(crate) budget: EpisodeBudget,
}

impl Acting<'_> {
    /// Runs it; what ended it, and how long the agent acted, parked time aside.
    pub(crate) async fn run(&self, mut agent: Agent, recorder: &mut Recorder) -> Result<(EndedBy, Millis), Ending> {
        let start = moment::now();
        let mut parked = Millis(0);
        loop {
            let acted = Millis(moment::since(start).0.saturating_sub(parked.0));
            if let Some(ended_by) = self.budget.exhausted(recorder.answers(), acted) {
                return Ok((ended_by, acted));
            }
            // Nothing is asked of the agent without a lease that holds now.
            let before = moment::now();
            wait_for_lease(self.attempt).await?;
            parked = Millis(parked.0.saturating_add(moment::since(before).0));
            let asked = moment::now();
            let Some(answer) = agent.next() else {
                return Ok((EndedBy::Agent, acted));
            };
            let agent_time = millis(moment::now().saturating_sub(asked));
            let done = answer.done;
            let stepped =
                self.display.step(answer.actions.clone(), RestRule::STEP).await.map_err(|error| error.fault())?;
            if self.attempt.shared.shutdown.urgency() > Urgency::None {
                // The same signal may have hit the sandbox: what is seen now is not to be trusted.
                let message = "the worker had to stop; the last observation was discarded".to_owned();
                return Err(Ending::Fault(fault(longhaul_core::outcome::FaultClass::Preempted, message)));
            }
            recorder.step(Some(answer), stepped, agent_time).await?;
            self.attempt.tell(AttemptPhase::Acting);
            if done {
                let acted = Millis(moment::since(start).0.saturating_sub(parked.0));
                return Ok((EndedBy::Agent, acted));
            }
        }
    }
}

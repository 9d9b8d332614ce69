//! Measures and comparisons over episodes: pure arithmetic over [`Row`]s.
//!
//! What cannot be measured is named by a [`Finding`] and left out, never averaged away; what
//! comes out does not depend on the order of the rows. Each measure is defined in
//! `docs/metrics.md`.

mod amounts;
mod clean;
mod cluster;
mod compare;
mod coverage;
mod finding;
mod group;
mod known;
mod many;
mod measures;
mod options;
mod rate;
mod round;
mod row;
mod stopped;
mod workflow;

pub use amounts::{Amount, Amounts, Endings};
pub use clean::{Clean, clean};
pub use cluster::{ClusterBy, Clustered};
pub use compare::{Comparison, Conclusion, PassComparison, ScoreComparison, Side, WorkflowComparison, compare};
pub use coverage::{AgentCoverage, Coverage, GroupCoverage, PairCoverage, coverage, coverage_by};
pub use finding::Finding;
pub use group::{By, Group, group};
pub use known::{At, Curve, CurvePoint, EqualBudget, Known, known_at};
pub use many::{Adjusted, AgentPoint, Comparisons, compare_all};
pub use measures::{Measures, PassK, Tally, measure};
pub use options::Options;
pub use rate::{Mean, Rate};
pub use round::{Aspect, AssertionRow, RoundError, RoundKind, RoundRow};
pub use row::{Progress, Row, State};
pub use stopped::{Stopped, Treatment};
pub use workflow::{FailureClass, FirstFailure, Joint, Workflow, first_failure, workflow};

#[cfg(test)]
mod published;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

//! Statistics: intervals, tests, effect sizes, power and agreement.
//!
//! Pure arithmetic over numbers that are passed in; what is random comes from a
//! [`Random`] that the caller has seeded, so that a table reads the same wherever and
//! however often it is made. Each formula and its source is in `docs/metrics.md`.

mod agreement;
mod bootstrap;
mod correction;
mod effect;
mod interval;
mod normal;
mod paired;
mod passk;
mod power;
mod random;

pub use agreement::{Agreement, agreement, cohen_kappa, krippendorff_alpha};
pub use bootstrap::{Resampling, quantile, resample};
pub use correction::{benjamini_hochberg, holm};
pub use effect::{OddsRatio, cohen_h, paired_odds_ratio, standardized_mean_difference};
pub use interval::{Interval, bounds, wilson};
pub use normal::normal_quantile;
pub use paired::{PairedTable, PairedTest, mcnemar, newcombe, sign_flip, smallest_decisive};
pub use passk::{pass_at, pass_hat};
pub use power::{Power, detectable_difference, pairs_needed};
pub use random::Random;

//! What a comparison of pairs could have seen at all.

use serde::{Deserialize, Serialize};

use super::normal::normal_quantile;

/// How sure a test is to be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Power {
    /// The level of the two-sided test.
    pub level: f64,
    /// The chance of seeing a difference that is there.
    pub power: f64,
}

impl Power {
    fn quantiles(&self) -> (f64, f64) {
        (normal_quantile(1.0 - self.level / 2.0), normal_quantile(self.power))
    }
}

/// The smallest difference of two pass rates that `pairs` pairs show with this power, if in a
/// share `discordant` of them one side alone passes: the sample size formula of Connor (1987),
/// `n = (z_a sqrt(psi) + z_b sqrt(psi - d^2))^2 / d^2`, solved for `d`. None if even the largest
/// difference that such pairs can have, all of them on one side, would not be seen.
#[must_use]
pub fn detectable_difference(pairs: u64, discordant: f64, how: &Power) -> Option<f64> {
    let (z_level, z_power) = how.quantiles();
    let n = pairs as f64;
    let under_root = n + z_power * z_power - z_level * z_level;
    if under_root < 0.0 || !(discordant > 0.0 && discordant <= 1.0) {
        return None;
    }
    let difference = discordant.sqrt() * (z_level * n.sqrt() + z_power * under_root.sqrt()) / (n + z_power * z_power);
    (difference <= discordant).then_some(difference)
}

/// How many pairs it takes to see a difference with this power (Connor 1987), if in a share
/// `discordant` of them one side alone passes; a share below the difference itself is raised to
/// it, since a difference needs pairs that differ. None for no difference.
#[must_use]
pub fn pairs_needed(difference: f64, discordant: f64, how: &Power) -> Option<u64> {
    if !(difference > 0.0 && difference <= 1.0) {
        return None;
    }
    let (z_level, z_power) = how.quantiles();
    let discordant = discordant.clamp(difference, 1.0);
    let root = z_level * discordant.sqrt() + z_power * (discordant - difference * difference).max(0.0).sqrt();
    Some((root / difference).powi(2).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const USUAL: Power = Power { level: 0.05, power: 0.8 };

    #[test]
    fn a_hundred_pairs_by_hand() {
        // z_a = 1.959964, z_b = 0.841621, n = 100, psi = 0.2:
        // n + z_b^2 - z_a^2 = 100 + 0.708326 - 3.841459 = 96.866867, root 9.842097;
        // sqrt(0.2) * (19.599640 + 0.841621 * 9.842097) / 100.708326
        // = 0.447214 * 27.882958 / 100.708326 = 0.123820.
        let found = detectable_difference(100, 0.2, &USUAL).unwrap();
        assert!((found - 0.123_820).abs() < 1e-5, "{found}");
        // And back: that difference takes a hundred pairs.
        assert!((100..=101).contains(&pairs_needed(found, 0.2, &USUAL).unwrap()));
    }

    #[test]
    fn what_no_number_of_such_pairs_could_show_is_said() {
        // 10 pairs, one of them discordant: all the difference that there can be is 0.1.
        assert_eq!(detectable_difference(10, 0.1, &USUAL), None);
        assert_eq!(detectable_difference(0, 0.5, &USUAL), None);
        assert_eq!(detectable_difference(10, 0.0, &USUAL), None);
        assert_eq!(pairs_needed(0.0, 0.2, &USUAL), None);
    }

    proptest! {
        #[test]
        fn the_two_formulas_undo_each_other(pairs in 20_u64..5_000, discordant in 0.05..1.0_f64) {
            if let Some(difference) = detectable_difference(pairs, discordant, &USUAL) {
                let needed = pairs_needed(difference, discordant, &USUAL).unwrap();
                prop_assert!(needed == pairs || needed == pairs + 1, "{needed} {pairs}");
            }
        }
    }
}

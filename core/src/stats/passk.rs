//! What several samples of a task say: whether one of k would pass, and whether all of k would.

/// The chance that at least one of `k` samples passes, given that `passed` of `samples` did:
/// `1 - C(n-c, k) / C(n, k)`, the unbiased estimate of Chen et al. (2021). None with fewer than
/// `k` samples.
#[must_use]
pub fn pass_at(samples: u32, passed: u32, k: u32) -> Option<f64> {
    let failed = samples.checked_sub(passed)?;
    chosen_alike(samples, failed, k).map(|none| 1.0 - none)
}

/// The chance that all of `k` samples pass: `C(c, k) / C(n, k)`, unbiased likewise (Yao et al.
/// 2024, pass^k). None with fewer than `k` samples.
#[must_use]
pub fn pass_hat(samples: u32, passed: u32, k: u32) -> Option<f64> {
    samples.checked_sub(passed)?;
    chosen_alike(samples, passed, k)
}

/// The chance that `k` of `all`, chosen without replacement, are all among `some` of them.
fn chosen_alike(all: u32, some: u32, k: u32) -> Option<f64> {
    if k == 0 || k > all {
        return None;
    }
    // A product of ratios: the binomials themselves would not fit.
    Some((0..k).map(|taken| f64::from(some.saturating_sub(taken)) / f64::from(all - taken)).product())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn five_samples_by_hand() {
        // 2 of 5 passed, k = 2: 1 - C(3,2)/C(5,2) = 1 - 3/10; C(2,2)/C(5,2) = 1/10.
        assert!((pass_at(5, 2, 2).unwrap() - 0.7).abs() < 1e-15);
        assert!((pass_hat(5, 2, 2).unwrap() - 0.1).abs() < 1e-15);
        assert_eq!(pass_at(5, 2, 6), None);
        assert_eq!(pass_at(5, 2, 0), None);
        assert_eq!(pass_at(2, 5, 1), None);
        // Only 2 failed, so that 3 samples cannot all fail.
        assert_eq!(pass_at(5, 3, 3), Some(1.0));
    }

    proptest! {
        #[test]
        fn more_samples_help_one_and_hurt_all(samples in 1_u32..200, share in 0.0..=1.0_f64) {
            let passed = (f64::from(samples) * share) as u32;
            let rate = f64::from(passed) / f64::from(samples);
            prop_assert!((pass_at(samples, passed, 1).unwrap() - rate).abs() < 1e-12);
            prop_assert!((pass_hat(samples, passed, 1).unwrap() - rate).abs() < 1e-12);
            for k in 2..=samples {
                let (at, hat) = (pass_at(samples, passed, k).unwrap(), pass_hat(samples, passed, k).unwrap());
                prop_assert!(at + 1e-12 >= pass_at(samples, passed, k - 1).unwrap() && at <= 1.0);
                prop_assert!(hat <= pass_hat(samples, passed, k - 1).unwrap() + 1e-12 && hat >= 0.0);
            }
        }
    }
}

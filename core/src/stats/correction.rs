//! Corrections for looking at several comparisons at once.

/// Holm's adjusted p values (1979), in the order given: the chance that even one of the
/// comparisons called different is not stays below the level.
#[must_use]
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let count = p_values.len();
    let mut adjusted = vec![0.0; count];
    let mut least = 0.0_f64;
    for (rank, index) in ranked(p_values).into_iter().enumerate() {
        least = least.max((p_values[index] * (count - rank) as f64).min(1.0));
        adjusted[index] = least;
    }
    adjusted
}

/// Benjamini's and Hochberg's adjusted p values (1995), in the order given: of the comparisons
/// called different, the expected share that is not stays below the level.
#[must_use]
pub fn benjamini_hochberg(p_values: &[f64]) -> Vec<f64> {
    let count = p_values.len();
    let mut adjusted = vec![0.0; count];
    let mut most = 1.0_f64;
    for (rank, index) in ranked(p_values).into_iter().enumerate().rev() {
        most = most.min(p_values[index] * count as f64 / (rank + 1) as f64);
        adjusted[index] = most;
    }
    adjusted
}

/// The indexes by rising p value.
fn ranked(p_values: &[f64]) -> Vec<usize> {
    let mut indexes: Vec<usize> = (0..p_values.len()).collect();
    indexes.sort_by(|left, right| p_values[*left].total_cmp(&p_values[*right]));
    indexes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn assert_close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        assert!(found.iter().zip(expected).all(|(f, e)| (f - e).abs() < 1e-12), "{found:?} {expected:?}");
    }

    #[test]
    fn four_p_values_by_hand() {
        let p_values = [0.01, 0.04, 0.03, 0.005];
        // By rank: 0.005 * 4 = 0.02, 0.01 * 3 = 0.03, 0.03 * 2 = 0.06, 0.04 * 1 = 0.04 -> 0.06.
        assert_close(&holm(&p_values), &[0.03, 0.06, 0.06, 0.02]);
        // From the last: 0.04 * 4/4 = 0.04, 0.03 * 4/3 = 0.04, 0.01 * 4/2 = 0.02, 0.005 * 4 = 0.02.
        assert_close(&benjamini_hochberg(&p_values), &[0.02, 0.04, 0.04, 0.02]);
        assert!(holm(&[]).is_empty() && benjamini_hochberg(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn adjusted_values_are_no_smaller_and_keep_the_order(p_values in prop::collection::vec(0.0..=1.0_f64, 0..30)) {
            let (strict, lenient) = (holm(&p_values), benjamini_hochberg(&p_values));
            for (index, p) in p_values.iter().enumerate() {
                prop_assert!(*p <= lenient[index] + 1e-15 && lenient[index] <= strict[index] + 1e-15);
                prop_assert!(strict[index] <= 1.0);
                for (other, q) in p_values.iter().enumerate() {
                    if p < q {
                        prop_assert!(strict[index] <= strict[other] && lenient[index] <= lenient[other]);
                    }
                }
            }
        }
    }
}

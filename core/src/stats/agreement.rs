//! How far judges agree.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How far judges agree on the same units.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// Units that at least two judges answered: what agreement can be seen on.
    pub units: u64,
    /// Of the pairs of answers to one unit, the share that is the same, each unit weighing as
    /// much as any other.
    pub same: f64,
    /// Krippendorff's alpha; none where every answer is the same, so that agreeing is no feat.
    pub alpha: Option<f64>,
}

/// The agreement of any number of judges; `units` holds for each unit the answer of each judge,
/// absent where there is none. None without a unit that two of them answered.
#[must_use]
pub fn agreement<T: Ord>(units: &[Vec<Option<T>>]) -> Option<Agreement> {
    let mut seen = 0_u64;
    let mut shares = 0.0;
    for counts in units.iter().filter_map(|answers| counted(answers)) {
        let answers: u64 = counts.values().sum();
        let same: u64 = counts.values().map(|count| count * (count - 1)).sum();
        seen += 1;
        shares += same as f64 / (answers * (answers - 1)) as f64;
    }
    (seen > 0).then(|| Agreement { units: seen, same: shares / seen as f64, alpha: krippendorff_alpha(units) })
}

/// Krippendorff's alpha for answers without an order (2004): 1 is full agreement, 0 what chance
/// gives. None where it is not defined: no unit with two answers, or one answer throughout.
#[must_use]
pub fn krippendorff_alpha<T: Ord>(units: &[Vec<Option<T>>]) -> Option<f64> {
    let mut totals: BTreeMap<&T, u64> = BTreeMap::new();
    let mut observed = 0.0;
    for counts in units.iter().filter_map(|answers| counted(answers)) {
        let answers: u64 = counts.values().sum();
        let same: u64 = counts.values().map(|count| count * count).sum();
        observed += (answers * answers - same) as f64 / (answers - 1) as f64;
        for (answer, count) in counts {
            *totals.entry(answer).or_default() += count;
        }
    }
    let all: u64 = totals.values().sum();
    let alike: u64 = totals.values().map(|count| count * count).sum();
    let expected = (all * all - alike) as f64;
    (expected > 0.0).then(|| 1.0 - (all - 1) as f64 * observed / expected)
}

/// How often each answer was given to a unit; none where there are fewer than two answers.
fn counted<T: Ord>(answers: &[Option<T>]) -> Option<BTreeMap<&T, u64>> {
    let mut counts = BTreeMap::new();
    for answer in answers.iter().flatten() {
        *counts.entry(answer).or_default() += 1;
    }
    (counts.values().sum::<u64>() >= 2).then_some(counts)
}

/// Cohen's kappa of two judges (1960): agreement beyond what their own habits would give by
/// chance. None without units, or where chance would agree always.
#[must_use]
pub fn cohen_kappa<T: Ord>(pairs: &[(T, T)]) -> Option<f64> {
    let n = pairs.len() as f64;
    let mut habits: BTreeMap<&T, (u64, u64)> = BTreeMap::new();
    for (one, other) in pairs {
        habits.entry(one).or_default().0 += 1;
        habits.entry(other).or_default().1 += 1;
    }
    let same = pairs.iter().filter(|(one, other)| one == other).count() as f64;
    let chance: u64 = habits.values().map(|(one, other)| one * other).sum();
    let chance = chance as f64 / n;
    // Times n throughout, so that certain chance agreement is exact; NaN without units.
    (n - chance > 0.0).then(|| (same - chance) / (n - chance))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kappa_by_hand() {
        // 100 units: both yes 45, first alone 15, second alone 25, both no 15. Same 0.6; the first
        // says yes to 60, the second to 70: chance 0.6 * 0.7 + 0.4 * 0.3 = 0.54;
        // kappa (0.6 - 0.54) / (1 - 0.54) = 6 / 46.
        let mut pairs = vec![(true, true); 45];
        pairs.extend([(true, false); 15]);
        pairs.extend([(false, true); 25]);
        pairs.extend([(false, false); 15]);
        assert!((cohen_kappa(&pairs).unwrap() - 6.0 / 46.0).abs() < 1e-12);
        assert_eq!(cohen_kappa(&[(true, true), (true, true)]), None);
        assert_eq!(cohen_kappa::<bool>(&[]), None);
    }

    #[test]
    fn alpha_by_hand() {
        // Units aa, aa, ab, bb, and one with a single answer, which says nothing. Of the 8
        // answers 5 are a and 3 are b. Observed: only ab differs, (4 - 2) / 1 = 2.
        // Expected: 64 - 25 - 9 = 30. Alpha 1 - 7 * 2 / 30 = 0.533333.
        let units = vec![
            vec![Some('a'), Some('a'), None],
            vec![Some('a'), None, Some('a')],
            vec![Some('a'), Some('b'), None],
            vec![None, Some('b'), Some('b')],
            vec![Some('b'), None, None],
        ];
        let found = agreement(&units).unwrap();
        assert_eq!(found.units, 4);
        assert!((found.same - 0.75).abs() < 1e-12);
        assert!((found.alpha.unwrap() - 8.0 / 15.0).abs() < 1e-12);
        // Three judges: aab, of whose three pairs one is the same.
        let three = agreement(&[vec![Some(1), Some(1), Some(2)]]).unwrap();
        assert!((three.same - 1.0 / 3.0).abs() < 1e-12);
        assert_eq!(krippendorff_alpha(&[vec![Some(1), Some(1)]]), None);
        assert_eq!(agreement(&[vec![Some(1), None]]), None);
    }
}

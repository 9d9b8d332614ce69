//! What was probably meant: the known name that is most like a mistyped one, and the place of a
//! mistake in a text.

/// The candidate that is most like `word`, if one is like it at all.
#[must_use]
pub fn closest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    ranked(word, candidates).into_iter().next()
}

/// What to say of a `word` that is none of the known ones: the one that was probably meant, or
/// what `list` makes of all of them.
#[must_use]
pub fn hint(word: &str, known: &[&str], list: impl FnOnce(String) -> String) -> String {
    let meant = closest(word, known.iter().copied());
    meant.map_or_else(|| list(known.join(", ")), |near| format!("did you mean `{near}`?"))
}

/// The candidates that are like `word`, the most like it first.
#[must_use]
pub fn ranked<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut near: Vec<(usize, &str)> = candidates
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().max(word.len()) / 2)
        .collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter().map(|(_, candidate)| candidate).collect()
}

/// How many letters differ: insertions, deletions and replacements.
#[must_use]
pub fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, a) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, b) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

/// The line and column, from 1, of a byte of a text.
#[must_use]
pub fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_come_first_and_the_far_not_at_all() {
        let known = ["claude-sonnet-4-6", "claude-opus-4-6", "gpt-5.4"];
        assert_eq!(ranked("claude-sonet-4-6", known.into_iter())[0], "claude-sonnet-4-6");
        assert_eq!(closest("xyzzy", known.into_iter()), None);
        assert_eq!(closest("anything", std::iter::empty()), None);
    }

    #[test]
    fn a_place_is_counted_in_letters() {
        assert_eq!(position("a\nü = 1", 5), (2, 3));
        assert_eq!(position("", 99), (1, 1));
    }
}

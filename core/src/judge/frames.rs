//! Which screenshots a judge sees.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// Which screenshots a judge sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum FramePolicy {
    /// The first three, every third of those between, and the last three.
    #[default]
    Published,
    /// Those on which something had changed since the one before.
    Changed,
    /// So many, evenly spread, the first and the last among them.
    Uniform {
        /// How many.
        count: u32,
    },
    /// All.
    All,
}

/// A word that is no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` says not which screenshots: write `published`, `changed`, `all` or `uniform:N`")]
pub struct ParseFramePolicyError {
    text: String,
}

impl FromStr for FramePolicy {
    type Err = ParseFramePolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || ParseFramePolicyError { text: text.to_owned() };
        match text.split_once(':') {
            None => match text {
                "published" => Ok(Self::Published),
                "changed" => Ok(Self::Changed),
                "all" => Ok(Self::All),
                _ => Err(refuse()),
            },
            Some(("uniform", count)) => match count.parse() {
                Ok(count) if count > 0 => Ok(Self::Uniform { count }),
                _ => Err(refuse()),
            },
            Some(_) => Err(refuse()),
        }
    }
}

impl fmt::Display for FramePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Published => f.pad("published"),
            Self::Changed => f.pad("changed"),
            Self::All => f.pad("all"),
            Self::Uniform { count } => write!(f, "uniform:{count}"),
        }
    }
}

/// What bounds a selection, whichever policy made it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameCap {
    /// At most so many; no cap if absent.
    pub count: Option<u32>,
    /// At most so many tokens of all of them together; no cap if absent.
    pub tokens: Option<u64>,
    /// The most tokens that one of them can be.
    pub tokens_each: u64,
}

impl FrameCap {
    /// How many it lets through: at least one, since without a picture nothing can be judged.
    fn most(&self) -> usize {
        let by_tokens = self.tokens.map(|tokens| tokens / self.tokens_each.max(1));
        let least = [self.count.map(u64::from), by_tokens].into_iter().flatten().min();
        least.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX).max(1))
    }
}

/// Which of a trajectory's screenshots a judge sees, by their index, in order. The screenshots
/// are those of the steps, and the one after the export hook if there is one.
#[must_use]
pub fn select_frames(frames: &[Digest], policy: FramePolicy, cap: FrameCap) -> Vec<usize> {
    let all = 0..frames.len();
    let chosen: Vec<usize> = match policy {
        FramePolicy::All => all.collect(),
        FramePolicy::Published => {
            let end = frames.len().saturating_sub(3).max(3);
            all.filter(|index| *index < 3 || *index >= end || (index - 3) % 3 == 0).collect()
        }
        FramePolicy::Changed => all.filter(|index| *index == 0 || frames[*index] != frames[index - 1]).collect(),
        FramePolicy::Uniform { count } => spread(frames.len(), usize::try_from(count).unwrap_or(usize::MAX)),
    };
    thin(&chosen, cap.most())
}

/// So many of `len` indices, evenly spread, the first and the last among them; of one, the last.
fn spread(len: usize, count: usize) -> Vec<usize> {
    if len <= count {
        return (0..len).collect();
    }
    match count {
        0 => Vec::new(),
        1 => vec![len - 1],
        // Rounded to the nearest; `count` is below `len`, so that no two are the same.
        _ => (0..count).map(|index| (index * (len - 1) * 2 + (count - 1)) / (2 * (count - 1))).collect(),
    }
}

/// At most so many of a selection: the first three and the last three stay as long as there is
/// room, and those between are thinned evenly.
fn thin(chosen: &[usize], most: usize) -> Vec<usize> {
    const ENDS: usize = 3;
    if chosen.len() <= most {
        return chosen.to_vec();
    }
    if most <= 2 * ENDS {
        return spread(chosen.len(), most).into_iter().map(|index| chosen[index]).collect();
    }
    let middle = &chosen[ENDS..chosen.len() - ENDS];
    let between = spread(middle.len(), most - 2 * ENDS).into_iter().map(|index| middle[index]);
    let (first, last) = (&chosen[..ENDS], &chosen[chosen.len() - ENDS..]);
    first.iter().copied().chain(between).chain(last.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn distinct(count: u8) -> Vec<Digest> {
        (0..count).map(|number| Digest::of(&[number])).collect()
    }

    fn select(count: u8, policy: FramePolicy) -> Vec<usize> {
        select_frames(&distinct(count), policy, FrameCap::default())
    }

    #[test]
    fn the_published_policy_is_the_first_three_every_third_and_the_last_three() {
        assert_eq!(select(0, FramePolicy::Published), Vec::<usize>::new());
        assert_eq!(select(2, FramePolicy::Published), [0, 1]);
        assert_eq!(select(5, FramePolicy::Published), [0, 1, 2, 3, 4]);
        assert_eq!(select(7, FramePolicy::Published), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(select(8, FramePolicy::Published), [0, 1, 2, 3, 5, 6, 7]);
        assert_eq!(select(16, FramePolicy::Published), [0, 1, 2, 3, 6, 9, 12, 13, 14, 15]);
    }

    #[test]
    fn unchanged_screens_are_left_out_and_a_return_to_an_earlier_one_is_not() {
        let [one, two] = [Digest::of(b"1"), Digest::of(b"2")];
        let frames = [one, one, two, two, two, one, one];
        assert_eq!(select_frames(&frames, FramePolicy::Changed, FrameCap::default()), [0, 2, 5]);
        assert_eq!(select_frames(&frames, FramePolicy::Uniform { count: 3 }, FrameCap::default()), [0, 3, 6]);
        assert_eq!(select_frames(&frames, FramePolicy::Uniform { count: 1 }, FrameCap::default()), [6]);
    }

    #[test]
    fn caps_thin_the_middle_by_count_and_by_tokens() {
        let frames = distinct(100);
        let count = FrameCap { count: Some(10), ..FrameCap::default() };
        assert_eq!(select_frames(&frames, FramePolicy::All, count), [0, 1, 2, 3, 34, 65, 96, 97, 98, 99]);
        let tokens = FrameCap { tokens: Some(4000), tokens_each: 1500, count: Some(50) };
        assert_eq!(select_frames(&frames, FramePolicy::All, tokens), [0, 99]);
        let none = FrameCap { tokens: Some(1), tokens_each: 1500, count: None };
        assert_eq!(select_frames(&frames, FramePolicy::All, none), [99]);
    }

    #[test]
    fn policies_are_written_as_they_are_read() {
        for text in ["published", "changed", "all", "uniform:12"] {
            assert_eq!(text.parse::<FramePolicy>().unwrap().to_string(), text);
        }
        for text in ["", "uniform", "uniform:0", "uniform:x", "changed:3", "first"] {
            assert!(text.parse::<FramePolicy>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_selection_rises_within_its_cap_and_keeps_the_last(
            kinds in proptest::collection::vec(0_u8..4, 1..120),
            which in 0_usize..4,
            count in 1_u32..40,
            cap in proptest::option::of(1_u32..60),
        ) {
            let frames: Vec<Digest> = kinds.iter().map(|kind| Digest::of(&[*kind])).collect();
            let policy =
                [FramePolicy::Published, FramePolicy::Changed, FramePolicy::All, FramePolicy::Uniform { count }][which];
            let chosen = select_frames(&frames, policy, FrameCap { count: cap, ..FrameCap::default() });
            prop_assert!(!chosen.is_empty());
            prop_assert!(chosen.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", chosen);
            prop_assert!(chosen.len() <= cap.map_or(usize::MAX, |cap| cap as usize));
            // What the last one shows is always seen.
            prop_assert_eq!(frames[chosen[chosen.len() - 1]], frames[frames.len() - 1]);
        }
    }
}

//! Indices of an array, as Slurm abbreviates them.

use std::fmt;

/// Indices of an array, in ranges: an array may have millions, so they are counted and asked
/// for, not listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indices {
    /// First, last and step of each range, in the order of the text.
    ranges: Vec<(u32, u32, u32)>,
    /// How many may run at once, if that is limited.
    at_once: Option<u32>,
    /// Whether the text had more than it shows (`1,5,...`).
    cut: bool,
}

impl Indices {
    /// Reads `0-3,7,10-20:5%2`, with or without brackets; `None` for another text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(text);
        let (list, at_once) = match text.split_once('%') {
            Some((list, at_once)) => (list, Some(at_once.parse().ok()?)),
            None => (text, None),
        };
        let (list, cut) = match list.strip_suffix("...") {
            Some(list) => (list.trim_end_matches(','), true),
            None => (list, false),
        };
        let ranges = list.split(',').map(range).collect::<Option<Vec<_>>>()?;
        Some(Self { ranges, at_once, cut })
    }

    /// How many there are; at least, if [`Self::is_cut`].
    #[must_use]
    pub fn count(&self) -> u64 {
        let of = |(first, last, step): &(u32, u32, u32)| u64::from((last - first) / step) + 1;
        self.ranges.iter().map(of).sum()
    }

    /// Whether an index is one of them, as far as the text says.
    #[must_use]
    pub fn contains(&self, index: u32) -> bool {
        let within = |(first, last, step): &(u32, u32, u32)| {
            (*first..=*last).contains(&index) && (index - first).is_multiple_of(*step)
        };
        self.ranges.iter().any(within)
    }

    /// Each of them, in order of the text.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges
            .iter()
            .flat_map(|(first, last, step)| (*first..=*last).step_by(usize::try_from(*step).unwrap_or(usize::MAX)))
    }

    /// How many may run at once, if that is limited.
    #[must_use]
    pub fn at_once(&self) -> Option<u32> {
        self.at_once
    }

    /// Whether Slurm cut the text, so that there are more. The questions of a
    /// [`crate::Client`] ask for the whole text.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.cut
    }
}

fn range(text: &str) -> Option<(u32, u32, u32)> {
    let (span, step) = match text.split_once(':') {
        Some((span, step)) => (span, step.parse().ok().filter(|step| *step > 0)?),
        None => (text, 1),
    };
    let (first, last) = match span.split_once('-') {
        Some((first, last)) => (first.parse().ok()?, last.parse().ok()?),
        None => {
            let only = span.parse().ok()?;
            (only, only)
        }
    };
    (first <= last).then_some((first, last, step))
}

impl fmt::Display for Indices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last, step)) in self.ranges.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match (first == last, step) {
                (true, _) => write!(f, "{comma}{first}")?,
                (false, 1) => write!(f, "{comma}{first}-{last}")?,
                (false, step) => write!(f, "{comma}{first}-{last}:{step}")?,
            }
        }
        if self.cut { f.write_str(",...") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn abbreviations_are_read() {
        for (text, indices, at_once) in [
            ("3", vec![3], None),
            ("2-5%2", vec![2, 3, 4, 5], Some(2)),
            ("[0,2,7-9]", vec![0, 2, 7, 8, 9], None),
            ("1-10:4", vec![1, 5, 9], None),
        ] {
            let read = Indices::parse(text).unwrap();
            assert_eq!(read.iter().collect::<Vec<_>>(), indices, "{text}");
            assert_eq!(read.count(), u64::try_from(indices.len()).unwrap(), "{text}");
            assert_eq!(read.at_once(), at_once, "{text}");
            assert!(!read.is_cut());
        }
    }

    #[test]
    fn an_abbreviation_that_slurm_cut_says_so() {
        let read = Indices::parse("1,5,...%4").unwrap();
        assert!(read.is_cut());
        assert_eq!((read.count(), read.at_once(), read.to_string()), (2, Some(4), "1,5,...".to_owned()));
    }

    #[test]
    fn other_texts_are_none() {
        for text in ["", "N/A", "5-2", "1-2:0", "1,,2", "-1", "0x1f", "1%", "[1", "1-2-3", "4294967296"] {
            assert_eq!(Indices::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn millions_are_counted_and_not_listed() {
        let all = Indices::parse("0-4294967295").unwrap();
        assert_eq!(all.count(), 1 << 32);
        assert!(all.contains(u32::MAX));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[-0-9,:%\\[\\].]{0,40}") {
            if let Some(read) = Indices::parse(&text) {
                let mut some = read.iter().take(100);
                prop_assert!(some.all(|index| read.contains(index)));
            }
        }
    }
}

//! Money: US dollars as whole billionths, never a float.
//!
//! Sums are checked, divisions round up: what is billed here is never less than what a vendor
//! bills. A billionth of a dollar is fine enough for every published price (the cheapest cached
//! token costs some ten of them), and 64 bits hold 18 billion dollars.

use std::fmt;
use std::iter::Sum;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Billionths of a dollar in a dollar.
pub const NANOS: u64 = 1_000_000_000;

/// An amount of US dollars, in billionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Money(u64);

impl Money {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// More than anything: for a scope without a cap.
    pub const MAX: Self = Self(u64::MAX);

    /// An amount in billionths of a dollar.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A whole number of dollars; stops at the end of the range.
    #[must_use]
    pub const fn from_dollars(dollars: u64) -> Self {
        Self(dollars.saturating_mul(NANOS))
    }

    /// The amount in billionths of a dollar.
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Whether it is nothing.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The sum; none if it is out of range.
    #[must_use]
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The difference; none if it would be below nothing.
    #[must_use]
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(difference) => Some(Self(difference)),
            None => None,
        }
    }

    /// The sum, or the end of the range: for bounds, where too much is safe.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// What is left of this after `other`, or nothing.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// This many times the amount, or the end of the range.
    #[must_use]
    pub const fn saturating_mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }

    /// `self * numerator / denominator`, rounded up; none if it is out of range or divided by
    /// nothing.
    #[must_use]
    pub const fn scaled_up(self, numerator: u64, denominator: u64) -> Option<Self> {
        if denominator == 0 {
            return None;
        }
        // 64 bits times 64 bits never overflow 128.
        let scaled = (self.0 as u128 * numerator as u128).div_ceil(denominator as u128);
        if scaled > u64::MAX as u128 { None } else { Some(Self(scaled as u64)) }
    }

    /// Dollars as a float: for ratios and plots, never for sums.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for people only")]
    pub fn as_dollars(self) -> f64 {
        self.0 as f64 / NANOS as f64
    }
}

impl Sum for Money {
    /// Stops at the end of the range.
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Self::saturating_add)
    }
}

impl fmt::Display for Money {
    /// `$1.25`, `$0.004321`: two decimals at least, all that there are at most.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fraction = format!("{:09}", self.0 % NANOS);
        let kept = fraction.trim_end_matches('0').len().max(2);
        f.pad(&format!("${}.{}", self.0 / NANOS, &fraction[..kept]))
    }
}

/// Text that is no amount of money.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoneyError {
    /// It has another form.
    #[error("`{text}` is no amount of dollars: write `5`, `$5`, `0.25` or `$1,000`")]
    Form {
        /// The text.
        text: String,
    },
    /// It is below nothing.
    #[error("`{text}` is negative; an amount of dollars is at least 0")]
    Negative {
        /// The text.
        text: String,
    },
    /// It is finer than what is counted.
    #[error("`{text}` has more than nine decimals; a billionth of a dollar is the smallest amount")]
    TooFine {
        /// The text.
        text: String,
    },
    /// It is out of range.
    #[error("`{text}` is more than can be counted (18 billion dollars)")]
    TooMuch {
        /// The text.
        text: String,
    },
}

impl FromStr for Money {
    type Err = MoneyError;

    /// Reads `5`, `$5`, `5.00`, `$1,000.50`: exactly, by its digits.
    fn from_str(text: &str) -> Result<Self, MoneyError> {
        let form = || MoneyError::Form { text: text.to_owned() };
        let trimmed = text.trim();
        if trimmed.strip_prefix('$').unwrap_or(trimmed).trim_start().starts_with('-') || trimmed.starts_with("-$") {
            return Err(MoneyError::Negative { text: text.to_owned() });
        }
        let plain = trimmed.strip_prefix('$').unwrap_or(trimmed).trim_start();
        let (whole, fraction) = plain.split_once('.').unwrap_or((plain, ""));
        let whole = without_separators(whole).ok_or_else(form)?;
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if (whole.is_empty() && fraction.is_empty()) || !digits(&whole) || !digits(fraction) {
            return Err(form());
        }
        let significant = fraction.trim_end_matches('0');
        if significant.len() > 9 {
            return Err(MoneyError::TooFine { text: text.to_owned() });
        }
        let too_much = || MoneyError::TooMuch { text: text.to_owned() };
        let dollars: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| too_much())? };
        let nanos: u64 = format!("{significant:0<9}").parse().map_err(|_| form())?;
        dollars.checked_mul(NANOS).and_then(|amount| amount.checked_add(nanos)).map(Self).ok_or_else(too_much)
    }
}

/// `1,000` as `1000`: commas only where thousands end.
fn without_separators(whole: &str) -> Option<String> {
    if !whole.contains(',') {
        return Some(whole.to_owned());
    }
    let mut groups = whole.split(',');
    let first = groups.next().filter(|first| (1..=3).contains(&first.len()))?;
    let mut joined = first.to_owned();
    for group in groups {
        if group.len() != 3 {
            return None;
        }
        joined.push_str(group);
    }
    Some(joined)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn amounts_are_read_exactly_and_written_back() {
        for (text, nanos, shown) in [
            ("5", 5 * NANOS, "$5.00"),
            ("$5.00", 5 * NANOS, "$5.00"),
            ("0.1", NANOS / 10, "$0.10"),
            (".25", NANOS / 4, "$0.25"),
            ("$1,000.5", 1_000 * NANOS + NANOS / 2, "$1000.50"),
            ("0.000000001", 1, "$0.000000001"),
            ("0", 0, "$0.00"),
        ] {
            assert_eq!(text.parse(), Ok(Money(nanos)), "{text}");
            assert_eq!(Money(nanos).to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_amount_is_refused_by_its_reason() {
        let error = |text: &str| text.parse::<Money>().unwrap_err();
        for text in ["", "$", ".", "five", "1e3", "1,00", "0x10", "1.2.3", "€5", "5 dollars", "1_000"] {
            assert!(matches!(error(text), MoneyError::Form { .. }), "{text}");
        }
        for text in ["-1", "$-1", "-$1"] {
            assert!(matches!(error(text), MoneyError::Negative { .. }), "{text}");
        }
        assert!(matches!(error("0.0000000001"), MoneyError::TooFine { .. }));
        assert!(matches!(error("18446744074"), MoneyError::TooMuch { .. }));
        assert!(matches!(error("99999999999999999999999"), MoneyError::TooMuch { .. }));
    }

    #[test]
    fn scaling_rounds_up_and_never_wraps() {
        assert_eq!(Money(10).scaled_up(1, 3), Some(Money(4)));
        assert_eq!(Money(9).scaled_up(1, 3), Some(Money(3)));
        assert_eq!(Money(0).scaled_up(7, 3), Some(Money(0)));
        assert_eq!(Money(u64::MAX).scaled_up(u64::MAX, u64::MAX), Some(Money(u64::MAX)));
        assert_eq!(Money(u64::MAX).scaled_up(2, 1), None);
        assert_eq!(Money(1).scaled_up(1, 0), None);
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(nanos: u64) {
            prop_assert_eq!(Money(nanos).to_string().parse(), Ok(Money(nanos)));
        }

        #[test]
        fn any_text_is_read_without_a_panic(text: String) {
            let _ = text.parse::<Money>();
        }
    }
}

//! The identity of a submission, which a job carries as its name and as its comment.
//!
//! A job id does not identify a submission: a controller that was killed soon after an
//! `sbatch` forgets that job and gives its id out again. So each submission has a token that
//! was chosen, and stored, before Slurm was asked.

use std::fmt;
use std::str::FromStr;

/// What every token begins with; people see it in `squeue`.
const PREFIX: &str = "longhaul";

/// The longest text of an [`Owner`].
const OWNER_LEN: usize = 32;

/// Whose submissions these are: one coordinator, which keeps this for its store's whole life.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(String);

/// One submission of one coordinator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    owner: Owner,
    serial: u64,
}

/// A text that is no owner or no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// An owner is a short word.
    #[error("{0:?} cannot name an owner of allocations: 1 to {OWNER_LEN} of a-z, 0-9 and - are needed")]
    Owner(String),
    /// A token is not in its form.
    #[error("{0:?} is not a token: {PREFIX}.OWNER.SIXTEEN-HEX-DIGITS is")]
    Token(String),
}

impl Owner {
    /// Takes a word of lower-case letters, digits and hyphens.
    ///
    /// # Errors
    ///
    /// It is another text, is empty, or has more than 32 characters.
    pub fn new(text: impl Into<String>) -> Result<Self, TokenError> {
        let text = text.into();
        let fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if text.is_empty() || text.len() > OWNER_LEN || !text.bytes().all(fine) {
            return Err(TokenError::Owner(text));
        }
        Ok(Self(text))
    }

    /// The word.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Token {
    /// The token of a new submission. `serial` is random, so that a store that was restored
    /// from a backup does not repeat one.
    #[must_use]
    pub fn new(owner: Owner, serial: u64) -> Self {
        Self { owner, serial }
    }

    /// Its number among its owner's.
    #[must_use]
    pub const fn serial(&self) -> u64 {
        self.serial
    }

    /// Whose it is.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}.{}.{:016x}", self.owner, self.serial)
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let parse = || {
            let (owner, serial) = text.strip_prefix(PREFIX)?.strip_prefix('.')?.split_once('.')?;
            let token = Self { owner: Owner::new(owner).ok()?, serial: u64::from_str_radix(serial, 16).ok()? };
            // One text for each token: no signs, no capitals, no missing zeros.
            (token.to_string() == text).then_some(token)
        };
        parse().ok_or_else(|| TokenError::Token(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_as_it_was_written() {
        let token = Token::new(Owner::new("c0ffee-1").unwrap(), 0x1f);
        assert_eq!(token.to_string(), "longhaul.c0ffee-1.000000000000001f");
        assert_eq!(token.to_string().parse(), Ok(token));
    }

    #[test]
    fn other_texts_are_no_tokens() {
        for text in [
            "",
            "longhaul",
            "longhaul.a.1f",
            "longhaul.a.000000000000001F",
            "longhaul.a.+00000000000001f",
            "longhaul.A.000000000000001f",
            "longhaul..000000000000001f",
            "longhaul.a.000000000000001f.",
            "longhaul.a.000000000000001f\n",
            "longhaula.000000000000001f",
        ] {
            assert_eq!(text.parse::<Token>(), Err(TokenError::Token(text.to_owned())), "{text:?}");
        }
    }

    #[test]
    fn an_owner_is_a_short_word() {
        for text in ["", "a.b", "A", "a b", "a\n", "ä", &"a".repeat(33)] {
            assert_eq!(Owner::new(text), Err(TokenError::Owner(text.to_owned())), "{text:?}");
        }
        assert!(Owner::new("a".repeat(32)).is_ok());
    }
}

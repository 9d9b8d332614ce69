//! Which verifier decides.

use std::fmt;
use std::str::FromStr;

/// Which verifier decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// The checklist, where there is one that can be read and a judge; else the program.
    #[default]
    Auto,
    /// The task's own program.
    Program,
    /// A judge, by the checklist.
    Checklist,
    /// A judge by the checklist, with the program beside it.
    Both,
}

/// A word that says not what verifies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` says not what verifies: write `auto`, `program`, `checklist` or `both`")]
pub struct ParseVerifyError {
    text: String,
}

impl Verify {
    const ALL: [Self; 4] = [Self::Auto, Self::Program, Self::Checklist, Self::Both];

    /// The word on command lines, in run files and settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Program => "program",
            Self::Checklist => "checklist",
            Self::Both => "both",
        }
    }

    /// Whether nothing can be decided without a judge.
    #[must_use]
    pub const fn needs_judge(self) -> bool {
        matches!(self, Self::Checklist | Self::Both)
    }
}

impl FromStr for Verify {
    type Err = ParseVerifyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|verify| verify.name() == text);
        found.ok_or_else(|| ParseVerifyError { text: text.to_owned() })
    }
}

impl fmt::Display for Verify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_written_as_they_are_read() {
        for verify in Verify::ALL {
            assert_eq!(verify.to_string().parse(), Ok(verify));
        }
        assert!("checklists".parse::<Verify>().is_err());
    }
}

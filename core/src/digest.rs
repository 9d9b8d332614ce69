//! Content digests: BLAKE3, 32 bytes, written as 64 hex digits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The BLAKE3 digest of some bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// A text that is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a digest: 64 hex digits are expected")]
pub struct ParseDigestError {
    text: String,
}

impl Digest {
    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// A digest from its 32 bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first 12 hex digits, for people.
    #[must_use]
    pub fn short(&self) -> String {
        self.to_string().chars().take(12).collect()
    }
}

/// Collects labelled fields into one digest, so that no two lists of fields can run
/// into each other: each label and value is preceded by its length.
#[derive(Debug, Clone)]
pub struct DigestBuilder(blake3::Hasher);

impl DigestBuilder {
    /// Starts a digest for one purpose, named by `context` (and told apart by it).
    #[must_use]
    pub fn new(context: &str) -> Self {
        let mut builder = Self(blake3::Hasher::new());
        builder.put(context.as_bytes());
        builder
    }

    /// Adds one labelled value.
    #[must_use]
    pub fn field(mut self, label: &str, value: impl AsRef<[u8]>) -> Self {
        self.put(label.as_bytes());
        self.put(value.as_ref());
        self
    }

    /// The digest of all that was added, in its order.
    #[must_use]
    pub fn finish(self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }

    fn put(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({})", self.short())
    }
}

impl FromStr for Digest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseDigestError { text: text.chars().take(80).collect() };
        if text.len() != 64 || !text.is_ascii() {
            return Err(error());
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            let digits = text.get(index * 2..index * 2 + 2).ok_or_else(error)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| error())?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_reads_back_from_its_text() {
        let digest = Digest::of(b"abc");
        assert_eq!(digest.to_string().parse::<Digest>(), Ok(digest));
        assert!("abc".parse::<Digest>().is_err());
        assert!("+".repeat(64).parse::<Digest>().is_err());
    }

    #[test]
    fn fields_cannot_run_into_each_other() {
        let one = DigestBuilder::new("t").field("a", "bc").field("d", "").finish();
        let two = DigestBuilder::new("t").field("ab", "c").field("d", "").finish();
        assert_ne!(one, two);
    }
}

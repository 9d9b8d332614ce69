//! A reading: the one JSON object that a hook prints after a round. It comes out of a sandbox
//! that an agent had its hands in, so it may be anything.

use serde_json::Value;

/// The most bytes of a reading.
pub const MOST_READING: usize = 256 * 1024;

/// Why what a hook printed is no reading.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadingError {
    /// It printed nothing.
    #[error("it printed nothing")]
    Empty,
    /// It printed too much.
    #[error("it printed more than {MOST_READING} bytes")]
    TooLong,
    /// It printed something else.
    #[error("it did not print one JSON object: {reason}")]
    NoObject {
        /// What the parser said.
        reason: String,
    },
}

/// Reads what a hook printed.
///
/// # Errors
///
/// It is not one JSON object, or too long.
pub fn read(printed: &str) -> Result<Value, ReadingError> {
    if printed.len() > MOST_READING {
        return Err(ReadingError::TooLong);
    }
    if printed.trim().is_empty() {
        return Err(ReadingError::Empty);
    }
    // The parser bounds how deep a value is nested.
    match serde_json::from_str::<Value>(printed) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err(ReadingError::NoObject { reason: "it is another value".to_owned() }),
        Err(error) => Err(ReadingError::NoObject { reason: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_is_one_object_and_bounded() {
        assert_eq!(read(" {\"a\": 1}\n").unwrap()["a"], 1);
        assert_eq!(read(" \n"), Err(ReadingError::Empty));
        assert_eq!(read(&format!("{{\"a\": \"{}\"}}", "x".repeat(MOST_READING))), Err(ReadingError::TooLong));
        for odd in ["[]", "1", "{} {}", "{\"a\": NaN}", "warning\n{}", &"{\"a\":".repeat(100_000)[..200_000]] {
            assert!(matches!(read(odd), Err(ReadingError::NoObject { .. })), "{}", &odd[..odd.len().min(20)]);
        }
    }
}

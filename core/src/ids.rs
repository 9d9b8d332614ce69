//! The ids of runs, episodes, attempts and workers, and the names of envs and tasks.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::time::Timestamp;

/// Crockford's base 32 in lower case: no i, l, o, u.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// How many digits a 64-bit id has in base 32.
const ID_DIGITS: usize = 13;

/// A text that is not an id of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {what}")]
pub struct ParseIdError {
    text: String,
    what: &'static str,
}

impl ParseIdError {
    fn new(text: &str, what: &'static str) -> Self {
        Self { text: text.chars().take(120).collect(), what }
    }
}

fn encode(mut value: u64) -> String {
    let mut digits = [b'0'; ID_DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit = ALPHABET[(value & 31) as usize];
        value >>= 5;
    }
    digits.iter().map(|digit| char::from(*digit)).collect()
}

fn decode(text: &str) -> Option<u64> {
    if text.len() != ID_DIGITS {
        return None;
    }
    text.bytes().try_fold(0_u64, |value, digit| {
        let index = ALPHABET.iter().position(|known| *known == digit)?;
        value.checked_mul(32)?.checked_add(index as u64)
    })
}

/// A 64-bit id that sorts by the time it was made: 42 bits of milliseconds, 22 random.
fn time_ordered(now: Timestamp, random: u32) -> u64 {
    (now.0 << 22) | u64::from(random & 0x003f_ffff)
}

macro_rules! time_ordered_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// A new id; ids made later sort later. `random` tells apart those of one millisecond.
            #[must_use]
            pub fn new(now: Timestamp, random: u32) -> Self {
                Self(time_ordered(now, random))
            }

            /// The id as a number, for keys.
            #[must_use]
            pub const fn as_u64(self) -> u64 {
                self.0
            }

            /// The id from a key's number.
            #[must_use]
            pub const fn from_u64(value: u64) -> Self {
                Self(value)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&encode(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), encode(self.0))
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                decode(text).map(Self).ok_or_else(|| ParseIdError::new(text, $what))
            }
        }

        text_serde!($name);
    };
}

macro_rules! text_serde {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

time_ordered_id!(
    /// A run: what a person asked for.
    RunId,
    "a run id (13 letters and digits)"
);
time_ordered_id!(
    /// A worker process; a restarted worker is a new one.
    WorkerId,
    "a worker id (13 letters and digits)"
);

/// An episode: one task, one agent, one sample of a run. Written `RUN/INDEX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpisodeId {
    /// The run it belongs to.
    pub run: RunId,
    /// Its place in the run, from 0.
    pub index: u32,
}

impl fmt::Display for EpisodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.run, self.index)
    }
}

impl FromStr for EpisodeId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseIdError::new(text, "an episode id (RUN/INDEX)");
        let (run, index) = text.split_once('/').ok_or_else(error)?;
        Ok(Self { run: run.parse().map_err(|_| error())?, index: index.parse().map_err(|_| error())? })
    }
}

text_serde!(EpisodeId);

/// One execution of an episode by one worker. Written `RUN/INDEX/NUMBER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    /// The episode that is attempted.
    pub episode: EpisodeId,
    /// The attempt's number, from 1.
    pub number: u32,
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.episode, self.number)
    }
}

impl FromStr for AttemptId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseIdError::new(text, "an attempt id (RUN/INDEX/NUMBER)");
        let (episode, number) = text.rsplit_once('/').ok_or_else(error)?;
        Ok(Self { episode: episode.parse().map_err(|_| error())?, number: number.parse().map_err(|_| error())? })
    }
}

text_serde!(AttemptId);

/// The fencing number of a lease: later leases of one store have larger epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name of a task: `env/task`, both being folder names of the benchmark.
///
/// Task names repeat across envs, so a task is never named without its env.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskName {
    /// The env's folder name.
    pub env: String,
    /// The task's folder name.
    pub task: String,
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.env, self.task))
    }
}

impl FromStr for TaskName {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((env, task)) if !env.is_empty() && !task.is_empty() && !task.contains('/') => {
                Ok(Self { env: env.to_owned(), task: task.to_owned() })
            }
            _ => Err(ParseIdError::new(text, "a task name (ENV/TASK)")),
        }
    }
}

text_serde!(TaskName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_back_and_sort_by_time() {
        let early = RunId::new(Timestamp(1_700_000_000_000), 7);
        let late = RunId::new(Timestamp(1_700_000_000_001), 0);
        assert!(early < late);
        assert!(early.to_string() < late.to_string());
        let attempt = AttemptId { episode: EpisodeId { run: late, index: 3 }, number: 2 };
        assert_eq!(attempt.to_string().parse(), Ok(attempt));
        assert!("../etc".parse::<RunId>().is_err());
        assert!("zzzzzzzzzzzzz".parse::<RunId>().is_err(), "over 64 bits");
    }

    #[test]
    fn a_task_name_has_two_parts() {
        assert!("gpredict_env/add".parse::<TaskName>().is_ok());
        for bad in ["gpredict_env", "/x", "x/", "a/b/c"] {
            assert!(bad.parse::<TaskName>().is_err(), "{bad}");
        }
    }
}

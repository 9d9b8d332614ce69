//! From wire to core and back. Whatever came over the wire is checked here, once.

use std::str::FromStr;

use longhaul_core::call::PurseKind;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, Epoch};
use longhaul_core::money::Money;
use longhaul_core::purse::PurseState;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::v1;

/// A message that does not hold what it should.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// A required field is missing.
    #[error("the message lacks `{field}`")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A field that is not what it should be.
    #[error("`{field}` cannot be read: {reason}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

/// The field, or the error that names it.
///
/// # Errors
///
/// It is absent.
pub fn required<T>(field: &'static str, value: Option<T>) -> Result<T, ConvertError> {
    value.ok_or(ConvertError::Missing { field })
}

/// A text field parsed into an id.
///
/// # Errors
///
/// It is not such an id.
pub fn parsed<T>(field: &'static str, text: &str) -> Result<T, ConvertError>
where
    T: FromStr,
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| ConvertError::Invalid { field, reason: error.to_string() })
}

/// A bytes field read as a digest.
///
/// # Errors
///
/// It is not 32 bytes long.
pub fn digest(field: &'static str, bytes: &[u8]) -> Result<Digest, ConvertError> {
    <[u8; 32]>::try_from(bytes)
        .map(Digest::from_bytes)
        .map_err(|_| ConvertError::Invalid { field, reason: format!("{} bytes are not a digest of 32", bytes.len()) })
}

/// A digest as a bytes field.
#[must_use]
pub fn digest_bytes(digest: &Digest) -> Vec<u8> {
    digest.as_bytes().to_vec()
}

/// A bytes field read as the JSON of a core type.
///
/// # Errors
///
/// It is not.
pub fn from_json<T: DeserializeOwned>(field: &'static str, bytes: &[u8]) -> Result<T, ConvertError> {
    serde_json::from_slice(bytes).map_err(|error| ConvertError::Invalid { field, reason: error.to_string() })
}

/// A core type as the JSON of a bytes field.
///
/// # Errors
///
/// It holds something that JSON cannot express.
pub fn to_json<T: Serialize>(field: &'static str, value: &T) -> Result<Vec<u8>, ConvertError> {
    serde_json::to_vec(value).map_err(|error| ConvertError::Invalid { field, reason: error.to_string() })
}

/// An attempt with the epoch of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseRef {
    /// The attempt.
    pub attempt: AttemptId,
    /// The fencing number.
    pub epoch: Epoch,
}

impl From<LeaseRef> for v1::AttemptRef {
    fn from(lease: LeaseRef) -> Self {
        Self { attempt: lease.attempt.to_string(), epoch: lease.epoch.0 }
    }
}

impl TryFrom<&v1::AttemptRef> for LeaseRef {
    type Error = ConvertError;

    fn try_from(wire: &v1::AttemptRef) -> Result<Self, Self::Error> {
        Ok(Self { attempt: parsed("attempt", &wire.attempt)?, epoch: Epoch(wire.epoch) })
    }
}

/// The lease that an optional wire field names.
///
/// # Errors
///
/// It is absent or cannot be read.
pub fn lease(wire: Option<&v1::AttemptRef>) -> Result<LeaseRef, ConvertError> {
    LeaseRef::try_from(required("attempt", wire)?)
}

/// A purse as it goes over the wire.
#[must_use]
pub fn purse(kind: PurseKind, state: &PurseState) -> v1::PurseState {
    v1::PurseState {
        purse: wire_purse(kind).into(),
        granted_nanos: state.granted.nanos(),
        settled_nanos: state.settled.nanos(),
        returned_nanos: state.returned.nanos(),
        unconfirmed_nanos: state.unconfirmed.nanos(),
        overshoot_nanos: state.overshoot.nanos(),
    }
}

/// Which purse a message is to mean.
#[must_use]
pub const fn wire_purse(kind: PurseKind) -> v1::Purse {
    match kind {
        PurseKind::Episode => v1::Purse::Episode,
        PurseKind::Judge => v1::Purse::Judge,
    }
}

/// Which purse a message means.
///
/// # Errors
///
/// It does not say, or names one that this program does not know.
pub fn purse_kind(wire: v1::Purse) -> Result<PurseKind, ConvertError> {
    match wire {
        v1::Purse::Episode => Ok(PurseKind::Episode),
        v1::Purse::Judge => Ok(PurseKind::Judge),
        v1::Purse::Unspecified => {
            Err(ConvertError::Invalid { field: "purse", reason: "it is none that is known".to_owned() })
        }
    }
}

/// A purse that came over the wire.
///
/// # Errors
///
/// It does not say which it is.
pub fn purse_state(wire: &v1::PurseState) -> Result<(PurseKind, PurseState), ConvertError> {
    let state = PurseState {
        granted: Money::from_nanos(wire.granted_nanos),
        settled: Money::from_nanos(wire.settled_nanos),
        returned: Money::from_nanos(wire.returned_nanos),
        unconfirmed: Money::from_nanos(wire.unconfirmed_nanos),
        overshoot: Money::from_nanos(wire.overshoot_nanos),
    };
    Ok((purse_kind(wire.purse())?, state))
}

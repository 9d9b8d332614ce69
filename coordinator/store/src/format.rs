//! Values: one format byte, then the record.
//!
//! ```text
//! 1 JSON                                   a record
//! 2 BYTES                                  bytes as they are: events, snapshots, blobs
//! 3 FLAGS EPOCH(8) DIGEST(32) JSON         a step; flag 1: late
//! 4 FLAGS EPOCH(8) DIGEST(32) JSON         a model call; flag 1: late
//! ```
//!
//! A byte that is not known is refused: a later program may add formats, and a record in
//! one is not to be misread by an earlier program.

use longhaul_core::digest::Digest;
use longhaul_core::ids::Epoch;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::records::{StoredCall, StoredStep};

/// The version of the store as a whole; in its `format` file and its meta family.
///
/// | version | what an earlier program would misread |
/// |---|---|
/// | 2 | the steps of an attempt that resumed begin with what it keeps of earlier ones |
/// | 1 | |
pub(crate) const STORE_FORMAT: u32 = 2;

/// The earliest version that is read as it is, and raised when the store is opened for writing.
pub(crate) const EARLIEST_FORMAT: u32 = 1;

/// Whether a store of that version is understood.
pub(crate) const fn is_known(version: u32) -> bool {
    EARLIEST_FORMAT <= version && version <= STORE_FORMAT
}

const JSON: u8 = 1;
const RAW: u8 = 2;
const STEP: u8 = 3;
const CALL: u8 = 4;

const FLAG_LATE: u8 = 1;
const REPORTED_HEADER: usize = 2 + 8 + 32;

/// The value of a record.
pub(crate) fn encode_json<T: Serialize>(record: &T) -> Result<Vec<u8>, serde_json::Error> {
    let mut value = vec![JSON];
    serde_json::to_writer(&mut value, record)?;
    Ok(value)
}

/// The record of a value, or what is wrong with it.
pub(crate) fn decode_json<T: DeserializeOwned>(value: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body(value, JSON)?).map_err(|error| error.to_string())
}

/// The value of bytes that are kept as they are.
pub(crate) fn encode_raw(bytes: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(1 + bytes.len());
    value.push(RAW);
    value.extend_from_slice(bytes);
    value
}

/// The bytes of a value, or what is wrong with it.
pub(crate) fn decode_raw(value: &[u8]) -> Result<&[u8], String> {
    body(value, RAW)
}

/// What an attempt reported: kept as it came, with what is known of its coming.
pub(crate) struct Reported<'a> {
    pub(crate) epoch: Epoch,
    pub(crate) late: bool,
    pub(crate) digest: Digest,
    pub(crate) record_json: &'a [u8],
}

/// The value of a step.
pub(crate) fn encode_step(step: &Reported<'_>) -> Vec<u8> {
    encode_reported(STEP, step)
}

/// The step of a value, or what is wrong with it.
pub(crate) fn decode_step(number: u32, value: &[u8]) -> Result<StoredStep, String> {
    let Reported { epoch, late, digest, record_json } = decode_reported(STEP, value)?;
    Ok(StoredStep { number, epoch, late, digest, record_json: record_json.to_vec() })
}

/// The value of a model call.
pub(crate) fn encode_call(call: &Reported<'_>) -> Vec<u8> {
    encode_reported(CALL, call)
}

/// The model call of a value, or what is wrong with it.
pub(crate) fn decode_call(number: u32, value: &[u8]) -> Result<StoredCall, String> {
    let Reported { epoch, late, digest, record_json } = decode_reported(CALL, value)?;
    Ok(StoredCall { number, epoch, late, digest, record_json: record_json.to_vec() })
}

fn encode_reported(format: u8, reported: &Reported<'_>) -> Vec<u8> {
    let mut value = Vec::with_capacity(REPORTED_HEADER + reported.record_json.len());
    value.extend([format, if reported.late { FLAG_LATE } else { 0 }]);
    value.extend(reported.epoch.0.to_be_bytes());
    value.extend(reported.digest.as_bytes());
    value.extend_from_slice(reported.record_json);
    value
}

fn decode_reported(format: u8, value: &[u8]) -> Result<Reported<'_>, String> {
    let short = || "it is cut short".to_owned();
    let (flags, rest) = body(value, format)?.split_first().ok_or_else(short)?;
    if flags & !FLAG_LATE != 0 {
        return Err(format!("it has flags {flags:#04x} that are not known"));
    }
    let (epoch, rest) = rest.split_first_chunk::<8>().ok_or_else(short)?;
    let (digest, record_json) = rest.split_first_chunk::<32>().ok_or_else(short)?;
    Ok(Reported {
        epoch: Epoch(u64::from_be_bytes(*epoch)),
        late: flags & FLAG_LATE != 0,
        digest: Digest::from_bytes(*digest),
        record_json,
    })
}

/// The JSON of a value of any format but that of plain bytes.
pub(crate) fn json_of(value: &[u8]) -> Result<&[u8], String> {
    match value.first() {
        Some(&format @ (STEP | CALL)) => decode_reported(format, value).map(|reported| reported.record_json),
        _ => body(value, JSON),
    }
}

fn body(value: &[u8], wanted: u8) -> Result<&[u8], String> {
    match value.split_first() {
        Some((format, rest)) if *format == wanted => Ok(rest),
        Some((format, _)) => Err(format!("it has format {format}, not {wanted}")),
        None => Err("it is empty".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_another_format_is_refused() {
        let record = encode_json(&7_u32).unwrap();
        assert_eq!(decode_json::<u32>(&record), Ok(7));
        assert_eq!(decode_raw(&record), Err("it has format 1, not 2".to_owned()));
        assert_eq!(decode_json::<u32>(b"\xff7"), Err("it has format 255, not 1".to_owned()));
        assert!(decode_json::<u32>(b"").is_err());
    }

    #[test]
    fn a_step_reads_back_and_an_unknown_flag_is_refused() {
        let digest = Digest::of(b"{}");
        let step = Reported { epoch: Epoch(9), late: true, digest, record_json: b"{}" };
        let mut value = encode_step(&step);
        assert!(decode_call(4, &value).is_err(), "a step is no call");
        assert!(decode_call(4, &encode_call(&step)).is_ok_and(|call| call.late && call.record_json == b"{}"));
        let step = decode_step(4, &value).unwrap();
        assert_eq!((step.number, step.epoch, step.late, step.digest), (4, Epoch(9), true, digest));
        assert_eq!(step.record_json, b"{}");
        value[1] |= 4;
        assert!(decode_step(4, &value).is_err());
        assert!(decode_step(4, &value[..20]).is_err());
    }
}

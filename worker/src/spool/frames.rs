//! How records stand in a spool's file, and what a file says that was hurt: pure.
//!
//! A record is its length (4 bytes, big-endian), its JSON, and the first 8 bytes of the JSON's
//! BLAKE3. A killed worker leaves the beginning of one record at most, and nothing after it:
//! that is [`Rest::Torn`], and no more than what was in flight. Anything else that does not
//! fit is damage of the disk: records that were whole once are not there any more.

use longhaul_core::digest::Digest;

use super::Record;

/// The largest record; a longer length is none of ours.
const MAX_RECORD: usize = 64 * 1024 * 1024;

const LENGTH_BYTES: usize = 4;
const CHECK_BYTES: usize = 8;

/// What a file holds.
#[derive(Debug)]
pub(super) struct Parsed {
    /// The whole records at its start, each with where it begins.
    pub(super) records: Vec<(usize, Record)>,
    /// How many bytes they take.
    pub(super) whole: usize,
    /// What comes after them.
    pub(super) rest: Rest,
}

/// What comes after the whole records of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Nothing.
    Nothing,
    /// The beginning of a record that was being written.
    Torn,
    /// Something else than what was written.
    Damaged,
    /// A whole record of a kind that this program does not know, and why it does not.
    Unknown(String),
}

/// What is at one place.
enum One {
    End,
    Record(Box<Record>, usize),
    Unknown(String),
    Broken,
}

/// A record as it stands in the file.
pub(super) fn frame(json: &[u8]) -> Vec<u8> {
    let length = u32::try_from(json.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(json.len() + LENGTH_BYTES + CHECK_BYTES);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(json);
    bytes.extend_from_slice(check(json).as_slice());
    bytes
}

/// What a file holds.
pub(super) fn parse(bytes: &[u8]) -> Parsed {
    let mut records = Vec::new();
    let mut at = 0;
    let rest = loop {
        match one(bytes, at) {
            One::End => break Rest::Nothing,
            One::Record(record, next) => {
                records.push((at, *record));
                at = next;
            }
            One::Unknown(why) => break Rest::Unknown(why),
            One::Broken if is_torn(bytes.get(at..).unwrap_or_default()) => break Rest::Torn,
            One::Broken => break Rest::Damaged,
        }
    };
    Parsed { records, whole: at, rest }
}

fn one(bytes: &[u8], at: usize) -> One {
    if at == bytes.len() {
        return One::End;
    }
    let Some(json) = framed(bytes, at) else { return One::Broken };
    match serde_json::from_slice(json) {
        Ok(record) => One::Record(Box::new(record), at + LENGTH_BYTES + json.len() + CHECK_BYTES),
        Err(error) => One::Unknown(error.to_string()),
    }
}

/// The JSON of the record that begins at `at`, if it is whole and as it was written.
fn framed(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let start = at + LENGTH_BYTES;
    let length = u32::from_be_bytes(bytes.get(at..start)?.try_into().ok()?) as usize;
    if length > MAX_RECORD {
        return None;
    }
    let json = bytes.get(start..start + length)?;
    let found = bytes.get(start + length..start + length + CHECK_BYTES)?;
    (found == check(json).as_slice()).then_some(json)
}

fn check(json: &[u8]) -> [u8; CHECK_BYTES] {
    let mut check = [0; CHECK_BYTES];
    check.copy_from_slice(&Digest::of(json).as_bytes()[..CHECK_BYTES]);
    check
}

/// Whether what is no whole record is the beginning of one, which ends where the file does.
fn is_torn(rest: &[u8]) -> bool {
    let Some(length) = rest.first_chunk::<LENGTH_BYTES>() else { return true };
    let length = u32::from_be_bytes(*length) as usize;
    if length > MAX_RECORD || LENGTH_BYTES + length + CHECK_BYTES <= rest.len() {
        return false;
    }
    // It ends too early by its own length. That may be what was changed: then it is whole by
    // another one, or records come after it. The bytes of a length are none that JSON has, so
    // that no text inside of a record looks like one.
    let whole = rest.split_last_chunk::<CHECK_BYTES>().is_some_and(|(body, found)| {
        body.get(LENGTH_BYTES..).is_some_and(|json| !json.is_empty() && *found == check(json))
    });
    let followed =
        || (1..rest.len()).any(|at| rest.get(at + LENGTH_BYTES) == Some(&b'{') && framed(rest, at).is_some());
    !whole && !followed()
}

#[cfg(test)]
mod tests {
    use super::super::tests::step;
    use super::*;

    fn written(count: u32) -> (Vec<Record>, Vec<u8>) {
        let records: Vec<Record> = (0..count).map(|number| step(number, b"png")).collect();
        let bytes = records.iter().flat_map(|record| frame(&serde_json::to_vec(record).unwrap())).collect();
        (records, bytes)
    }

    fn read(bytes: &[u8]) -> (Vec<Record>, Rest) {
        let parsed = parse(bytes);
        (parsed.records.into_iter().map(|(_, record)| record).collect(), parsed.rest)
    }

    #[test]
    fn a_file_that_was_cut_at_any_byte_is_torn_and_never_damaged() {
        let (records, bytes) = written(3);
        let third = bytes.len() / 3;
        for cut in 0..=bytes.len() {
            let (found, rest) = read(&bytes[..cut]);
            assert_eq!(found, records[..cut / third], "cut at {cut}");
            assert_eq!(rest, if cut % third == 0 { Rest::Nothing } else { Rest::Torn }, "cut at {cut}");
        }
    }

    #[test]
    fn each_flipped_bit_is_damage_and_what_stands_before_it_is_read() {
        let (records, bytes) = written(3);
        let third = bytes.len() / 3;
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut hurt = bytes.clone();
                hurt[at] ^= 1 << bit;
                let (found, rest) = read(&hurt);
                assert_eq!(found, records[..at / third], "byte {at}, bit {bit}");
                assert_eq!(rest, Rest::Damaged, "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn zeros_that_a_power_loss_left_are_damage_and_a_kind_of_a_later_program_is_named() {
        let (records, bytes) = written(1);
        for zeros in [LENGTH_BYTES + CHECK_BYTES, 4096] {
            let hurt = [bytes.clone(), vec![0; zeros]].concat();
            assert_eq!(read(&hurt), (records.clone(), Rest::Damaged));
        }
        let later = [bytes, frame(br#"{"kind":"from_the_future"}"#)].concat();
        let (found, rest) = read(&later);
        assert_eq!(found, records);
        assert!(matches!(rest, Rest::Unknown(why) if why.contains("from_the_future")));
    }
}

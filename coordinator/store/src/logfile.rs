//! RocksDB's log files (its logs of writes, and its manifest), checked before it reads
//! them.
//!
//! A crash may cut off the last record; RocksDB drops such a record, and it is right:
//! that write was not acknowledged. But a record whose *length* was damaged looks the
//! same to it, and then everything after it in the block is dropped in silence,
//! acknowledged or not. The two are told apart here: each write is synced before the
//! next one starts, so nothing whole comes after a record that a crash cut off.
//!
//! ```text
//! FILE    blocks of 32 KiB
//! BLOCK   records, then less than 7 bytes of zeros
//! RECORD  crc(4) length(2) type(1) [log number(4)] payload(length)
//! ```
//!
//! The crc covers all that follows the length. A write longer than its block is a first,
//! any number of middle and a last record.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::crc32c::{crc32c, masked};

const BLOCK: usize = 32 * 1024;
const HEADER: usize = 7;
const RECYCLED_HEADER: usize = HEADER + 4;

/// The types of record that RocksDB knows.
const TYPES: [u8; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 130, 131];

/// Those that carry the log's number in their header.
const RECYCLED_TYPES: [u8; 6] = [5, 6, 7, 8, 11, 131];

/// Those that start a write: a full one, or the first part of one.
const STARTS: [u8; 4] = [1, 2, 5, 6];

/// What a log file holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogScan {
    /// Whole records before the first broken one.
    pub(crate) records: u64,
    /// The first broken record.
    pub(crate) broken: Option<Broken>,
}

/// A record that is not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    /// Where it starts, in bytes from the start of the file.
    pub(crate) offset: u64,
    /// It is damage: a write that started later is whole, or this one is but for its
    /// length. Otherwise a crash may have cut it off.
    pub(crate) damage: bool,
}

/// Reads a log file whole.
pub(crate) fn scan(path: &Path) -> io::Result<LogScan> {
    let mut file = File::open(path)?;
    let mut found = LogScan::default();
    let mut block = Vec::with_capacity(BLOCK);
    let mut start = 0_u64;
    loop {
        block.clear();
        file.by_ref().take(BLOCK as u64).read_to_end(&mut block)?;
        if block.is_empty() {
            return Ok(found);
        }
        match &mut found.broken {
            None => {
                let (records, broken) = read_block(&block);
                found.records += records;
                found.broken = broken.map(|at| Broken {
                    offset: start + at as u64,
                    damage: lacks_only_its_length(&block[at..])
                        || (at + 1..block.len()).any(|later| starts_write(&block[later..])),
                });
            }
            // Blocks start with a record, so that the others need no search.
            Some(broken) => broken.damage |= block_starts_write(&block),
        }
        // A short block is the last one: what is appended meanwhile is not looked at, since
        // it would not start at a block's start.
        if block.len() < BLOCK || found.broken.is_some_and(|broken| broken.damage) {
            return Ok(found);
        }
        start += block.len() as u64;
    }
}

/// The whole records of a block, and where the first broken one starts.
fn read_block(block: &[u8]) -> (u64, Option<usize>) {
    let mut records = 0;
    let mut at = 0;
    // A block's last bytes, too few for a header, are filled up.
    while block.len() - at > 0 && BLOCK - at >= HEADER {
        match whole_record(&block[at..]) {
            Some((len, _)) => {
                records += 1;
                at += len;
            }
            None => return (records, Some(at)),
        }
    }
    (records, None)
}

/// Whether any of the records that follow each other from the block's start starts a write.
fn block_starts_write(block: &[u8]) -> bool {
    let mut at = 0;
    while let Some((len, kind)) = whole_record(&block[at..]) {
        if STARTS.contains(&kind) {
            return true;
        }
        at += len;
    }
    false
}

fn starts_write(bytes: &[u8]) -> bool {
    whole_record(bytes).is_some_and(|(_, kind)| STARTS.contains(&kind))
}

/// The length and the type of the record that `bytes` start with, if it is whole.
fn whole_record(bytes: &[u8]) -> Option<(usize, u8)> {
    let (crc, len, kind) = header(bytes)?;
    let end = header_len(kind)?.checked_add(usize::from(len))?;
    let covered = bytes.get(HEADER - 1..end)?;
    (masked(crc32c(covered)) == crc).then_some((end, kind))
}

/// Whether the record that `bytes` start with is whole if it reaches to their end.
fn lacks_only_its_length(bytes: &[u8]) -> bool {
    header(bytes).is_some_and(|(crc, _, kind)| {
        header_len(kind).is_some_and(|len| bytes.len() >= len) && masked(crc32c(&bytes[HEADER - 1..])) == crc
    })
}

fn header(bytes: &[u8]) -> Option<(u32, u16, u8)> {
    let (crc, rest) = bytes.split_first_chunk::<4>()?;
    let (len, rest) = rest.split_first_chunk::<2>()?;
    Some((u32::from_le_bytes(*crc), u16::from_le_bytes(*len), *rest.first()?))
}

fn header_len(kind: u8) -> Option<usize> {
    TYPES.contains(&kind).then(|| if RECYCLED_TYPES.contains(&kind) { RECYCLED_HEADER } else { HEADER })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
        let covered = [&[kind], payload].concat();
        let mut record = masked(crc32c(&covered)).to_le_bytes().to_vec();
        record.extend(u16::try_from(payload.len()).unwrap().to_le_bytes());
        record.extend(covered);
        record
    }

    fn scan_bytes(bytes: &[u8]) -> LogScan {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        scan(file.path()).unwrap()
    }

    fn three() -> Vec<u8> {
        [record(1, b"one"), record(1, b"two"), record(1, b"three")].concat()
    }

    #[test]
    fn whole_records_are_counted_over_the_ends_of_blocks() {
        assert_eq!(scan_bytes(b""), LogScan::default());
        assert_eq!(scan_bytes(&three()), LogScan { records: 3, broken: None });
        // The first block has 3 bytes left, which are filled up.
        let mut long = record(1, &vec![7; BLOCK - HEADER - 3]);
        long.extend([0; 3]);
        long.extend(three());
        assert_eq!(scan_bytes(&long), LogScan { records: 4, broken: None });
    }

    #[test]
    fn a_cut_off_record_is_no_damage_wherever_it_is_cut() {
        let bytes = three();
        let last = bytes.len() - record(1, b"three").len();
        for end in last + 1..bytes.len() {
            let broken = Some(Broken { offset: last as u64, damage: false });
            assert_eq!(scan_bytes(&bytes[..end]), LogScan { records: 2, broken }, "cut at {end}");
        }
        // So is a write over several blocks of which a part in the middle is missing:
        // it was never synced.
        let torn = [record(2, &vec![1; BLOCK - HEADER]), vec![0; BLOCK], record(4, b"end")].concat();
        let broken = Some(Broken { offset: BLOCK as u64, damage: false });
        assert_eq!(scan_bytes(&torn), LogScan { records: 1, broken });
    }

    #[test]
    fn any_flipped_byte_is_damage() {
        let bytes = three();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut broken = bytes.clone();
                broken[at] ^= 1 << bit;
                let found = scan_bytes(&broken).broken;
                // What is flipped in the last record's crc, type or payload RocksDB refuses.
                let last = at >= bytes.len() - record(1, b"three").len();
                let in_length = matches!(at - (bytes.len() - record(1, b"three").len()).min(at), 4 | 5);
                assert!(found.is_some(), "byte {at} bit {bit}");
                if !last || in_length {
                    assert!(found.unwrap().damage, "byte {at} bit {bit} is taken for a cut-off record");
                }
            }
        }
    }

    #[test]
    fn a_whole_block_that_was_zeroed_is_damage_if_writes_follow() {
        let bytes = [record(1, &vec![1; BLOCK - HEADER]), vec![0; BLOCK], record(1, b"later")].concat();
        let broken = Some(Broken { offset: BLOCK as u64, damage: true });
        assert_eq!(scan_bytes(&bytes), LogScan { records: 1, broken });
    }
}

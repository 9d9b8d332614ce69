//! Keys: one kind byte, then ids in big-endian bytes, so that keys sort as the ids do.
//!
//! ```text
//! journal   e SEQUENCE               an event      s SEQUENCE               a snapshot through it
//! runs      r RUN                    a run          m RUN                    that it came from another store
//!           d RUN                    what was dropped of it
//! episodes  E RUN INDEX              an episode    L RUN INDEX              who has its lease
//! attempts  a RUN INDEX NUMBER       an attempt    l RUN INDEX NUMBER name  a log of it
//!           k RUN INDEX NUMBER       what it keeps of the attempts before it
//! steps     S RUN INDEX NUMBER STEP  a step        p RUN INDEX NUMBER       how far they are whole
//! ledger    C RUN INDEX NUMBER CALL  a model call c RUN INDEX NUMBER       how far they are whole, and their sums
//! blobs     b DIGEST                 the bytes     i DIGEST                 their count: that they are there
//! layers    y KEY                    a layer
//! meta      F                        the format    I                        the incarnation
//!           R                        the incarnation that began with a backup
//! ```
//!
//! SEQUENCE and RUN are 8 bytes, INDEX, NUMBER, STEP and CALL 4, DIGEST and KEY 32.

use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, RunId};

/// The kind byte of a key. A kind that goes out of use stays here, so that its byte is
/// never given another meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Event = b'e',
    Snapshot = b's',
    Run = b'r',
    Arrival = b'm',
    Dropped = b'd',
    Episode = b'E',
    Lease = b'L',
    Attempt = b'a',
    Log = b'l',
    Line = b'k',
    Step = b'S',
    Progress = b'p',
    Call = b'C',
    CallProgress = b'c',
    Blob = b'b',
    BlobInfo = b'i',
    Layer = b'y',
    Format = b'F',
    Incarnation = b'I',
    Restored = b'R',
}

/// The longest list of ids but a digest: a step's, or a call's.
const IDS_LEN: usize = 8 + 4 + 4 + 4;

fn key(kind: Kind, capacity: usize) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + capacity);
    key.push(kind as u8);
    key
}

pub(crate) fn sequence(kind: Kind, sequence: u64) -> Vec<u8> {
    let mut key = key(kind, 8);
    key.extend(sequence.to_be_bytes());
    key
}

pub(crate) fn run(kind: Kind, run: RunId) -> Vec<u8> {
    let mut key = key(kind, IDS_LEN);
    key.extend(run.as_u64().to_be_bytes());
    key
}

pub(crate) fn episode(kind: Kind, episode: EpisodeId) -> Vec<u8> {
    let mut key = run(kind, episode.run);
    key.extend(episode.index.to_be_bytes());
    key
}

pub(crate) fn attempt(kind: Kind, attempt: AttemptId) -> Vec<u8> {
    let mut key = episode(kind, attempt.episode);
    key.extend(attempt.number.to_be_bytes());
    key
}

pub(crate) fn step(id: AttemptId, number: u32) -> Vec<u8> {
    numbered(Kind::Step, id, number)
}

pub(crate) fn call(id: AttemptId, number: u32) -> Vec<u8> {
    numbered(Kind::Call, id, number)
}

fn numbered(kind: Kind, id: AttemptId, number: u32) -> Vec<u8> {
    let mut key = attempt(kind, id);
    key.extend(number.to_be_bytes());
    key
}

pub(crate) fn log(id: AttemptId, name: &str) -> Vec<u8> {
    let mut key = attempt(Kind::Log, id);
    key.extend(name.as_bytes());
    key
}

pub(crate) fn digest(kind: Kind, digest: &Digest) -> Vec<u8> {
    let mut key = key(kind, 32);
    key.extend(digest.as_bytes());
    key
}

pub(crate) fn meta(kind: Kind) -> Vec<u8> {
    vec![kind as u8]
}

/// The ids of a key of `kind`, without its kind byte; none if it is of another kind.
pub(crate) fn ids(kind: Kind, key: &[u8]) -> Option<&[u8]> {
    key.split_first().filter(|(first, _)| **first == kind as u8).map(|(_, rest)| rest)
}

pub(crate) fn read_sequence(kind: Kind, key: &[u8]) -> Option<u64> {
    ids(kind, key)?.try_into().ok().map(u64::from_be_bytes)
}

pub(crate) fn read_run(kind: Kind, key: &[u8]) -> Option<RunId> {
    read_sequence(kind, key).map(RunId::from_u64)
}

pub(crate) fn read_episode(kind: Kind, key: &[u8]) -> Option<EpisodeId> {
    split_episode(ids(kind, key)?).filter(|(_, rest)| rest.is_empty()).map(|(id, _)| id)
}

pub(crate) fn read_attempt(kind: Kind, key: &[u8]) -> Option<AttemptId> {
    split_attempt(ids(kind, key)?).filter(|(_, rest)| rest.is_empty()).map(|(id, _)| id)
}

pub(crate) fn read_step(key: &[u8]) -> Option<(AttemptId, u32)> {
    read_numbered(Kind::Step, key)
}

pub(crate) fn read_call(key: &[u8]) -> Option<(AttemptId, u32)> {
    read_numbered(Kind::Call, key)
}

fn read_numbered(kind: Kind, key: &[u8]) -> Option<(AttemptId, u32)> {
    let (id, rest) = split_attempt(ids(kind, key)?)?;
    Some((id, u32::from_be_bytes(rest.try_into().ok()?)))
}

pub(crate) fn read_log(key: &[u8]) -> Option<(AttemptId, &str)> {
    let (id, rest) = split_attempt(ids(Kind::Log, key)?)?;
    std::str::from_utf8(rest).ok().filter(|name| !name.is_empty()).map(|name| (id, name))
}

pub(crate) fn read_digest(kind: Kind, key: &[u8]) -> Option<Digest> {
    ids(kind, key)?.try_into().ok().map(Digest::from_bytes)
}

fn split_episode(bytes: &[u8]) -> Option<(EpisodeId, &[u8])> {
    let (run, rest) = bytes.split_first_chunk::<8>()?;
    let (index, rest) = rest.split_first_chunk::<4>()?;
    let run = RunId::from_u64(u64::from_be_bytes(*run));
    Some((EpisodeId { run, index: u32::from_be_bytes(*index) }, rest))
}

fn split_attempt(bytes: &[u8]) -> Option<(AttemptId, &[u8])> {
    let (episode, rest) = split_episode(bytes)?;
    let (number, rest) = rest.split_first_chunk::<4>()?;
    Some((AttemptId { episode, number: u32::from_be_bytes(*number) }, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attempt_id() -> impl Strategy<Value = AttemptId> {
        // Small and huge numbers alike, so that ties and carries both occur.
        let number = prop_oneof![0_u32..3, any::<u32>()];
        (prop_oneof![0_u64..3, any::<u64>()], number.clone(), number).prop_map(|(run, index, number)| AttemptId {
            episode: EpisodeId { run: RunId::from_u64(run), index },
            number,
        })
    }

    proptest! {
        #[test]
        fn keys_sort_as_ids_do_and_read_back(one in (attempt_id(), any::<u32>()), two in (attempt_id(), any::<u32>())) {
            prop_assert_eq!(one.cmp(&two), step(one.0, one.1).cmp(&step(two.0, two.1)));
            prop_assert_eq!(read_step(&step(one.0, one.1)), Some(one));
            prop_assert_eq!(read_call(&call(one.0, one.1)), Some(one));
            prop_assert_eq!(read_call(&step(one.0, one.1)), None);
            let (a, b) = (one.0, two.0);
            prop_assert_eq!(a.cmp(&b), attempt(Kind::Attempt, a).cmp(&attempt(Kind::Attempt, b)));
            prop_assert_eq!(read_attempt(Kind::Attempt, &attempt(Kind::Attempt, a)), Some(a));
            prop_assert_eq!(a.episode.cmp(&b.episode), episode(Kind::Episode, a.episode).cmp(&episode(Kind::Episode, b.episode)));
            prop_assert_eq!(read_episode(Kind::Episode, &episode(Kind::Episode, a.episode)), Some(a.episode));
        }

        #[test]
        fn events_sort_by_sequence(one: u64, two: u64) {
            prop_assert_eq!(one.cmp(&two), sequence(Kind::Event, one).cmp(&sequence(Kind::Event, two)));
            prop_assert_eq!(read_sequence(Kind::Event, &sequence(Kind::Event, one)), Some(one));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
            read_step(&bytes);
            read_call(&bytes);
            read_log(&bytes);
            read_episode(Kind::Lease, &bytes);
            read_digest(Kind::Blob, &bytes);
        }
    }
}

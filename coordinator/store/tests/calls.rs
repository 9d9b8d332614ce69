//! Model calls in the ledger, on a real RocksDB.

#![expect(clippy::unwrap_used, reason = "what cannot go on fails the test")]

mod common;

use common::*;
use longhaul_core::ids::Epoch;
use longhaul_core::money::Money;
use longhaul_store::{Change, Receipt, ReportError, ReportKind};

const IN_TIME: Receipt = Receipt { repeated: false, late: false };

#[test]
fn a_call_is_stored_once_and_another_under_its_number_is_a_conflict() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.append(vec![], lease(1, 1)).wait().unwrap();
    assert_eq!(put_call(&store, attempt_id(1), 1, 0, 30), Ok(IN_TIME));
    assert_eq!(put_call(&store, attempt_id(1), 1, 0, 30), Ok(Receipt { repeated: true, late: false }));
    let conflict = put_call(&store, attempt_id(1), 1, 0, 31).unwrap_err();
    assert!(matches!(conflict, ReportError::Conflict { number: 0, .. }), "{conflict}");
    let calls: Vec<_> = store.calls(attempt_id(1), 0).map(Result::unwrap).collect();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].record_json, call(0, 30).1);
    assert_eq!(calls[0].record().unwrap(), call(0, 30).0);
    assert_eq!(store.call_progress(attempt_id(1)).unwrap().totals.settled, Money::from_nanos(30), "it counts once");
}

#[test]
fn a_call_that_is_none_lacks_a_blob_or_never_had_that_lease_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.append(vec![], lease(1, 1)).wait().unwrap();
    let (record, json, mut blobs) = call(3, 10);
    let refused =
        |epoch, number, json: Vec<u8>| store.put_call(attempt_id(1), Epoch(epoch), number, json).wait().unwrap_err();
    assert!(matches!(refused(1, 3, b"{}".to_vec()), ReportError::Invalid { .. }));
    assert!(matches!(refused(1, 4, json.clone()), ReportError::Invalid { .. }), "a number that is not the record's");
    let missing =
        |digest| ReportError::MissingBlob { what: ReportKind::Call, attempt: attempt_id(1), number: 3, digest };
    assert_eq!(refused(1, 3, json.clone()), missing(record.request));
    let part = blobs.pop().unwrap();
    store.put_blobs(blobs).wait().unwrap();
    assert_eq!(refused(1, 3, json.clone()), missing(record.parts[0]));
    store.put_blobs(vec![part]).wait().unwrap();
    assert!(matches!(refused(2, 3, json.clone()), ReportError::WrongEpoch { .. }));
    let unknown = store.put_call(attempt_id(9), Epoch(1), 3, json).wait().unwrap_err();
    assert_eq!(unknown, ReportError::UnknownAttempt { attempt: attempt_id(9) });
}

#[test]
fn what_an_attempt_lacks_is_known_by_the_first_gap_and_all_that_is_there_counts() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.append(vec![], lease(1, 1)).wait().unwrap();
    for (number, next, sum) in [(0, 1, 5), (2, 1, 10), (3, 1, 15), (1, 4, 20)] {
        assert_eq!(put_call(&store, attempt_id(1), 1, number, 5), Ok(IN_TIME));
        let progress = store.call_progress(attempt_id(1)).unwrap();
        assert_eq!((progress.next, progress.totals.settled), (next, Money::from_nanos(sum)), "after call {number}");
    }
    assert_eq!(store.call_progress(attempt_id(2)).unwrap().next, 0);
    drop(store);
    let store = open(folder.path());
    assert_eq!(store.call_progress(attempt_id(1)).unwrap().next, 4, "after a restart");
    assert_eq!(store.calls(attempt_id(1), 2).count(), 2);
}

#[test]
fn a_late_call_is_flagged_and_its_money_counts() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.append(vec![], lease(1, 1)).wait().unwrap();
    put_call(&store, attempt_id(1), 1, 0, 7).unwrap();
    store.append(vec![], vec![Change::LeaseOver { episode: episode_id() }]).wait().unwrap();
    store.append(vec![], lease(2, 2)).wait().unwrap();
    assert_eq!(put_call(&store, attempt_id(1), 1, 1, 8), Ok(Receipt { repeated: false, late: true }));
    put_call(&store, attempt_id(2), 2, 0, 9).unwrap();
    let late: Vec<bool> = store.calls(attempt_id(1), 0).map(|call| call.unwrap().late).collect();
    assert_eq!(late, [false, true]);
    assert_eq!(store.call_progress(attempt_id(1)).unwrap().totals.calls, 2);
    assert_eq!(store.episode_spent(episode_id()).unwrap(), Money::from_nanos(24));
}

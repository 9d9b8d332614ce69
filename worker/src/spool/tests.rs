//! The spool of one attempt on a real disk: killed, cut and flipped.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use longhaul_core::ids::{AttemptId, EpisodeId, RunId};
use longhaul_core::time::Timestamp;

use super::*;

/// Where the writer that is killed writes.
const VICTIM: &str = "LONGHAUL_TEST_SPOOL";

pub(crate) fn lease() -> LeaseRef {
    let episode = EpisodeId { run: RunId::new(Timestamp(1), 1), index: 3 };
    LeaseRef { attempt: AttemptId { episode, number: 2 }, epoch: Epoch(7) }
}

pub(crate) fn step(number: u32, png: &[u8]) -> Record {
    Record::Step { number, png: Digest::of(png), json: format!("{{\"number\":{number}}}") }
}

fn append(spool: &mut AttemptSpool, number: u32, png: &[u8]) {
    spool.append(&step(number, png), &[(Digest::of(png), png)]).unwrap();
}

/// A spool of so many steps, each with its own picture, and its folder.
fn written(root: &Path, count: u32) -> PathBuf {
    let mut spool = AttemptSpool::create(root, lease(), Meter::default()).unwrap();
    for number in 0..count {
        append(&mut spool, number, format!("picture {number}").as_bytes());
    }
    spool.folder
}

fn recovered(folder: &Path) -> (AttemptSpool, Vec<Record>, Option<Damage>) {
    let Recovered { spool, records, damage } = AttemptSpool::recover(folder, Meter::default()).unwrap();
    (spool, records, damage)
}

#[test]
fn what_was_appended_is_read_back_in_order_with_its_blobs() {
    let root = tempfile::tempdir().unwrap();
    let folder = written(root.path(), 2);
    let meter = Meter::default();
    let Recovered { spool, records, damage } = AttemptSpool::recover(&folder, meter.clone()).unwrap();
    assert_eq!(records, [step(0, b"picture 0"), step(1, b"picture 1")]);
    assert_eq!((spool.lease(), damage), (lease(), None));
    assert_eq!(spool.blob(&Digest::of(b"picture 1")).unwrap().as_deref(), Some(&b"picture 1"[..]));
    let records = fs::metadata(folder.join(RECORDS)).unwrap().len();
    assert_eq!(meter.bytes(), 18 + records, "what waits takes room, records and blobs");
}

#[test]
fn a_record_that_is_torn_at_any_byte_is_cut_off_and_the_spool_goes_on_after_it() {
    let root = tempfile::tempdir().unwrap();
    let folder = written(root.path(), 2);
    let bytes = fs::read(folder.join(RECORDS)).unwrap();
    let last = bytes.len() / 2;
    for cut in last..bytes.len() {
        fs::write(folder.join(RECORDS), &bytes[..cut]).unwrap();
        let (mut spool, records, damage) = recovered(&folder);
        assert_eq!((records, damage), (vec![step(0, b"picture 0")], None), "cut at {cut}");
        append(&mut spool, 1, b"again");
        drop(spool);
        let (_, records, damage) = recovered(&folder);
        assert_eq!((records, damage), (vec![step(0, b"picture 0"), step(1, b"again")], None), "cut at {cut}");
    }
}

#[test]
fn a_flipped_byte_in_the_middle_is_said_each_time_the_spool_is_read_and_the_records_are_kept_aside() {
    let root = tempfile::tempdir().unwrap();
    let folder = written(root.path(), 3);
    let path = folder.join(RECORDS);
    let mut bytes = fs::read(&path).unwrap();
    let third = bytes.len() / 3;
    bytes[third + 20] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let (whole, of) = (third as u64, bytes.len() as u64);
    for _ in 0..2 {
        let (mut spool, records, damage) = recovered(&folder);
        assert_eq!((records.first(), damage.map(|damage| damage.of)), (Some(&step(0, b"picture 0")), Some(of)));
        append(&mut spool, 1, b"what is appended later does not hide it");
    }
    assert_eq!(fs::read(folder.join(DAMAGED)).unwrap(), bytes);
    fs::write(&path, &bytes).unwrap();
    assert_eq!(recovered(&folder).2, Some(Damage { whole, of }));
}

#[test]
fn a_blob_that_is_not_what_was_written_is_never_handed_out() {
    let root = tempfile::tempdir().unwrap();
    let folder = written(root.path(), 2);
    let (spool, ..) = recovered(&folder);
    fs::write(spool.blob_path(&Digest::of(b"picture 0")), b"picture 8").unwrap();
    fs::remove_file(spool.blob_path(&Digest::of(b"picture 1"))).unwrap();
    for picture in [&b"picture 0"[..], b"picture 1"] {
        assert!(matches!(spool.blob(&Digest::of(picture)), Err(SpoolError::Changed { .. })));
    }
    assert!(spool.blob(&Digest::of(b"delivered long ago")).unwrap().is_none());
}

#[test]
fn what_only_a_later_program_knows_is_left_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    let folder = written(root.path(), 1);
    let path = folder.join(RECORDS);
    let later = [fs::read(&path).unwrap(), frame(br#"{"kind":"from_the_future"}"#)].concat();
    fs::write(&path, &later).unwrap();
    let read = AttemptSpool::recover(&folder, Meter::default());
    assert!(matches!(read, Err(SpoolError::Unknown { .. })));
    assert_eq!(fs::read(&path).unwrap(), later);
}

#[test]
fn a_folder_of_another_name_is_not_a_spool_and_one_without_records_is_an_empty_one() {
    let root = tempfile::tempdir().unwrap();
    let foreign = root.path().join("notes");
    fs::create_dir(&foreign).unwrap();
    assert!(matches!(AttemptSpool::recover(&foreign, Meter::default()), Err(SpoolError::Foreign { .. })));
    let begun = root.path().join(folder_name(&lease()));
    fs::create_dir(&begun).unwrap();
    let (mut spool, records, _) = recovered(&begun);
    assert!(records.is_empty());
    append(&mut spool, 0, b"x");
}

/// Not a test of its own: the writer that the next one kills.
fn write_until_killed(root: &Path) {
    let mut spool = AttemptSpool::create(root, lease(), Meter::default()).unwrap();
    for number in 0.. {
        append(&mut spool, number, format!("picture {number}").as_bytes());
        println!("appended {number}");
    }
}

#[test]
fn a_killed_writer_loses_nothing_that_it_had_appended() {
    if let Some(root) = std::env::var_os(VICTIM) {
        write_until_killed(Path::new(&root));
    }
    for after in [0, 1, 7, 40, 133] {
        let root = tempfile::tempdir().unwrap();
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["spool::tests::a_killed_writer_loses_nothing_that_it_had_appended", "--exact", "--nocapture"])
            .env(VICTIM, root.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let mut appended = lines.map(Result::unwrap).filter_map(|line| line.strip_prefix("appended ")?.parse().ok());
        let last: u32 = appended.nth(after).unwrap();
        victim.kill().unwrap();
        victim.wait().unwrap();
        let (spool, records, damage) = recovered(&root.path().join(folder_name(&lease())));
        assert_eq!(damage, None);
        assert!(records.len() > last as usize, "{} of more than {last}", records.len());
        for (number, record) in (0..).zip(&records) {
            let picture = format!("picture {number}");
            assert_eq!(*record, step(number, picture.as_bytes()));
            assert_eq!(spool.blob(&Digest::of(picture.as_bytes())).unwrap(), Some(picture.into_bytes()));
        }
    }
}

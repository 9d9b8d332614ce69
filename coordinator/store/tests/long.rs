//! Power loss, which a kill is not: after a kill the page cache is still there.
//!
//! The store lies on a filesystem of its own in an image file. While it is written to,
//! the image is copied: the copy has what had reached the disk, and nothing of what was
//! only in memory. Needs root, `mkfs.ext4` and loop devices.

#![expect(clippy::unwrap_used, reason = "what cannot go on fails the test")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use common::*;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const CHILD: &str = "LONGHAUL_TEST_STORE";

fn command(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An image that is mounted, until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(image: &Path, at: &Path) -> Self {
        std::fs::create_dir_all(at).unwrap();
        // The filesystem's own commits, by time, would save what was not synced.
        let (image, place) = (image.to_str().unwrap(), at.to_str().unwrap());
        command("mount", &["-o", "loop,commit=300", image, place]);
        Self(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// A process that is killed when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_was_acknowledged_survives_a_power_loss() {
    if let Some(folder) = std::env::var_os(CHILD) {
        let store = open(Path::new(&folder));
        for number in 0_u64.. {
            let sequence = store.append(vec![vec![number as u8; 3000]], vec![]).wait().unwrap().start;
            let mut out = std::io::stdout().lock();
            writeln!(out, "ACK {sequence}").unwrap();
            out.flush().unwrap();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("disk");
    std::fs::File::create(&image).unwrap().set_len(1 << 30).unwrap();
    command("mkfs.ext4", &["-q", image.to_str().unwrap()]);
    let mounted = Mounted::new(&image, &folder.path().join("mnt"));
    let mut child = Killed(
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "what_was_acknowledged_survives_a_power_loss", "--nocapture", "--test-threads=1"])
            .env(CHILD, mounted.0.join("store"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let (sender, acknowledged) = mpsc::channel();
    let out = child.0.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if let Some((_, sequence)) = line.split_once("ACK ") {
                let _ = sender.send(sequence.parse::<u64>().unwrap());
            }
        }
    });
    let mut last = 0;
    for round in 1..=3 {
        while last < round * 300 {
            last = acknowledged.recv().unwrap();
        }
        // Stopped, so that the copy is one point in time.
        kill(Pid::from_raw(child.0.id() as i32), Signal::SIGSTOP).unwrap();
        while let Ok(sequence) = acknowledged.recv_timeout(Duration::from_millis(200)) {
            last = sequence;
        }
        let copy = folder.path().join(format!("copy{round}"));
        command("cp", &["--sparse=always", image.to_str().unwrap(), copy.to_str().unwrap()]);
        kill(Pid::from_raw(child.0.id() as i32), Signal::SIGCONT).unwrap();

        let after = Mounted::new(&copy, &folder.path().join(format!("after{round}")));
        let store = open(&after.0.join("store"));
        let there = store.journal(0).unwrap().len() as u64;
        assert!(there >= last, "round {round}: {last} events were acknowledged, {there} are there");
        assert!(store.verify().is_sound());
        drop(store);
    }
    drop(child);
    reader.join().unwrap();
}

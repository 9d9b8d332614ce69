//! The whole of CUA-World, where its specs lie beside the project.

use std::path::Path;
use std::process::Command;

use longhaul_core::lint::Code;

use crate::benchmark::{Benchmark, Depth, Selection, select};

/// Where the specs are, if they are: not part of the project.
const SPECS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/cua-world/specs.tar.zst");

#[test]
fn the_whole_of_cua_world_is_read() {
    if !Path::new(SPECS).exists() {
        let note = "skipped: the specs of CUA-World are not beside the project";
        std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{note}\n")).unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let unpacked =
        Command::new("tar").args(["--zstd", "-xf", SPECS, "-C"]).arg(folder.path()).status().expect("tar can be run");
    assert!(unpacked.success());
    let benchmark = Benchmark::read(&folder.path().join("benchmarks/cua_world"), Depth::Checks).unwrap();
    let count = |code| benchmark.findings.iter().filter(|found| found.code == code).count();

    assert_eq!(benchmark.envs.len(), 250);
    assert_eq!(benchmark.envs.iter().filter(|env| env.file.ends_with("env.yaml")).count(), 1);
    assert!(benchmark.envs.iter().all(|env| env.spec.is_ok()), "no env is refused");
    assert_eq!(benchmark.counts.files, 13_185);
    assert_eq!(benchmark.counts.files - count(Code::JsonSyntax), 13_102, "those that are JSON");
    assert_eq!((benchmark.counts.loaded, benchmark.counts.refused), (13_099, 86));
    assert_eq!((count(Code::JsonSyntax), count(Code::NotATask)), (83, 3));
    assert_eq!(benchmark.splits["test"].len(), 2_472);
    assert_eq!(benchmark.splits["long_horizon"].len(), 201);
    assert_eq!((benchmark.splits["train"].len(), benchmark.splits["verified"].len()), (9_784, 7_150));
    assert_eq!((count(Code::DuplicateEnvId), count(Code::TaskIdMismatch)), (12, 2));
    assert_eq!((count(Code::NeedsWindows), count(Code::NeedsAndroid), count(Code::NeedsGpu)), (29, 11, 2));
    assert_eq!(count(Code::NoScripts), 250, "scripts are absent there by design");
    assert_eq!((count(Code::HookFileMissing), count(Code::VerifierMissing)), (0, 0));
    let broken = benchmark.findings.iter().filter(|found| found.code == Code::JsonSyntax);
    assert!(broken.clone().all(|found| found.line.is_some() && found.column.is_some()));

    let long = Selection { split: Some("long_horizon".to_owned()), ..Selection::default() };
    let long = select(&benchmark, &long).unwrap();
    // One is in the env whose tasks are a link to another's, and links are not in the archive.
    let gone: Vec<_> = long.refused.iter().map(|(name, _)| name.env.as_str()).collect();
    assert_eq!((long.tasks.len(), gone), (200, vec!["gimp_env_all_fast"]));
}

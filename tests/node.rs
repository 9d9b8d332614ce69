//! The node's program: what is linked into it, what it refuses, and that it needs nothing of the
//! system that it runs on but the kernel.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::command::{Ended, Longhaul};
use longhaul_tests::leftovers;
use longhaul_tests::older::{HOSTNAME, OlderRoot};
use longhaul_tests::place::Place;

/// Whether a file has a text in it.
fn holds(file: &[u8], text: &[u8]) -> bool {
    file.windows(text.len()).any(|window| window == text)
}

/// Whether the kernel has to start another program to load this one.
fn wants_a_loader(elf: &[u8]) -> Result<bool> {
    const INTERPRETER: u32 = 3;
    ensure!(elf.starts_with(b"\x7fELF\x02\x01"), "no 64 bit program of this machine");
    let number = |at: usize| -> Result<usize> {
        let bytes = elf.get(at..at + 2).context("it is cut off")?;
        Ok(usize::from(bytes[0]) | usize::from(bytes[1]) << 8)
    };
    let headers = usize::try_from(u64::from_le_bytes(elf[0x20..0x28].try_into()?))?;
    let (size, count) = (number(0x36)?, number(0x38)?);
    for index in 0..count {
        let at = headers + index * size;
        let kind = elf.get(at..at + 4).context("it is cut off")?;
        if u32::from_le_bytes(kind.try_into()?) == INTERPRETER {
            return Ok(true);
        }
    }
    Ok(false)
}

#[test]
fn the_nodes_program_is_one_static_file_without_the_store() -> Result<()> {
    let place = Place::new("node-file")?;
    let whole = std::fs::read(place.its_program())?;
    let node = std::fs::read(place.node_program())?;
    ensure!(holds(&whole, b"rocksdb"), "the store cannot be told by its name any more");
    ensure!(!holds(&node, b"rocksdb"), "the store is linked into the node's program");
    for (name, file) in [("longhaul", &whole), ("longhaul-node", &node)] {
        ensure!(!wants_a_loader(file)?, "{name} is linked dynamically");
    }
    Ok(())
}

#[test]
fn what_only_the_whole_program_does_is_refused_with_its_name() -> Result<()> {
    let place = Place::new("node-refuses")?;
    let node = |words: &[&str]| place.longhaul_at(&place.node_program(), words.iter().copied());
    // Settings that cannot be read are no reason to say anything else.
    let broken = place.settings("nothing = \"that is known\"\n")?;
    for words in [["run", "benchmark"], ["serve", "--slurm"], ["layers", "build"], ["layers", "prune"]] {
        let ended = node(&[&["--settings", &broken], &words[..]].concat()).end()?.expect_code(2)?;
        let text = ended.stderr();
        ensure!(text.contains("the node's program") && text.contains("use longhaul"), "{words:?}: {text}");
        let meant = if words[0] == "layers" { format!("`longhaul {}`", words.join(" ")) } else { words[0].to_owned() };
        ensure!(text.contains(&meant), "{words:?}: {text}");
    }
    let version = |ended: Ended| Ok(ended.expect_code(0)?.stdout().split_whitespace().last().map(str::to_owned));
    let of_node: Result<_> = version(node(&["--version"]).end()?);
    let of_whole: Result<_> = version(place.longhaul(["--version"]).end()?);
    ensure!(of_node? == of_whole?, "the two are of different versions");
    Ok(())
}

/// Older than any distribution: there is no library, no account and no tool, not even a shell.
#[test]
fn the_nodes_program_runs_in_a_root_that_has_nothing_else() -> Result<()> {
    let place = Place::new("node-root")?;
    let root = place.path("root");
    for folder in ["", "layers", "tmp"] {
        place.account().make_dir(&root.join(folder))?;
    }
    std::fs::copy(place.node_program(), root.join("longhaul-node"))?;
    place.account().give(&root.join("longhaul-node"))?;
    let inside = |words: &[&str]| -> Longhaul {
        let unshare = ["--user", "--map-root-user", "--root", &root.display().to_string(), "/longhaul-node"];
        let words = unshare.into_iter().chain(words.iter().copied()).map(str::to_owned).collect::<Vec<_>>();
        place.longhaul_at(Path::new("unshare"), words).env("HOME", "/tmp")
    };
    let version = inside(&["--version"]).end()?.expect_code(0)?;
    ensure!(version.stdout().starts_with("longhaul-node "), "{}", version.stdout());
    let layers = inside(&["layers", "ls", "--layers", "/layers", "--format", "json"]).json()?;
    ensure!(layers["folder"] == "/layers" && layers["layers"] == serde_json::json!([]), "{layers:#}");
    // It says what is missing, and does not fail for it.
    let doctor = inside(&["doctor", "--format", "json"]).end()?.expect_code(4)?.json()?;
    let checks = doctor["checks"].as_array().context("no checks")?;
    let apptainer = checks.iter().find(|check| check["name"] == "Apptainer").context("Apptainer is not looked for")?;
    ensure!(apptainer["outcome"] == "missing" && doctor["outcome"] == "missing", "{doctor:#}");
    Ok(())
}

/// Its C library, its FUSE programs, its shell: all of it older than what Longhaul is built on, but the kernel.
#[test]
fn a_worker_on_an_older_distribution_takes_an_episode_to_its_verdict() -> Result<()> {
    let place = Place::new("node-older")?;
    let root = OlderRoot::ready()?;
    let program = place.own_program()?;
    let release = root.run(&place, Path::new("/bin/cat"), ["/etc/debian_version"]).end()?.expect_code(0)?;
    ensure!(release.stdout().starts_with("11"), "it is not older: {}", release.stdout());
    let scratch = place.scratch().display().to_string();
    let doctor = root.run(&place, &program, ["doctor", "--scratch", &scratch, "--format", "json"]).json()?;
    ensure!(doctor["outcome"] != "missing", "{doctor:#}");

    let serving = place.serve(&[])?;
    let (access, benchmark) = (place.access().display().to_string(), place.benchmark().display().to_string());
    let worker = ["worker", "--coordinator", &access, "--scratch", &scratch, "--slots", "1"];
    let working = root.run(&place, &program, worker).start()?;
    let solver = place.agent("solver");
    let run = ["run", &*benchmark, "--task", "mousepad_env/change_setting", &*solver, "--coordinator", &*access];
    place.longhaul(run.into_iter().chain(["--fail-on-fault"])).end()?.expect_code(0)?;
    working.stop()?;
    serving.stop()?;

    let shown = place.show("latest/0")?;
    let attempts = shown["attempts"].as_array().context("no attempts")?;
    ensure!(shown["episode"]["state"] == "passed" && attempts.len() == 1, "{shown:#}");
    ensure!(attempts[0]["hostname"] == HOSTNAME, "it ran elsewhere: {shown:#}");
    place.expect_sound()?;
    leftovers::expect_nothing(place.root(), &place.scratch())
}

//! The units that the `systemctl` stand-in started. The stand-in is a script of the base
//! image; it and this module share a folder of plain files.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;

/// What the stand-in sets for every process that it starts.
pub(crate) const UNIT_VARIABLE: &str = "LONGHAUL_UNIT";

/// The stand-in's folder; emptied when a sandbox starts, since nothing runs then.
pub(crate) const UNITS_FOLDER: &str = "/run/longhaul-units";

/// The stand-in's program.
pub(crate) const SYSTEMCTL: &str = "/opt/longhaul/standin/systemctl";

/// The stand-in's lists in that folder.
pub(crate) const LISTS: [&str; 2] = ["started", "enabled"];

/// What the stand-in notes of a unit that runs.
#[derive(Debug, Deserialize)]
struct Noted {
    unit: String,
    /// Ids and start times of the processes that its start left running.
    #[serde(default)]
    pids: Vec<(i32, u64)>,
}

/// Processes by id and start time, and the unit that they were started for. Daemons clear
/// their environment and leave their session and parent: nothing in /proc tells of it.
pub(crate) fn processes(folder: &Path) -> HashMap<(i32, u64), String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
        // A file that is not whole belongs to a unit that is only starting.
        .filter_map(|path| serde_json::from_slice::<Noted>(&fs::read(path).ok()?).ok())
        .flat_map(|noted| noted.pids.into_iter().map(move |process| (process, noted.unit.clone())))
        .collect()
}

/// The units that were started and not stopped, in order, then those that were enabled
/// only: what a machine that boots would have running.
pub(crate) fn started(folder: &Path) -> Vec<String> {
    let mut units: Vec<String> = Vec::new();
    for file in LISTS {
        // Neither file is there until the stand-in is first used.
        let text = fs::read_to_string(folder.join(file)).unwrap_or_default();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if !units.iter().any(|unit| unit == line) {
                units.push(line.to_owned());
            }
        }
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noted_processes_are_found() {
        let folder = tempfile::tempdir().expect("folder");
        fs::write(folder.path().join("db.json"), r#"{"main": 7, "pids": [[7, 100], [8, 101]], "unit": "db.service"}"#)
            .expect("writes");
        fs::write(folder.path().join("torn.json"), "{").expect("writes");
        let found = processes(folder.path());
        assert_eq!(found.get(&(8, 101)).map(String::as_str), Some("db.service"));
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn units_come_in_order_and_once() {
        let folder = tempfile::tempdir().expect("folder");
        assert!(started(folder.path()).is_empty());
        fs::write(folder.path().join("started"), "db.service\nweb.service\n").expect("writes");
        fs::write(folder.path().join("enabled"), "web.service\ncron.service\n\n").expect("writes");
        assert_eq!(started(folder.path()), ["db.service", "web.service", "cron.service"]);
    }
}

//! The units that the `systemctl` stand-in started. The stand-in is a script of the base
//! image; it and this module share a folder of plain files.

use std::fs;
use std::path::Path;

/// What the stand-in sets for every process that it starts.
pub(crate) const UNIT_VARIABLE: &str = "LONGHAUL_UNIT";

/// The stand-in's folder; emptied when a sandbox starts, since nothing runs then.
pub(crate) const UNITS_FOLDER: &str = "/run/longhaul-units";

/// The stand-in's program.
pub(crate) const SYSTEMCTL: &str = "/opt/longhaul/standin/systemctl";

/// The stand-in's lists in that folder.
pub(crate) const LISTS: [&str; 2] = ["started", "enabled"];

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
    fn units_come_in_order_and_once() {
        let folder = tempfile::tempdir().expect("folder");
        assert!(started(folder.path()).is_empty());
        fs::write(folder.path().join("started"), "db.service\nweb.service\n").expect("writes");
        fs::write(folder.path().join("enabled"), "web.service\ncron.service\n\n").expect("writes");
        assert_eq!(started(folder.path()), ["db.service", "web.service", "cron.service"]);
    }
}

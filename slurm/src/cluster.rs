//! Which version of Slurm it is, and the settings of the cluster that matter here.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::records::Malformed;

/// A version of Slurm. The order is that of the releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The year.
    pub major: u32,
    /// The month.
    pub minor: u32,
    /// The release of that month.
    pub micro: u32,
}

impl Version {
    /// Reads `slurm 24.11.5`, whatever a packager calls it.
    pub(crate) fn parse(program: &'static str, answer: &str) -> Result<Self, Malformed> {
        let parse = || {
            let text = answer.split_whitespace().nth(1)?;
            let mut parts = text.split(['.', '-']);
            let mut part = || parts.next()?.parse::<u32>().ok();
            Some(Self { major: part()?, minor: part()?, micro: part().unwrap_or(0) })
        };
        parse().ok_or_else(|| Malformed { program, reason: format!("{answer:?} is no version") })
    }

    /// Whether the JSON of `squeue` can be used: from the first version on in which it was
    /// seen to obey filters.
    pub(crate) fn has_good_json(self) -> bool {
        (self.major, self.minor) >= (24, 11)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}.{}", self.major, self.minor, self.micro)
    }
}

/// Settings of a cluster; `None` where it does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Its name.
    pub name: Option<String>,
    /// How long processes have between TERM and KILL.
    pub kill_wait: Option<Duration>,
    /// How long the controller remembers a job that ended.
    pub min_job_age: Option<Duration>,
    /// How long the controller and its clients wait for each other.
    pub message_timeout: Option<Duration>,
    /// An index of an array is below this.
    pub max_array_size: Option<u32>,
    /// The most jobs that the controller holds, of all users; each element of an array counts.
    pub max_job_count: Option<u32>,
    /// Whether jobs are started again after the loss of their node, unless they say otherwise.
    pub job_requeue: Option<bool>,
    /// Whether there is accounting.
    pub accounting: Option<bool>,
    /// What becomes of a job that is preempted: `OFF`, `REQUEUE`, `CANCEL`, ...
    pub preempt_mode: Option<String>,
    /// Whether a job that is to be preempted gets its warning signal (`--signal`) first.
    pub preempt_sends_signal: bool,
}

impl ClusterConfig {
    /// Reads the answer of `scontrol show config`.
    pub(crate) fn parse(answer: &str) -> Self {
        let settings: BTreeMap<&str, &str> = answer
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.trim(), value.trim()))
            .collect();
        let get = |name: &str| settings.get(name).copied().filter(|value| !matches!(*value, "" | "(null)"));
        let number = |name: &str| get(name).and_then(|value| value.split(' ').next()?.parse::<u32>().ok());
        let seconds = |name: &str| number(name).map(|seconds| Duration::from_secs(seconds.into()));
        Self {
            name: get("ClusterName").map(str::to_owned),
            kill_wait: seconds("KillWait"),
            min_job_age: seconds("MinJobAge"),
            message_timeout: seconds("MessageTimeout"),
            max_array_size: number("MaxArraySize"),
            max_job_count: number("MaxJobCount"),
            job_requeue: number("JobRequeue").map(|value| value > 0),
            // Without one, newer versions say `(null)`.
            accounting: settings
                .get("AccountingStorageType")
                .map(|kind| !matches!(*kind, "" | "(null)" | "accounting_storage/none")),
            preempt_mode: get("PreemptMode").map(str::to_owned),
            preempt_sends_signal: get("SlurmctldParameters").is_some_and(|value| {
                value.split(',').any(|word| word.trim().eq_ignore_ascii_case("preempt_send_user_signal"))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        let parse = |text| Version::parse("sinfo", text);
        assert_eq!(parse("slurm-wlm 22.05.8\n"), Ok(Version { major: 22, minor: 5, micro: 8 }));
        assert_eq!(parse("slurm 24.11.0-0rc2\n").map(|version| version.to_string()), Ok("24.11.0".to_owned()));
        assert!(parse("slurm 23.11.9").unwrap() < parse("slurm 24.05.1").unwrap());
        for (text, good) in
            [("slurm 22.05.8", false), ("slurm 24.05.4", false), ("slurm 24.11.5", true), ("slurm 26.05.5", true)]
        {
            assert_eq!(parse(text).unwrap().has_good_json(), good, "{text}");
        }
        for text in ["", "slurm", "slurm x.y", "slurm 22"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_settings_of_22_05_are_read() {
        let expected = ClusterConfig {
            name: Some("test".to_owned()),
            kill_wait: Some(Duration::from_secs(5)),
            min_job_age: Some(Duration::from_secs(300)),
            message_timeout: Some(Duration::from_secs(5)),
            max_array_size: Some(10_001),
            max_job_count: Some(20_000),
            job_requeue: Some(true),
            accounting: Some(true),
            preempt_mode: Some("REQUEUE".to_owned()),
            preempt_sends_signal: false,
        };
        assert_eq!(ClusterConfig::parse(include_str!("../tests/fixtures/22.05/config.txt")), expected);
        let signalled = ClusterConfig::parse("SlurmctldParameters = idle_on_node_suspend,preempt_send_user_signal");
        assert!(signalled.preempt_sends_signal);
        for none in ["(null)", "accounting_storage/none"] {
            let without = ClusterConfig::parse(&format!("AccountingStorageType = {none}\nClusterName = (null)"));
            assert_eq!((without.accounting, without.name), (Some(false), None));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>) {
            let text = String::from_utf8_lossy(&bytes);
            let _ = (ClusterConfig::parse(&text), Version::parse("sinfo", &text));
        }
    }
}

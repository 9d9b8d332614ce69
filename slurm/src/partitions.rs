//! What the partitions of a cluster offer.

use std::time::Duration;

use crate::queue::text;
use crate::records::{self, Malformed};
use crate::time;

const PROGRAM: &str = "sinfo";

/// In the order of the destructuring in [`parse`].
const FIELDS: [&str; 11] = [
    "Partition",
    "Available",
    "Time",
    "DefaultTime",
    "PreemptMode",
    "Nodes",
    "StateLong",
    "CPUs",
    "Memory",
    "Gres",
    "Features",
];

/// A partition: its limits, and its nodes in groups of equal ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its name.
    pub name: String,
    /// Whether jobs that name none go there.
    pub is_default: bool,
    /// Whether it takes jobs.
    pub is_up: bool,
    /// The longest that a job may run; none without a limit.
    pub max_time: Option<Duration>,
    /// How long a job runs that does not say; none if that is the longest.
    pub default_time: Option<Duration>,
    /// What becomes of a job of it that is preempted: `OFF`, `REQUEUE`, `CANCEL`, ...
    pub preempt_mode: String,
    /// Its nodes.
    pub groups: Vec<NodeGroup>,
}

/// Nodes of a partition that are alike and in the same state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeGroup {
    /// How many.
    pub nodes: u32,
    /// What they do.
    pub state: NodeState,
    /// Processors of each; of the smallest, where Slurm shows several as one group.
    pub cpus: u32,
    /// Memory of each, in MiB; the same.
    pub memory_mib: u64,
    /// Devices, as `gpu:4`.
    pub gres: Option<String>,
    /// What `--constraint` may ask for.
    pub features: Vec<String>,
}

/// What a node does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Nothing.
    Idle,
    /// Some of it is in use.
    Mixed,
    /// All of it is in use.
    Allocated,
    /// A job on it ends.
    Completing,
    /// It takes no new job, now or for longer; in Slurm's words.
    Away(String),
}

impl NodeState {
    fn parse(text: &str) -> Self {
        match text {
            // Powered down: woken for a job.
            "idle" | "idle~" | "idle#" | "powered_down" | "powering_up" => Self::Idle,
            "mixed" => Self::Mixed,
            "allocated" | "allocated+" => Self::Allocated,
            "completing" => Self::Completing,
            // With `*` it does not answer.
            other => Self::Away(other.to_owned()),
        }
    }
}

impl Partition {
    /// How many of its nodes can run a job now or once those there have ended.
    #[must_use]
    pub fn usable_nodes(&self) -> u32 {
        let usable = |group: &&NodeGroup| !matches!(group.state, NodeState::Away(_));
        self.groups.iter().filter(usable).fold(0, |sum, group| sum.saturating_add(group.nodes))
    }
}

/// What `sinfo` is asked. A site may hide a partition that jobs are sent to all the same.
pub(crate) fn arguments(separator: &str) -> Vec<String> {
    let format = format!("--Format={}", records::format_argument(&FIELDS, separator));
    ["--noheader", "--all"].map(str::to_owned).into_iter().chain([format]).collect()
}

/// Reads the answer: a line for each group of nodes, gathered into partitions.
pub(crate) fn parse(answer: &str, separator: &str) -> Result<Vec<Partition>, Malformed> {
    let mut partitions: Vec<Partition> = Vec::new();
    for record in records::split::<{ FIELDS.len() }>(PROGRAM, answer, separator)? {
        let [name, available, max_time, default_time, preempt_mode, nodes, state, cpus, memory, gres, features] =
            record;
        let (name, is_default) = match name.strip_suffix('*') {
            Some(name) => (name, true),
            None => (name, false),
        };
        let at = partitions.iter().position(|partition| partition.name == name).unwrap_or_else(|| {
            partitions.push(Partition {
                name: name.to_owned(),
                is_default,
                is_up: available == "up",
                max_time: time::duration(max_time),
                default_time: time::duration(default_time),
                preempt_mode: preempt_mode.to_owned(),
                groups: Vec::new(),
            });
            partitions.len() - 1
        });
        let wrong = || Malformed { program: PROGRAM, reason: format!("{record:?} describes no nodes") };
        let nodes = number(nodes).and_then(|nodes| u32::try_from(nodes).ok()).ok_or_else(wrong)?;
        // A partition without nodes has a line as well.
        if nodes == 0 {
            continue;
        }
        partitions[at].groups.push(NodeGroup {
            nodes,
            state: NodeState::parse(state),
            cpus: number(cpus).and_then(|cpus| u32::try_from(cpus).ok()).ok_or_else(wrong)?,
            memory_mib: number(memory).ok_or_else(wrong)?,
            gres: text(gres),
            features: text(features)
                .map(|features| features.split(',').map(str::to_owned).collect())
                .unwrap_or_default(),
        });
    }
    Ok(partitions)
}

/// `8`, or `8+` for nodes of which the smallest has 8.
fn number(text: &str) -> Option<u64> {
    text.strip_suffix('+').unwrap_or(text).parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SEPARATOR: &str = "~0000000000000007~";

    #[test]
    fn the_answer_of_22_05_is_read() {
        let partitions = parse(include_str!("../tests/fixtures/22.05/sinfo.txt"), SEPARATOR).unwrap();
        insta::assert_debug_snapshot!(partitions);
        assert_eq!(partitions[0].usable_nodes(), 2);
    }

    #[test]
    fn limits_groups_and_nodes_that_are_away_are_read() {
        let line = |fields: [&str; 11]| fields.map(|field| format!("{field}{SEPARATOR}")).concat() + "\n";
        let answer =
            line(["gpu*", "up", "2-00:00:00", "n/a", "OFF", "3", "idle", "64+", "500000+", "gpu:4(S:0-1)", "a,b"])
                + &line(["gpu*", "up", "2-00:00:00", "n/a", "OFF", "1", "down*", "64", "500000", "(null)", "(null)"])
                + &line(["empty", "inact", "infinite", "1:00:00", "REQUEUE", "0", "n/a", "0", "0", "(null)", "(null)"]);
        let partitions = parse(&answer, SEPARATOR).unwrap();
        assert_eq!(partitions.len(), 2);
        let gpu = &partitions[0];
        assert!(gpu.is_default && gpu.is_up);
        assert_eq!((gpu.max_time, gpu.default_time), (Some(Duration::from_secs(172_800)), None));
        assert_eq!(gpu.usable_nodes(), 3);
        assert_eq!((gpu.groups[0].cpus, gpu.groups[0].memory_mib), (64, 500_000));
        assert_eq!(gpu.groups[0].features, ["a", "b"]);
        assert_eq!(gpu.groups[1].state, NodeState::Away("down*".to_owned()));
        let empty = &partitions[1];
        assert_eq!((empty.is_default, empty.is_up, empty.max_time, empty.groups.len()), (false, false, None, 0));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = parse(&String::from_utf8_lossy(&bytes), SEPARATOR);
        }

        #[test]
        fn any_fields_are_read_or_refused(fields in proptest::collection::vec("[-0-9a-z:+*~]{0,24}", FIELDS.len())) {
            let answer = fields.iter().map(|field| format!("{field}{SEPARATOR}")).collect::<String>() + "\n";
            let _ = parse(&answer, SEPARATOR);
        }
    }
}

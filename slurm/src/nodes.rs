//! Nodes that were drained: Slurm starts nothing there any more, and lets what runs there run on.

use crate::queue::text;
use crate::records::{self, Malformed};

const PROGRAM: &str = "sinfo";

/// In the order of the destructuring in [`parse`].
const FIELDS: [&str; 2] = ["NodeList", "Reason"];

/// A node that takes no new job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DrainedNode {
    /// Its name, as `SLURMD_NODENAME` has it on the node.
    pub name: String,
    /// Why, in the words of whoever drained it; none if there are none.
    pub reason: Option<String>,
}

/// What `sinfo` is asked: a line for each node in each of its partitions, of hidden ones too.
pub(crate) fn arguments(separator: &str) -> Vec<String> {
    let format = format!("--Format={}", records::format_argument(&FIELDS, separator));
    ["--noheader", "--all", "--Node", "--states=drain"].map(str::to_owned).into_iter().chain([format]).collect()
}

/// Reads the answer; each node once.
pub(crate) fn parse(answer: &str, separator: &str) -> Result<Vec<DrainedNode>, Malformed> {
    let records = records::split::<{ FIELDS.len() }>(PROGRAM, answer, separator)?;
    let mut nodes: Vec<DrainedNode> =
        records.into_iter().map(|[name, reason]| DrainedNode { name: name.to_owned(), reason: text(reason) }).collect();
    nodes.sort_unstable();
    nodes.dedup();
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SEPARATOR: &str = "~0000000000000007~";

    #[test]
    fn a_node_is_told_once_with_its_reason_whatever_that_says() {
        let line = |name: &str, reason: &str| format!("{name}{SEPARATOR}{reason}{SEPARATOR}\n");
        let answer = line("node2", "disk ~ 1\n2|") + &line("node1", "none") + &line("node2", "disk ~ 1\n2|");
        let node =
            |name: &str, reason: Option<&str>| DrainedNode { name: name.to_owned(), reason: reason.map(str::to_owned) };
        assert_eq!(parse(&answer, SEPARATOR), Ok(vec![node("node1", None), node("node2", Some("disk ~ 1\n2|"))]));
        assert_eq!(parse("", SEPARATOR), Ok(Vec::new()), "none is drained");
        assert!(parse("node1 drained\n", SEPARATOR).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = parse(&String::from_utf8_lossy(&bytes), SEPARATOR);
        }
    }
}

//! Why a question to Slurm has no answer, told apart by what is to be done about it.

use crate::commands::{Output, RunError};
use crate::records::Malformed;

/// A question without an answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The program could not be run to its end.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A signal ended the program.
    #[error("{program} was killed")]
    Killed {
        /// Which one.
        program: &'static str,
    },
    /// There is no cluster here: Slurm's programs find no settings.
    #[error("{program} finds no cluster: {message}")]
    NoCluster {
        /// Who said so.
        program: &'static str,
        /// In its words.
        message: String,
    },
    /// The controller is away, or did not answer in time.
    #[error("{program} cannot reach the controller: {message}")]
    Unreachable {
        /// Who said so.
        program: &'static str,
        /// In its words.
        message: String,
    },
    /// The controller asks for fewer questions.
    #[error("{program} is asked to wait: {message}")]
    RateLimited {
        /// Who said so.
        program: &'static str,
        /// In its words.
        message: String,
    },
    /// Slurm will not do it, and asking again changes nothing.
    #[error("{program} refuses: {message}")]
    Rejected {
        /// Who said so.
        program: &'static str,
        /// What it does not like.
        rejection: Rejection,
        /// In its words.
        message: String,
    },
    /// The answer cannot be read.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// What Slurm does not like in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejection {
    /// No such partition, it is not up, or not open to this user.
    Partition,
    /// No such account, or it may not use this partition.
    Account,
    /// No such quality of service, or not for this user.
    Qos,
    /// The time limit is missing, wrong or too long.
    TimeLimit,
    /// No node is like that: too many processors, too much memory, wrong features or devices.
    Nodes,
    /// As many jobs as may be submitted are; later there may be room.
    SubmitLimit,
    /// Another limit of the site.
    Policy,
    /// The array has too many elements, or a wrong index.
    Array,
    /// No such reservation, or not for this user.
    Reservation,
    /// An option or value that this version does not know.
    Option,
    /// There is no such job any more.
    UnknownJob,
    /// This user may not.
    Permission,
    /// Something else; see the message.
    Other,
}

impl Failure {
    /// Whether the same question may be answered later, with nothing changed by anybody.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Run(RunError::TimedOut { .. })
            | Self::Killed { .. }
            | Self::Unreachable { .. }
            | Self::RateLimited { .. } => true,
            Self::Rejected { rejection, .. } => *rejection == Rejection::SubmitLimit,
            Self::Run(_) | Self::NoCluster { .. } | Self::Malformed(_) => false,
        }
    }

    /// Reads what a program said that ended with a failure.
    pub(crate) fn read(program: &'static str, output: &Output) -> Self {
        let Some(code) = output.code else { return Self::Killed { program } };
        // `sacct` says some of it on stdout.
        let said = if output.stderr.trim().is_empty() { &output.stdout } else { &output.stderr };
        let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
        let message = message(said, code);
        if has(&NO_CLUSTER) {
            return Self::NoCluster { program, message };
        }
        if has(&RATE_LIMITED) {
            return Self::RateLimited { program, message };
        }
        if has(&UNREACHABLE) {
            return Self::Unreachable { program, message };
        }
        let rejection = REJECTIONS.iter().find(|(words, _)| has(words));
        Self::Rejected { program, rejection: rejection.map_or(Rejection::Other, |(_, rejection)| *rejection), message }
    }
}

/// The lines of a program, without its name and what every line has in common.
fn message(said: &str, code: i32) -> String {
    const MOST: usize = 2000;
    let line = |line: &str| {
        let line = line.trim();
        let line =
            line.split_once(": error: ").filter(|(program, _)| !program.contains(' ')).map_or(line, |(_, rest)| rest);
        line.strip_prefix("Batch job submission failed: ").unwrap_or(line).to_owned()
    };
    let mut message = said.lines().map(line).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    if let Some((end, _)) = message.char_indices().nth(MOST) {
        message.truncate(end);
    }
    if message.is_empty() { format!("it ended with {code} and said nothing") } else { message }
}

const NO_CLUSTER: [&str; 2] = ["Could not establish a configuration source", "Unable to process configuration file"];

const RATE_LIMITED: [&str; 2] = ["Rate limit exceeded", "RPC limit exceeded"];

/// A send or receive that failed may have reached the controller all the same.
const UNREACHABLE: [&str; 7] = [
    "Unable to contact slurm controller",
    "Socket timed out on send/recv operation",
    "Connection timed out",
    "Slurm backup controller in standby mode",
    "Connection refused",
    "slurm_persist_conn_open",
    "Message receive failure",
];

/// The first that fits counts: the narrower come first.
const REJECTIONS: [(&[&str], Rejection); 12] = [
    (
        &["MaxSubmitJob", "MaxJobCount limit reached", "MaxJobCount", "Slurm temporarily unable to accept job"],
        Rejection::SubmitLimit,
    ),
    (&["nvalid job id"], Rejection::UnknownJob),
    (
        &[
            "nvalid partition",
            "No partition specified",
            "not permitted to use this partition",
            "Required partition not available",
        ],
        Rejection::Partition,
    ),
    (&["nvalid account", "InvalidAccount"], Rejection::Account),
    (&["nvalid qos", "InvalidQOS"], Rejection::Qos),
    (&["time limit is invalid", "nvalid --time", "MaxWallDuration", "PartitionTimeLimit"], Rejection::TimeLimit),
    (&["nvalid job array", "nvalid --array"], Rejection::Array),
    (&["reservation is invalid", "to requested reservation", "nvalid reservation"], Rejection::Reservation),
    (
        &[
            "node configuration is not available",
            "nvalid feature",
            "nvalid generic resource",
            "Memory specification can not be satisfied",
            "More processors requested than permitted",
            "CPU count specification invalid",
            "nvalid node name",
            "Node count specification invalid",
            "Requested nodes not in this partition",
        ],
        Rejection::Nodes,
    ),
    (&["violates accounting/QOS policy", "QOS usage threshold", "Limit"], Rejection::Policy),
    (&["Access/permission denied", "nvalid user id", "Protocol authentication error"], Rejection::Permission),
    (
        &["unrecognized option", "invalid option", "requires an argument", "ambiguous", "nvalid --", "specification"],
        Rejection::Option,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn rejection(stderr: &str) -> Rejection {
        let output = Output { code: Some(1), stdout: String::new(), stderr: stderr.to_owned() };
        match Failure::read("sbatch", &output) {
            Failure::Rejected { rejection, .. } => rejection,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_clusters_really_said_is_told_apart() {
        for (stderr, expected) in [
            (
                "sbatch: error: invalid partition specified: nope\n\
                 sbatch: error: Batch job submission failed: Invalid partition name specified\n",
                Rejection::Partition,
            ),
            (
                "sbatch: error: invalid partition specified: nope\nallocation failure: Invalid partition name specified\n",
                Rejection::Partition,
            ),
            (
                "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified\n",
                Rejection::Account,
            ),
            ("sbatch: error: Batch job submission failed: Invalid qos specification\n", Rejection::Qos),
            (
                "sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)\n",
                Rejection::TimeLimit,
            ),
            ("sbatch: error: Invalid --time specification\n", Rejection::TimeLimit),
            (
                "sbatch: error: Memory specification can not be satisfied\n\
                 sbatch: error: Batch job submission failed: Requested node configuration is not available\n",
                Rejection::Nodes,
            ),
            ("sbatch: error: Batch job submission failed: Invalid feature specification\n", Rejection::Nodes),
            ("sbatch: error: Invalid generic resource (gres) specification\n", Rejection::Nodes),
            ("sbatch: error: Batch job submission failed: Invalid job array specification\n", Rejection::Array),
            ("sbatch: error: Batch job submission failed: Requested reservation is invalid\n", Rejection::Reservation),
            (
                "sbatch: error: QOSMaxSubmitJobPerUserLimit\n\
                 sbatch: error: Batch job submission failed: Job violates accounting/QOS policy \
                 (job submit limit, user's size and/or time limits)\n",
                Rejection::SubmitLimit,
            ),
            ("sbatch: error: Batch job submission failed: MaxJobCount limit reached\n", Rejection::SubmitLimit),
            (
                "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy \
                 (job submit limit, user's size and/or time limits)\n",
                Rejection::Policy,
            ),
            ("sbatch: unrecognized option '--foo'\nTry \"sbatch --help\" for more information\n", Rejection::Option),
            ("scancel: error: Kill job error on job id 999: Invalid job id specified\n", Rejection::UnknownJob),
            ("scancel: error: Kill job error on job id 9: Access/permission denied\n", Rejection::Permission),
            ("sbatch: error: Batch job submission failed: Protocol authentication error\n", Rejection::Permission),
            ("sbatch: error: the site says no\n", Rejection::Other),
        ] {
            assert_eq!(rejection(stderr), expected, "{stderr}");
        }
    }

    #[test]
    fn a_controller_that_is_away_or_asks_for_patience_is_told_from_a_refusal() {
        let read = |stderr: &str| {
            Failure::read("squeue", &Output { code: Some(1), stdout: String::new(), stderr: stderr.to_owned() })
        };
        for stderr in [
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)\n",
            "slurm_load_jobs error: Socket timed out on send/recv operation\n",
        ] {
            let failure = read(stderr);
            assert!(matches!(failure, Failure::Unreachable { .. }) && failure.is_transient(), "{failure:?}");
        }
        let failure = read("slurm_load_jobs error: Rate limit exceeded, please retry momentarily\n");
        assert!(matches!(failure, Failure::RateLimited { .. }) && failure.is_transient(), "{failure:?}");
        let failure = read("squeue: fatal: Could not establish a configuration source\n");
        assert!(matches!(failure, Failure::NoCluster { .. }) && !failure.is_transient(), "{failure:?}");
    }

    #[test]
    fn the_message_is_what_was_said_and_no_longer_than_somebody_reads() {
        let read = |stderr: &str, code| {
            Failure::read("sbatch", &Output { code, stdout: String::new(), stderr: stderr.to_owned() }).to_string()
        };
        assert_eq!(
            read("sbatch: error: QOSMax\nsbatch: error: Batch job submission failed: no\n", Some(1)),
            "sbatch refuses: QOSMax; no"
        );
        assert_eq!(read("", Some(1)), "sbatch refuses: it ended with 1 and said nothing");
        assert_eq!(read("", None), "sbatch was killed");
        assert!(read(&"ü".repeat(9000), Some(1)).len() < 5000);
    }
}

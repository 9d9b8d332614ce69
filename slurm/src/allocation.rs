//! An allocation, as a process inside it finds it described in its environment.

use std::path::PathBuf;

use crate::script::TOKEN_VARIABLE;
use crate::token::Token;

/// The place of an allocation in an array of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayTask {
    /// The id that the whole array has.
    pub array_job: String,
    /// The index in the array.
    pub index: u32,
}

/// What Slurm gave to this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The submission that it belongs to; none if it was not Longhaul that asked for it.
    pub token: Option<Token>,
    /// The id of the allocation; an element of an array has one of its own.
    pub job_id: String,
    /// Its place in an array, if it is in one.
    pub array: Option<ArrayTask>,
    /// How often Slurm started it again: with [`Self::job_id`] it tells two lives of one
    /// allocation apart.
    pub restarts: u32,
    /// The node's name in Slurm.
    pub node: Option<String>,
    /// Processors that this process may use on this node.
    pub cpus: Option<u32>,
    /// Memory that it may use on this node, in MiB; none if Slurm sets no limit.
    pub memory_mib: Option<u64>,
    /// The folder for files that end with the allocation, where the site makes one. `TMPDIR` is
    /// not it: Slurm sets that to `/tmp`, which is everybody's.
    pub tmp: Option<PathBuf>,
    /// When the allocation ends, in seconds since the Unix epoch; 22.05 and older do not say.
    pub ends_at: Option<u64>,
}

/// A variable of Slurm's that does not hold what it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value:?} is not {expected}")]
pub struct ParseError {
    /// The variable.
    pub variable: &'static str,
    /// What it holds.
    pub value: String,
    /// What it should hold.
    pub expected: &'static str,
}

impl Allocation {
    /// Reads the environment through `var`; `None` outside of an allocation.
    ///
    /// The narrower limit wins: `srun --cpus-per-task` bounds a step within the
    /// allocation's share of the node. A memory of 0 is Slurm's way to say the whole node.
    ///
    /// # Errors
    ///
    /// A variable is set to something that Slurm would not put there.
    pub fn parse(var: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, ParseError> {
        let var = |name: &'static str| var(name).filter(|value| !value.is_empty());
        let Some(job_id) = var("SLURM_JOB_ID") else { return Ok(None) };
        let array = match (var("SLURM_ARRAY_JOB_ID"), number(&var, "SLURM_ARRAY_TASK_ID")?) {
            (Some(array_job), Some(index)) => Some(ArrayTask { array_job, index }),
            _ => None,
        };
        let token = var(TOKEN_VARIABLE)
            .map(|value| {
                let expected = "the token of a submission";
                value.parse().map_err(|_| ParseError { variable: TOKEN_VARIABLE, value, expected })
            })
            .transpose()?;
        let on_node: Option<u32> = number(&var, "SLURM_CPUS_ON_NODE")?;
        let per_task: Option<u32> = number(&var, "SLURM_CPUS_PER_TASK")?;
        let cpus = match (on_node, per_task) {
            (Some(on_node), Some(per_task)) => Some(on_node.min(per_task)),
            (one, other) => one.or(other),
        };
        let per_node: Option<u64> = number(&var, "SLURM_MEM_PER_NODE")?;
        let per_cpu: Option<u64> = number(&var, "SLURM_MEM_PER_CPU")?;
        let memory_mib = match (per_node, per_cpu) {
            (Some(memory), _) => Some(memory),
            // What it counts is the node's share of the allocation, not the step's.
            (None, Some(memory)) => on_node.map(|cpus| memory.saturating_mul(u64::from(cpus))),
            (None, None) => None,
        };
        Ok(Some(Self {
            token,
            job_id,
            array,
            restarts: number(&var, "SLURM_RESTART_COUNT")?.unwrap_or(0),
            node: var("SLURMD_NODENAME"),
            cpus,
            memory_mib: memory_mib.filter(|memory| *memory > 0),
            tmp: var("SLURM_TMPDIR").map(PathBuf::from),
            ends_at: number(&var, "SLURM_JOB_END_TIME")?,
        }))
    }
}

fn number<T: std::str::FromStr>(
    var: &impl Fn(&'static str) -> Option<String>,
    variable: &'static str,
) -> Result<Option<T>, ParseError> {
    var(variable)
        .map(|value| value.parse().map_err(|_| ParseError { variable, value, expected: "a whole number" }))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Owner;

    /// What is tried, the variables, and what they say.
    type Case = (&'static str, &'static [(&'static str, &'static str)], Allocation);

    fn parse(pairs: &[(&str, &str)]) -> Result<Option<Allocation>, ParseError> {
        Allocation::parse(|name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    fn bare(job_id: &str) -> Allocation {
        Allocation {
            token: None,
            job_id: job_id.to_owned(),
            array: None,
            restarts: 0,
            node: None,
            cpus: None,
            memory_mib: None,
            tmp: None,
            ends_at: None,
        }
    }

    #[test]
    fn outside_of_an_allocation_there_is_none() {
        assert_eq!(parse(&[]), Ok(None));
        assert_eq!(parse(&[("SLURM_JOB_ID", ""), ("SLURM_CPUS_ON_NODE", "x")]), Ok(None));
    }

    #[test]
    fn the_environment_of_a_batch_script_is_read() {
        let cases: &[Case] = &[
            ("nothing but an id", &[("SLURM_JOB_ID", "7")], bare("7")),
            (
                "memory per node",
                &[
                    ("SLURM_JOB_ID", "7"),
                    ("SLURMD_NODENAME", "n01"),
                    ("SLURM_CPUS_ON_NODE", "32"),
                    ("SLURM_MEM_PER_NODE", "65536"),
                    ("SLURM_TMPDIR", "/scratch/7"),
                    ("SLURM_JOB_END_TIME", "1700000000"),
                ],
                Allocation {
                    node: Some("n01".to_owned()),
                    cpus: Some(32),
                    memory_mib: Some(65_536),
                    tmp: Some(PathBuf::from("/scratch/7")),
                    ends_at: Some(1_700_000_000),
                    ..bare("7")
                },
            ),
            (
                "memory per cpu counts the node's share, not the step's",
                &[
                    ("SLURM_JOB_ID", "7"),
                    ("SLURM_CPUS_ON_NODE", "8"),
                    ("SLURM_CPUS_PER_TASK", "4"),
                    ("SLURM_MEM_PER_CPU", "2000"),
                ],
                Allocation { cpus: Some(4), memory_mib: Some(16_000), ..bare("7") },
            ),
            ("a memory of 0 is the whole node", &[("SLURM_JOB_ID", "7"), ("SLURM_MEM_PER_NODE", "0")], bare("7")),
            (
                "an array element that was requeued twice",
                &[
                    ("SLURM_JOB_ID", "12"),
                    ("SLURM_ARRAY_JOB_ID", "10"),
                    ("SLURM_ARRAY_TASK_ID", "2"),
                    ("SLURM_RESTART_COUNT", "2"),
                    ("LONGHAUL_ALLOCATION", "longhaul.c0ffee.000000000000001f"),
                ],
                Allocation {
                    token: Some(Token::new(Owner::new("c0ffee").unwrap(), 0x1f)),
                    array: Some(ArrayTask { array_job: "10".to_owned(), index: 2 }),
                    restarts: 2,
                    ..bare("12")
                },
            ),
        ];
        for (what, pairs, expected) in cases {
            assert_eq!(parse(pairs), Ok(Some(expected.clone())), "{what}");
        }
    }

    #[test]
    fn a_value_that_slurm_would_not_set_is_named() {
        let error = parse(&[("SLURM_JOB_ID", "7"), ("SLURM_CPUS_ON_NODE", "many")]);
        assert_eq!(
            error.map_err(|error| error.to_string()),
            Err("SLURM_CPUS_ON_NODE=\"many\" is not a whole number".to_owned())
        );
        let error = parse(&[("SLURM_JOB_ID", "7"), ("LONGHAUL_ALLOCATION", "mine")]);
        assert_eq!(
            error.map_err(|error| error.to_string()),
            Err("LONGHAUL_ALLOCATION=\"mine\" is not the token of a submission".to_owned())
        );
    }
}

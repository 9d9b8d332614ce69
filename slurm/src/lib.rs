//! What Slurm says, parsed. Pure: what a process found in its environment is passed in.

mod allocation;

pub use allocation::{Allocation, ArrayTask, ParseError};

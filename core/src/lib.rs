//! What things are: ids, specs, actions, steps, verdicts and faults.
//!
//! Pure: no files, no clocks, no randomness, no runtime. Whatever depends on those
//! takes them as arguments, so that everything here can be tested by value.

pub mod action;
pub mod agent;
pub mod budget;
pub mod call;
pub mod digest;
pub mod endpoint;
pub mod functions;
pub mod helper;
pub mod hidden;
pub mod ids;
pub mod imported;
pub mod judge;
pub mod lint;
pub mod measure;
pub mod money;
pub mod notes;
pub mod outcome;
pub mod plan;
pub mod price;
pub mod purse;
pub mod rate;
pub mod replicas;
pub mod resume;
pub mod rounds;
pub mod screen;
pub mod snapshot;
pub mod spec;
pub mod stats;
pub mod step;
pub mod text;
pub mod time;

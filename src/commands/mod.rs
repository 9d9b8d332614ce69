//! One module per command.

pub mod base;
pub mod budget;
pub mod cancel;
pub mod compare;
pub mod export;
pub(crate) mod generations;
pub mod import;
pub mod layers;
pub mod lint;
pub mod plan;
pub mod preflight;
pub mod prices;
pub mod rejudge;
pub mod report;
pub mod resume;
pub mod run;
pub mod secrets;
pub mod serve;
pub mod settings;
pub mod show;
pub mod slurm;
pub mod status;
pub mod store;
pub mod watch;

//! One module per command.

pub mod cancel;
pub mod export;
pub mod layers;
pub mod lint;
pub mod run;
pub mod serve;
pub mod settings;
pub mod show;
pub mod status;
pub mod watch;
pub mod worker;

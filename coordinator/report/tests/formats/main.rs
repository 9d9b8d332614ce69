//! Exports as other programs read them: tables with pandas and DuckDB, trajectories with Harbor's
//! own models, training sets with pyarrow and Pillow.
//!
//! Those live in an environment of their own, which `scripts/prepare-tests export` makes.
#![expect(clippy::unwrap_used, reason = "what cannot go on fails the test")]

mod chat;
mod harbor;
mod python;
mod resumed;
mod run;
mod tables;

//! The rules that users rely on, one by one.

mod attempts;
mod bench;
mod layers;
mod placement;
mod runs;
mod workers;

//! The rules that users rely on, one by one.

mod allocations;
mod attempts;
mod bench;
mod layers;
mod placement;
mod runs;
mod shares;
mod walltime;
mod workers;

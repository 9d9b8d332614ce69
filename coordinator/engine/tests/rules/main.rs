//! The rules that users rely on, one by one.

mod allocations;
mod aside;
mod attempts;
mod bench;
mod budgets;
mod layers;
mod ledger;
mod offers;
mod placement;
mod restored;
mod resume;
mod runs;
mod samples;
mod shares;
mod speed;
mod walltime;
mod workers;

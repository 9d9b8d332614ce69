//! What the whole-system tests share: the real `longhaul` program, run as an unprivileged
//! account in a folder of its own, and a look at what it leaves behind.
//!
//! A cluster's users are not root, so nor are the tests: as root they run the program as the
//! account `longhaul` (`LONGHAUL_USER`), which `scripts/deps` makes.

pub mod account;
pub mod command;
pub mod density;
pub mod leftovers;
pub mod older;
pub mod place;
pub mod programs;
pub mod slurm;
pub mod tree;

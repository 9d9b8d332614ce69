//! A worker, Apptainer and what serves a sandbox's files, killed at chosen moments of all that is
//! done with them. `make test-all` has more of them, at moments of chance.

mod common;
mod killing;

use std::time::Duration;

use anyhow::{Result, ensure};
use common::as_user;
use killing::{Moment, Target, kill_at, victim};

#[test]
fn whatever_is_killed_and_whenever_nothing_of_it_is_left_and_nothing_of_others_is_touched() -> Result<()> {
    let name = "whatever_is_killed_and_whenever_nothing_of_it_is_left_and_nothing_of_others_is_touched";
    as_user(name, async |world| {
        if let Some(worked) = victim(&world).await {
            return worked;
        }
        let moment = |phase, millis, target| Moment { phase, after: Duration::from_millis(millis), target };
        let moments = [
            moment("building", 0, Target::Packing),
            moment("starting", 100, Target::Worker),
            moment("starting", 250, Target::Apptainer),
            moment("showing", 50, Target::Worker),
            moment("acting", 200, Target::FileServer),
            moment("acting", 100, Target::WayOut),
            moment("acting", 100, Target::Worker),
            moment("stopping", 100, Target::Worker),
        ];
        let left = kill_at(&world, name, &moments).await?;
        ensure!(left == 0, "a worker that lost a part of what it worked with did not clear away the rest");
        Ok(())
    })
}

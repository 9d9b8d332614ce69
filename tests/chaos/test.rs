//! A seed of `make chaos`, shortened.

use std::process::Command;

use anyhow::{Result, ensure};

#[test]
fn forty_episodes_settle_and_nothing_is_lost_or_paid_twice_whatever_is_done_to_what_they_rest_on() -> Result<()> {
    let mut chaos = Command::new(env!("CARGO_BIN_EXE_longhaul-chaos"));
    let status = chaos.args(["--seed", "1", "--episodes", "40", "--contained", "4"]).status()?;
    ensure!(status.success(), "it ended with {status}; what it says above names its schedule");
    Ok(())
}

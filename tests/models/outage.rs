//! A vendor that is away for a while: nobody faults for it, and it is no time of the episode's.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::command::wait_for;
use longhaul_tests::place::Place;
use serde_json::Value;

use crate::forms::{FLIP, Form, Model};
use crate::vendor::{Vendor, calls_of, endpoint, expect_ends, run, settings, settled};

#[test]
fn a_vendor_that_is_away_for_a_while_costs_an_episode_neither_an_attempt_nor_its_time() -> Result<()> {
    let place = Place::new("outage")?;
    let model = Model { form: Form::OpenAi, picture: (1280, 720) };
    let mut vendor = Vendor::with(model.script(&FLIP))?;
    let settings = settings(&place, &[endpoint("gpt", "openai", &vendor)])?;
    let agent = "--agent=gpt=openai-computer@gpt:model-a?max_output=300";
    let mut running = run(&place, &settings, &["--task", "mtpaint_env/flip_sign", "--budget", "1", agent]).start()?;
    vendor.wait_for_calls(2, &mut running)?;
    // An answer that is on its way would be lost, and be paid as what is not known.
    wait_for("the end of its answers", Duration::from_secs(60), || {
        Ok((vendor.state(|state| state.in_flight)? == 0).then_some(()))
    })?;
    let left = vendor.close()?;
    // Longer than the retries of one call, so that the endpoint is held for down.
    thread::sleep(Duration::from_secs(12));
    vendor.reopen(left)?;
    running.end()?.expect_code(0)?;

    expect_ends(&place, &["gpt 0: passed by agent"])?;
    let shown = place.show("latest/0")?;
    ensure!(shown["episode"]["attempts"] == 1, "{shown:#}");
    let attempt = &shown["attempts"][0];
    let number = |value: &Value| value.as_u64().with_context(|| format!("no number: {shown:#}"));
    let calls = calls_of(&place, "latest/0")?;
    let at = |index: usize| number(&calls[index]["at"]);
    let first = calls.iter().position(|call| call["error"].is_string()).context("no call failed")?;
    let then = calls[first..].iter().position(|call| call["error"].is_null()).context("no call was made then")?;
    let away = at(first + then)?.saturating_sub(at(first)?);
    let acted = number(&attempt["finish"]["notes"]["acting_time"])?;
    let took = number(&attempt["finish"]["at"])?.saturating_sub(number(&attempt["started"])?);
    ensure!(acted + away <= took, "of {took} ms, {acted} were counted, though for {away} nobody answered: {calls:#?}");
    // Nothing is counted that was not billed, unless its answer was lost.
    let lost = calls.iter().any(|call| call["certainty"] == "unconfirmed");
    let exact = settled(&calls) == vendor.billed();
    ensure!(exact || (lost && settled(&calls) > vendor.billed()), "{} were billed: {calls:#?}", vendor.billed());
    Ok(())
}

//! A model whose servers come and go: a run begins before there is one, and goes on at another one.

use std::time::Duration;

use anyhow::{Result, ensure};
use longhaul_tests::command::wait_for;
use longhaul_tests::place::Place;

use crate::forms::{FLIP, Form, Model};
use crate::vendor::{KEY_NAME, Vendor, calls_of, expect_ends, run, said, settings, settled};

#[test]
fn a_run_waits_for_its_first_server_and_goes_on_where_the_next_one_is() -> Result<()> {
    let place = Place::new("replicas")?;
    let model = Model { form: Form::OpenAi, picture: (1280, 720) };
    let file = place.path("addresses");
    std::fs::write(&file, "# nobody yet\n")?;
    let endpoint = format!(
        "[endpoint.gpt]\nprotocol = \"openai\"\nvendor = \"standin\"\nreplicas_file = \"{}\"\n\
         key_env = \"{KEY_NAME}\"\nretries = 1\n",
        file.display()
    );
    let settings = settings(&place, &[endpoint])?;
    let agent = "--agent=gpt=openai-computer@gpt:model-a?max_output=300";
    let mut running = run(&place, &settings, &["--task", "mtpaint_env/flip_sign", "--budget", "1", agent]).start()?;
    wait_for("a call that waits for a server", Duration::from_secs(300), || {
        ensure!(running.runs()?, "the run ended before there was a server");
        let status = said(&place, &["status"]).unwrap_or_default();
        Ok(status.contains("names no address now").then_some(()))
    })?;
    let mut first = Vendor::with(model.script(&FLIP))?;
    std::fs::write(&file, format!("{}\n", first.url()))?;
    first.wait_for_calls(2, &mut running)?;
    wait_for("the end of its answers", Duration::from_secs(60), || {
        Ok((first.state(|state| state.in_flight)? == 0).then_some(()))
    })?;
    let second = Vendor::with(first.close()?)?;
    // The address of the one that ended stays, as a killed job leaves it.
    std::fs::write(&file, format!("{}\n{}\n", first.url(), second.url()))?;
    running.end()?.expect_code(0)?;

    expect_ends(&place, &["gpt 0: passed by agent"])?;
    ensure!(!second.calls().is_empty(), "nobody asked the second one");
    let shown = place.show("latest/0")?;
    ensure!(shown["episode"]["attempts"] == 1, "{shown:#}");
    let calls = calls_of(&place, "latest/0")?;
    let lost = calls.iter().any(|call| call["certainty"] == "unconfirmed");
    let billed = first.billed() + second.billed();
    ensure!(settled(&calls) == billed || (lost && settled(&calls) > billed), "{billed} were billed: {calls:#?}");
    Ok(())
}

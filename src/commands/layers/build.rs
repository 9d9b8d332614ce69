//! `longhaul layers build`: installs and configures envs without running a task, on a machine
//! with a network for machines without one.

use std::time::Instant;

use longhaul_core::plan::EnvPlan;
use longhaul_core::time::Millis;
use longhaul_worker::sandbox::container::ContainerDriver;
use longhaul_worker::sandbox::{Driver, LayerRequest, ReadyLayer, SandboxError, View};

use super::failed;
use super::frozen::{Frozen, policy_name};
use super::stack::needed;
use crate::cli::{LayerPlaceArgs, PickArgs};
use crate::commands::run::{hook_policies, pick};
use crate::error::CliError;
use crate::machine::{Machine, machine};
use crate::output::{self, Table, Tone, cut};
use crate::settings::Settings;
use crate::signals::Signals;
use crate::units::{show_duration, show_size};
use crate::worker::{config, hook_env};

/// The most of an error that a row shows.
const REASON_WIDTH: usize = 90;

/// What became of one layer.
struct Row {
    env: String,
    layer: &'static str,
    key: String,
    size: String,
    outcome: String,
    tone: Tone,
}

pub(super) async fn build(
    args: &PickArgs,
    policies: &[String],
    place: &LayerPlaceArgs,
    settings: &Settings,
) -> Result<(), CliError> {
    let mut signals = Signals::new().map_err(|error| CliError::Machine(Box::new(error)))?;
    let policies = hook_policies(policies, settings)?;
    let picked = pick(args)?;
    let machine = machine(place, settings).await?;
    let driver = driver(&machine, settings).await?;
    let (frozen, envs) = Frozen::new(&picked, &policies, &machine.scratch)?;
    let mut rows = Vec::new();
    let mut broken = 0;
    for env in &envs {
        let built = tokio::select! {
            built = build_env(&driver, env, &frozen, settings, &mut rows) => built?,
            // What is half built is dropped; a build that is published is whole.
            () = signals.next() => return Err(CliError::Interrupted),
        };
        broken += usize::from(!built);
    }
    let mut table = Table::new(&["env", "layer", "key", "size", "outcome"]);
    for row in rows {
        table.row([
            (row.env, Tone::Plain),
            (row.layer.to_owned(), Tone::Plain),
            (row.key, Tone::Dim),
            (row.size, Tone::Plain),
            (row.outcome, row.tone),
        ]);
    }
    output::data(&table.render(output::stdout_colours())).map_err(CliError::Output)?;
    if broken == 0 { Ok(()) } else { Err(CliError::LayersNotBuilt { broken, envs: envs.len() }) }
}

pub(super) async fn driver(machine: &Machine, settings: &Settings) -> Result<ContainerDriver, CliError> {
    let image = machine.image().await?;
    let config = config(machine, image.path.clone(), None, settings)?;
    ContainerDriver::open(&config).await.map_err(|error| CliError::Machine(Box::new(error)))
}

/// Builds what an env lacks; false if a hook failed.
async fn build_env(
    driver: &ContainerDriver,
    env: &EnvPlan,
    frozen: &Frozen,
    settings: &Settings,
    rows: &mut Vec<Row>,
) -> Result<bool, CliError> {
    let mut stack: Vec<ReadyLayer> = Vec::new();
    let basis = driver.basis(&env.name).await.map_err(failed)?;
    for layer in needed(env, &basis) {
        let row = |size: u64, outcome: String, tone| Row {
            env: env.name.clone(),
            layer: layer.kind.name(),
            key: layer.key.short(),
            size: show_size(size),
            outcome,
            tone,
        };
        let found = driver.find_layer(layer.kind, layer.key).await.map_err(failed)?;
        let ready = if let Some(ready) = found {
            rows.push(row(ready.bytes, "was there".to_owned(), Tone::Good));
            ready
        } else {
            output::note(&format!("{}: building the {} layer", output::escape_line(&env.name), layer.kind.name()));
            let begun = Instant::now();
            let request = LayerRequest {
                kind: layer.kind,
                key: layer.key,
                env: env.clone(),
                views: views(env, frozen, layer.kind.name())?,
                parents: stack.clone(),
                hook_env: hook_env(settings),
            };
            match driver.build_layer(request).await {
                Ok(ready) => {
                    let took = Millis(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
                    let passed = ready
                        .tolerated_exit
                        .map(|code| format!("; its hook exited with {code} ({})", policy_name(env.hook_policy)))
                        .unwrap_or_default();
                    rows.push(row(ready.bytes, format!("built in {}{passed}", show_duration(took)), Tone::Good));
                    ready
                }
                Err(error) => {
                    if let SandboxError::Layer { log_tail: Some(tail), .. } = &error {
                        output::note(&output::escape(&format!("the end of its hook's log:\n{tail}")));
                    }
                    rows.push(row(0, cut(&error.to_string(), REASON_WIDTH), Tone::Bad));
                    return Ok(false);
                }
            }
        };
        // A layer that cannot hold what its hook leaves running is none to stand on.
        match &ready.rerun {
            Some(reason) => {
                let text = format!("its hook runs for each attempt: {}", cut(reason, REASON_WIDTH));
                rows.push(row(0, text, Tone::Warn));
            }
            None => stack.push(ready),
        }
    }
    Ok(true)
}

fn views(env: &EnvPlan, frozen: &Frozen, layer: &str) -> Result<Vec<View>, CliError> {
    let mut views = Vec::new();
    for (index, mount) in env.mounts.iter().enumerate() {
        // The benchmark is never written: a writable mount is a copy for this build alone.
        let own = mount.writable.then(|| format!("{layer}-{}-{index}", env.files.short()));
        let source = frozen.tree(&mount.tree, own.as_deref())?;
        views.push(View { source, target: mount.target.clone(), writable: mount.writable });
    }
    if let Some(target) = &env.tasks_target {
        views.push(View { source: frozen.no_tasks()?, target: target.clone(), writable: false });
    }
    Ok(views)
}

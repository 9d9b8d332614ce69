//! `longhaul layers why`: which layers envs need, and if one is not there, what differs from
//! the nearest one that is; and which runs stood on it.

use longhaul_apptainer::layers::{LayerContent, LayerManifest, LayerStore};
use longhaul_core::digest::Digest;
use longhaul_worker::sandbox::Driver;
use longhaul_worker::sandbox::container::layer_inputs;
use serde_json::json;

use super::build::driver;
use super::cited::Cited;
use super::failed;
use super::frozen::Frozen;
use super::stack::needed;
use crate::cli::{LayerPlaceArgs, PickArgs};
use crate::commands::run::{hook_policies, pick};
use crate::error::CliError;
use crate::machine::machine;
use crate::output::{self, Format, Tone, escape_line, paint};
use crate::settings::Settings;

pub(super) async fn why(
    args: &PickArgs,
    policies: &[String],
    place: &LayerPlaceArgs,
    cited: &Cited,
    settings: &Settings,
    format: Format,
) -> Result<(), CliError> {
    let policies = hook_policies(policies, settings)?;
    let picked = pick(args)?;
    let machine = machine(place, settings).await?;
    let driver = driver(&machine, settings).await?;
    let (_frozen, envs) = Frozen::new(&picked, &policies, &machine.scratch)?;
    let store = LayerStore::open(&machine.layers, None).map_err(failed)?;
    let colours = output::stdout_colours();
    let mut text = String::new();
    let mut rows = Vec::new();
    for env in &envs {
        let basis = driver.basis(&env.name).await.map_err(failed)?;
        for layer in needed(env, &basis) {
            let inputs = layer_inputs(layer.kind, &layer.parent, &basis, env);
            let there = store.find(&layer.key).map_err(failed)?;
            let nearest = match &there {
                Some(_) => None,
                None => store.why(layer.kind, &env.name, &inputs).map_err(failed)?,
            };
            let state = if there.is_some() {
                paint("there", Tone::Good, colours)
            } else {
                paint("missing", Tone::Warn, colours)
            };
            text.extend([&escape_line(&env.name), " ", layer.kind.name(), " ", &layer.key.short(), ": ", &state, "\n"]);
            if let Some(content) = there.as_ref().and_then(content) {
                text.extend(["  its content is ", &content.short(), "\n"]);
            }
            let runs = cited.runs(&layer.key);
            if let Some(last) = runs.last() {
                let more = runs.len() - 1;
                let others = if more > 0 { format!(" and {more} before it") } else { String::new() };
                text.extend(["  run ", last, &others, " stood on it: --layers-from uses it again, prune keeps it\n"]);
            }
            if there.is_none() {
                match &nearest {
                    None => text.push_str("  no layer of this kind was ever built for this env here\n"),
                    Some((manifest, differing)) => {
                        text.extend(["  the nearest is ", &manifest.key.short(), ", which differs in\n"]);
                        for difference in differing {
                            text.extend(["    ", &escape_line(difference), "\n"]);
                        }
                    }
                }
            }
            rows.push(json!({
                "env": env.name,
                "kind": layer.kind,
                "key": layer.key,
                "there": there.is_some(),
                "content": there.as_ref().and_then(content),
                "cited_by": runs,
                "inputs": inputs,
                "nearest": nearest.as_ref().map(|(manifest, differing)| json!({
                    "key": manifest.key,
                    "differs": differing,
                })),
            }));
        }
    }
    match format {
        Format::Human => output::data(&text),
        Format::Json => output::json(&rows),
    }
    .map_err(CliError::Output)
}

/// The digest of a layer's file, if it has one.
fn content(manifest: &LayerManifest) -> Option<Digest> {
    match manifest.content {
        LayerContent::File { digest, .. } => Some(digest),
        LayerContent::Rerun { .. } => None,
    }
}

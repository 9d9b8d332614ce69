//! `longhaul layers`: the layer folder, without a coordinator.

mod build;
mod carry;
mod cited;
mod frozen;
mod stack;
mod why;

use std::collections::BTreeSet;
use std::path::Path;

pub(crate) use cited::{Cited, layers_from};
use longhaul_apptainer::layers::{Bound, LayerContent, LayerManifest, LayerStore};
use longhaul_core::digest::Digest;
use longhaul_core::time::Millis;
use serde_json::json;

use crate::cli::{LayersArgs, LayersCommand};
use crate::error::CliError;
use crate::output::{self, Format, Table, Tone, cut};
use crate::settings::Settings;
use crate::{places, show, units};

/// The most of a reason that a row shows.
const REASON_WIDTH: usize = 60;

/// Does what is asked with layers.
///
/// # Errors
///
/// The folder cannot be used, the benchmark cannot be read, or a layer cannot be built or is
/// damaged.
pub async fn layers(args: LayersArgs, settings: &Settings) -> Result<(), CliError> {
    match args.command {
        LayersCommand::Ls { layers, format } => list(&open(layers.as_deref(), settings)?, format),
        LayersCommand::Build { pick, hook_policy, place } => build::build(&pick, &hook_policy, &place, settings).await,
        LayersCommand::Verify { layers, format } => verify(&open(layers.as_deref(), settings)?, format).await,
        LayersCommand::Prune { layers, stores, cited, to } => {
            let limit = to.unwrap_or(settings.layers.size_limit);
            let kept = if cited { None } else { Some(Cited::of_stores(&stores, settings).await?) };
            prune(&open(layers.as_deref(), settings)?, limit, kept.as_ref())
        }
        LayersCommand::Export(args) => carry::export(&args, settings).await,
        LayersCommand::Import { file, layers, format } => {
            carry::import(&open(layers.as_deref(), settings)?, &file, format).await
        }
        LayersCommand::Why { pick, hook_policy, store, place, format } => {
            let cited = Cited::of_stores(store.as_slice(), settings).await?;
            why::why(&pick, &hook_policy, &place, &cited, settings, format).await
        }
    }
}

fn open(given: Option<&Path>, settings: &Settings) -> Result<LayerStore, CliError> {
    LayerStore::open(&places::layers(given, settings)?, None).map_err(failed)
}

/// For `map_err`: what the layer folder says.
fn failed(error: impl std::error::Error + Send + Sync + 'static) -> CliError {
    CliError::Layers(Box::new(error))
}

fn list(store: &LayerStore, format: Format) -> Result<(), CliError> {
    let layers = store.list().map_err(failed)?;
    match format {
        Format::Json => {
            let rows: Vec<_> = layers.iter().map(|(manifest, used)| row_json(manifest, millis(*used))).collect();
            output::json(&json!({ "folder": store.folder(), "layers": rows }))
        }
        Format::Human => output::data(&table(store, &layers)),
    }
    .map_err(CliError::Output)
}

fn table(store: &LayerStore, layers: &[(LayerManifest, std::time::SystemTime)]) -> String {
    let mut table = Table::new(&["env", "layer", "key", "size", "hook", "made", "last used", ""]);
    let mut total = 0;
    for (manifest, used) in layers {
        total += manifest.bytes();
        let mut notes = Vec::new();
        if let LayerContent::Rerun { reason } = &manifest.content {
            notes.push(format!("runs for each attempt: {}", cut(reason, REASON_WIDTH)));
        }
        if let Some(tolerated) = &manifest.tolerated {
            notes.push(format!("its hook exited with {}", tolerated.exit));
        }
        if !manifest.units.is_empty() {
            notes.push(format!("starts {}", manifest.units.join(", ")));
        }
        table.row([
            (manifest.env.clone(), Tone::Plain),
            (manifest.kind.name().to_owned(), Tone::Plain),
            (manifest.key.short(), Tone::Dim),
            (units::show_size(manifest.bytes()), Tone::Plain),
            (units::show_duration(Millis(manifest.hook_millis)), Tone::Plain),
            (show::time(manifest.created.0), Tone::Plain),
            (show::time(millis(*used)), Tone::Plain),
            (notes.join("; "), Tone::Warn),
        ]);
    }
    let mut text = table.render(output::stdout_colours());
    let count = layers.len().to_string();
    text.extend(["\n", &count, " layers, ", &units::show_size(total), " in ", &store.folder().to_string_lossy(), "\n"]);
    text
}

fn row_json(manifest: &LayerManifest, used: u64) -> serde_json::Value {
    json!({ "manifest": manifest, "bytes": manifest.bytes(), "last_used_millis": used })
}

fn millis(time: std::time::SystemTime) -> u64 {
    let since = time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

async fn verify(store: &LayerStore, format: Format) -> Result<(), CliError> {
    let findings = store.verify(&[]).await.map_err(failed)?;
    let damaged: Vec<(Digest, String)> =
        findings.iter().filter_map(|finding| Some((finding.key, finding.trouble.as_ref()?.to_string()))).collect();
    match format {
        Format::Json => output::json(&json!({
            "checked": findings.len(),
            "damaged": damaged.iter().map(|(key, reason)| json!({ "key": key, "reason": reason })).collect::<Vec<_>>(),
        })),
        Format::Human => {
            let mut text = String::new();
            for (key, reason) in &damaged {
                text.extend([&key.short(), "  ", &output::escape_line(reason), "\n"]);
            }
            text.extend([&findings.len().to_string(), " layers read, ", &damaged.len().to_string(), " damaged\n"]);
            output::data(&text)
        }
    }
    .map_err(CliError::Output)?;
    if damaged.is_empty() { Ok(()) } else { Err(CliError::LayersDamaged { count: damaged.len() }) }
}

fn prune(store: &LayerStore, limit: u64, cited: Option<&Cited>) -> Result<(), CliError> {
    if limit == 0 {
        output::note("no limit is set: nothing is removed (see --to and the setting layers.size_limit)");
        return Ok(());
    }
    let pruned = store.prune(Bound::Bytes(limit), &cited.map_or_else(BTreeSet::new, Cited::keys)).map_err(failed)?;
    output::note(&format!(
        "{} layers removed, {} freed; {} more would have had to go and are in use",
        pruned.removed.len(),
        units::show_size(pruned.freed),
        pruned.in_use.len()
    ));
    if let Some(cited) = cited.filter(|_| !pruned.cited.is_empty()) {
        output::note(&output::escape(&format!(
            "{} more are kept, since runs stand on them in {} (--cited removes those too)",
            pruned.cited.len(),
            cited.places.join(", ")
        )));
    }
    Ok(())
}

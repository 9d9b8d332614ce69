//! The layer folder by itself: what is in it, whether it is what it was, and what is brought to it.

use std::path::Path;

use longhaul_apptainer::BaseSource;
use longhaul_apptainer::layers::carry::{self, BaseOutcome, CarryError, Imported, LayerOutcome, Stop};
use longhaul_apptainer::layers::{LayerContent, LayerManifest, LayerStore};
use longhaul_core::digest::Digest;
use longhaul_core::plan::LayerKind;
use longhaul_core::time::Millis;
use serde_json::json;

use crate::cli::FolderCommand;
use crate::error::NodeError;
use crate::output::{self, Format, Table, Tone, cut};
use crate::places;
use crate::settings::Settings;
use crate::signals::Signals;
use crate::units::{self, show_size};

/// The most of a reason that a row shows.
const REASON_WIDTH: usize = 60;

/// Does what is asked with the folder.
///
/// # Errors
///
/// It cannot be used, a layer is damaged, or a file cannot be taken.
pub async fn layers(command: FolderCommand, settings: &Settings) -> Result<(), NodeError> {
    match command {
        FolderCommand::Ls { layers, format } => list(&open(layers.as_deref(), settings)?, format),
        FolderCommand::Verify { layers, format } => verify(&open(layers.as_deref(), settings)?, format).await,
        FolderCommand::Import { file, layers, format } => {
            import(&open(layers.as_deref(), settings)?, &file, format).await
        }
    }
}

/// Opens the folder that is meant.
///
/// # Errors
///
/// Nothing says where it is, or it cannot be used.
pub fn open(given: Option<&Path>, settings: &Settings) -> Result<LayerStore, NodeError> {
    LayerStore::open(&places::layers(given, settings)?, None).map_err(failed)
}

/// For `map_err`: what the layer folder says.
pub fn failed(error: impl std::error::Error + Send + Sync + 'static) -> NodeError {
    NodeError::Layers(Box::new(error))
}

fn list(store: &LayerStore, format: Format) -> Result<(), NodeError> {
    let layers = store.list().map_err(failed)?;
    match format {
        Format::Json => {
            let rows: Vec<_> = layers.iter().map(|(manifest, used)| row_json(manifest, millis(*used))).collect();
            output::json(&json!({ "folder": store.folder(), "layers": rows }))
        }
        Format::Human => output::data(&table(store, &layers)),
    }
    .map_err(NodeError::Output)
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
            (units::show_time(manifest.created.0), Tone::Plain),
            (units::show_time(millis(*used)), Tone::Plain),
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

async fn verify(store: &LayerStore, format: Format) -> Result<(), NodeError> {
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
    .map_err(NodeError::Output)?;
    if damaged.is_empty() { Ok(()) } else { Err(NodeError::LayersDamaged { count: damaged.len() }) }
}

/// Takes what a file brings.
async fn import(store: &LayerStore, file: &Path, format: Format) -> Result<(), NodeError> {
    let imported = interruptible(|stop| async { carry::import(store, file, stop).await }).await?;
    match format {
        Format::Json => output::json(&imported_json(&imported, store.folder())),
        Format::Human => output::data(&imported_text(&imported, store.folder())),
    }
    .map_err(NodeError::Output)?;
    if let Some(base) = imported.base.filter(|base| base.key.is_none() || base.key != BaseSource::Debian12.key()) {
        output::note(&format!(
            "these layers stand on an image that is not this program's own: use them with --base {}",
            base.path.display()
        ));
    }
    Ok(())
}

/// Does something that ends soon, and in order, when a signal comes.
///
/// # Errors
///
/// It fails, or was stopped.
pub async fn interruptible<T, F: Future<Output = Result<T, CarryError>>>(
    work: impl FnOnce(Stop) -> F,
) -> Result<T, NodeError> {
    let mut signals = Signals::new().map_err(|error| NodeError::Machine(Box::new(error)))?;
    let stop = Stop::default();
    let work = work(stop.clone());
    tokio::pin!(work);
    let done = tokio::select! {
        done = &mut work => done,
        () = signals.next() => {
            stop.stop();
            work.await
        }
    };
    done.map_err(|error| match error {
        CarryError::Stopped => NodeError::Interrupted,
        error => NodeError::Carry(error),
    })
}

const fn outcome(outcome: LayerOutcome) -> (&'static str, &'static str, Tone) {
    match outcome {
        LayerOutcome::Taken => ("taken", "taken", Tone::Good),
        LayerOutcome::Kept => ("kept", "was there", Tone::Good),
        LayerOutcome::KeptOther => {
            ("kept_other", "one of this key with other content was there, and stays", Tone::Warn)
        }
    }
}

const fn base_outcome(outcome: BaseOutcome) -> (&'static str, &'static str) {
    match outcome {
        BaseOutcome::Taken => ("taken", "taken"),
        BaseOutcome::Kept => ("kept", "was there"),
    }
}

fn imported_json(imported: &Imported, folder: &Path) -> serde_json::Value {
    json!({
        "folder": folder,
        "base": imported.base.as_ref().map(|base| json!({
            "path": base.path,
            "content": base.content,
            "key": base.key,
            "bytes": base.bytes,
            "outcome": base_outcome(base.outcome).0,
        })),
        "layers": imported.layers.iter().map(|layer| json!({
            "manifest": layer.manifest,
            "outcome": outcome(layer.outcome).0,
        })).collect::<Vec<_>>(),
    })
}

fn imported_text(imported: &Imported, folder: &Path) -> String {
    let mut table = Table::new(&["env", "layer", "key", "size", "outcome"]);
    if let Some(base) = &imported.base {
        table.row([
            (String::new(), Tone::Plain),
            (LayerKind::Base.name().to_owned(), Tone::Plain),
            (base.content.short(), Tone::Dim),
            (show_size(base.bytes), Tone::Plain),
            (base_outcome(base.outcome).1.to_owned(), Tone::Good),
        ]);
    }
    for layer in &imported.layers {
        let (_, text, tone) = outcome(layer.outcome);
        table.row([
            (layer.manifest.env.clone(), Tone::Plain),
            (layer.manifest.kind.name().to_owned(), Tone::Plain),
            (layer.manifest.key.short(), Tone::Dim),
            (show_size(layer.manifest.bytes()), Tone::Plain),
            (text.to_owned(), tone),
        ]);
    }
    let count = imported.layers.len().to_string();
    let mut text = table.render(output::stdout_colours());
    text.extend(["\n", &count, " layers in ", &output::escape_line(&folder.to_string_lossy()), "\n"]);
    text
}

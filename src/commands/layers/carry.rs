//! `longhaul layers export`: layers and their base image in one file.

use std::collections::BTreeMap;
use std::path::Path;

use longhaul_apptainer::base;
use longhaul_apptainer::layers::carry::{self, BaseToCarry, CarryError, Exported};
use longhaul_apptainer::layers::{LayerManifest, LayerStore};
use longhaul_core::plan::LayerKind;
use longhaul_node::error::NodeError;
use longhaul_node::layers::interruptible;
use longhaul_worker::sandbox::Driver;
use serde_json::json;

use super::build::driver;
use super::cited::{Used, missing, used};
use super::failed;
use super::frozen::Frozen;
use super::stack::needed;
use crate::cli::{LayersExportArgs, PickArgs};
use crate::client::Source;
use crate::commands::run::{hook_policies, pick};
use crate::error::CliError;
use crate::machine::machine;
use crate::output::{self, Format, Table, Tone};
use crate::settings::Settings;
use crate::units::show_size;

/// Writes what is asked for into a file.
pub(super) async fn export(args: &LayersExportArgs, settings: &Settings) -> Result<(), CliError> {
    let chosen = match (&args.run, &args.benchmark) {
        (Some(run), _) => of_run(run, args, settings).await?,
        (None, Some(benchmark)) => of_benchmark(benchmark, args, settings).await?,
        (None, None) => return Err(CliError::Usage("name a benchmark, or a run with --run".to_owned())),
    };
    let Chosen { store, base, layers } = chosen;
    let base = base.filter(|_| !args.without_base);
    let exported =
        interruptible(|stop| async { carry::export(&store, base, &layers, &args.output, stop).await }).await?;
    match args.format {
        Format::Json => output::json(&exported_json(&exported, &args.output)),
        Format::Human => output::data(&exported_text(&exported, &args.output)),
    }
    .map_err(CliError::Output)
}

/// What is to be carried.
struct Chosen {
    store: LayerStore,
    base: Option<BaseToCarry>,
    layers: Vec<LayerManifest>,
}

async fn of_benchmark(benchmark: &Path, args: &LayersExportArgs, settings: &Settings) -> Result<Chosen, CliError> {
    let policies = hook_policies(&args.hook_policy, settings)?;
    let picked = pick(&PickArgs {
        benchmark: benchmark.to_owned(),
        tasks: args.tasks.clone(),
        split: args.split.clone(),
        envs: args.envs.clone(),
        difficulties: Vec::new(),
        tags: Vec::new(),
        quarantine: Vec::new(),
        shuffle: None,
        limit: None,
    })?;
    let machine = machine(&args.place, settings).await?;
    let driver = driver(&machine, settings).await?;
    let (_frozen, envs) = Frozen::new(&picked, &policies, &machine.scratch)?;
    let store = LayerStore::open(&machine.layers, None).map_err(failed)?;
    let mut layers: Vec<LayerManifest> = Vec::new();
    let mut bases: Vec<BaseToCarry> = Vec::new();
    for env in &envs {
        let basis = driver.basis(&env.name).await.map_err(failed)?;
        if !bases.iter().any(|base| base.content == basis.base) {
            let image = machine.image_of(Some(&env.name)).await?;
            let key = machine.definition_key(Some(&env.name));
            bases.push(BaseToCarry { path: image.path, content: image.content, key });
        }
        for layer in needed(env, &basis) {
            let (kind, key) = (layer.kind, layer.key);
            let missing = || NodeError::Carry(CarryError::Missing { kind, env: env.name.clone(), key });
            let manifest = store.find(&key).map_err(failed)?.ok_or_else(missing)?;
            if !layers.iter().any(|known| known.key == key) {
                layers.push(manifest);
            }
        }
    }
    if bases.len() > 1 && !args.without_base {
        return Err(several_bases());
    }
    Ok(Chosen { store, base: bases.pop(), layers })
}

/// A file holds one image.
fn several_bases() -> CliError {
    CliError::Usage(
        "these envs stand on different base images, and a file holds one: name envs of one with --env, or leave \
         images out with --without-base"
            .to_owned(),
    )
}

async fn of_run(given: &str, args: &LayersExportArgs, settings: &Settings) -> Result<Chosen, CliError> {
    let source = Source::open(&args.source, settings).await?;
    let run = source.run(given).await?;
    let wanted = used(&source, &run).await?;
    let store = super::open(args.place.layers.as_deref(), settings)?;
    let reasons = missing(&store, &wanted)?;
    if !reasons.is_empty() {
        return Err(CliError::LayersFrom { run: run.run_id, reasons });
    }
    let mut layers: Vec<LayerManifest> = Vec::new();
    let mut bases = BTreeMap::new();
    for Used { env, pin } in &wanted {
        if pin.kind == LayerKind::Base {
            bases.insert(pin.content, env.as_str());
        } else if let Some(manifest) = store.find(&pin.key).map_err(failed)?
            && !layers.iter().any(|known| known.key == pin.key)
        {
            layers.push(manifest);
        }
    }
    if bases.len() > 1 && !args.without_base {
        return Err(several_bases());
    }
    let base = match bases.pop_first() {
        Some((content, env)) if !args.without_base => {
            let found = base::find(&store.folder().join("images"), &content)
                .map_err(|error| NodeError::Carry(CarryError::Base(error)))?;
            Some(match found {
                Some((path, key)) => BaseToCarry { path, content, key },
                // It may be a file of its own, or have come with this program.
                None => {
                    let machine = machine(&args.place, settings).await?;
                    let image = machine.image_of(Some(env)).await?;
                    if image.content != content {
                        let reason = format!(
                            "its base image ({}) is not in {} and is not {}: name its file with --base, or leave it \
                             out with --without-base",
                            content.short(),
                            store.folder().join("images").display(),
                            image.path.display()
                        );
                        return Err(CliError::LayersFrom { run: run.run_id, reasons: vec![reason] });
                    }
                    BaseToCarry { path: image.path, content, key: machine.definition_key(Some(env)) }
                }
            })
        }
        _ => None,
    };
    Ok(Chosen { store, base, layers })
}

fn exported_json(exported: &Exported, file: &Path) -> serde_json::Value {
    json!({ "file": file, "bytes": exported.bytes, "base": exported.index.base, "layers": exported.index.layers })
}

fn exported_text(exported: &Exported, file: &Path) -> String {
    let mut table = Table::new(&["env", "layer", "key", "size"]);
    if let Some(base) = &exported.index.base {
        table.row([
            (String::new(), Tone::Plain),
            (LayerKind::Base.name().to_owned(), Tone::Plain),
            (base.content.short(), Tone::Dim),
            (show_size(base.bytes), Tone::Plain),
        ]);
    }
    for layer in &exported.index.layers {
        table.row([
            (layer.env.clone(), Tone::Plain),
            (layer.kind.name().to_owned(), Tone::Plain),
            (layer.key.short(), Tone::Dim),
            (show_size(layer.bytes()), Tone::Plain),
        ]);
    }
    let mut text = table.render(output::stdout_colours());
    text.extend(["\n", &show_size(exported.bytes), " in ", &output::escape_line(&file.to_string_lossy()), "\n"]);
    text
}

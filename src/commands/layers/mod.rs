//! `longhaul layers`: the layer folder, without a coordinator.

mod build;
mod carry;
mod cited;
mod frozen;
mod stack;
mod why;

use std::collections::BTreeSet;

use cited::Cited;
pub(crate) use cited::layers_from;
use longhaul_apptainer::layers::{Bound, LayerStore};
use longhaul_node::layers::{failed, open};

use crate::cli::{LayersArgs, LayersCommand};
use crate::error::CliError;
use crate::output;
use crate::settings::Settings;
use crate::units;

/// Does what is asked with layers.
///
/// # Errors
///
/// The folder cannot be used, the benchmark cannot be read, or a layer cannot be built or is
/// damaged.
pub async fn layers(args: LayersArgs, settings: &Settings) -> Result<(), CliError> {
    match args.command {
        LayersCommand::Folder(command) => Ok(longhaul_node::layers::layers(command, settings).await?),
        LayersCommand::Build { pick, hook_policy, place } => build::build(&pick, &hook_policy, &place, settings).await,
        LayersCommand::Prune { layers, stores, cited, to } => {
            let limit = to.unwrap_or(settings.layers.size_limit);
            let kept = if cited { None } else { Some(Cited::of_stores(&stores, settings).await?) };
            prune(&open(layers.as_deref(), settings)?, limit, kept.as_ref())
        }
        LayersCommand::Export(args) => carry::export(&args, settings).await,
        LayersCommand::Why { pick, hook_policy, store, place, format } => {
            let cited = Cited::of_stores(store.as_slice(), settings).await?;
            why::why(&pick, &hook_policy, &place, &cited, settings, format).await
        }
    }
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

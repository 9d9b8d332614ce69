//! What runs stand on: which layers stores cite, and which an earlier run had.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use longhaul_apptainer::layers::{LayerContent, LayerStore};
use longhaul_core::digest::Digest;
use longhaul_core::plan::{EnvPlan, EpisodePlan, LayerKind, LayerPin, TaskPlan};
use longhaul_proto::{convert, v1};
use serde::de::DeserializeOwned;

use super::failed;
use crate::benchmark::{EnvLayers, LayersFrom};
use crate::cli::{SourceArgs, VenueArgs};
use crate::client::Source;
use crate::commands::run::Picked;
use crate::error::CliError;
use crate::settings::Settings;
use crate::{output, places};

/// Which runs stand on which layers.
#[derive(Debug, Default)]
pub(super) struct Cited {
    by: BTreeMap<Digest, Vec<String>>,
    /// The stores that were looked through, for people.
    pub(super) places: Vec<String>,
}

impl Cited {
    /// The layers of every run of these stores; of the usual one, if it is there, where none is
    /// named.
    pub(super) async fn of_stores(stores: &[PathBuf], settings: &Settings) -> Result<Self, CliError> {
        let usual = places::store(None, settings)?;
        let stores: Vec<PathBuf> = match stores {
            [] => usual.exists().then_some(usual).into_iter().collect(),
            named => named.to_vec(),
        };
        let mut cited = Self::default();
        for store in stores {
            let args = SourceArgs { coordinator: None, store: Some(store) };
            cited.add(&Source::open(&args, settings).await?).await?;
        }
        Ok(cited)
    }

    /// Adds the layers of every run of a source. There is no run in a store that is not kept: all
    /// of them count.
    async fn add(&mut self, source: &Source) -> Result<(), CliError> {
        for run in source.runs().await? {
            let id = convert::parsed("run_id", &run.run_id).map_err(CliError::Answer)?;
            for row in source.layers(Some(id)).await? {
                let key = convert::digest("key", &row.key).map_err(CliError::Answer)?;
                let runs = self.by.entry(key).or_default();
                if runs.last() != Some(&run.run_id) {
                    runs.push(run.run_id.clone());
                }
            }
        }
        self.places.push(source.place());
        Ok(())
    }

    /// The keys.
    pub(super) fn keys(&self) -> BTreeSet<Digest> {
        self.by.keys().copied().collect()
    }

    /// The runs that stand on a layer, the oldest first.
    pub(super) fn runs(&self, key: &Digest) -> &[String] {
        self.by.get(key).map_or(&[], Vec::as_slice)
    }
}

/// A layer as a run stood on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Used {
    /// The env.
    pub(super) env: String,
    pub(super) pin: LayerPin,
}

/// The layers that a run stood on: of each, the one that most attempts had.
pub(super) async fn used(source: &Source, run: &v1::RunSummary) -> Result<Vec<Used>, CliError> {
    let id = convert::parsed("run_id", &run.run_id).map_err(CliError::Answer)?;
    let mut best: BTreeMap<(LayerKind, String), (u32, LayerPin)> = BTreeMap::new();
    for row in source.layers(Some(id)).await? {
        let key = convert::digest("key", &row.key).map_err(CliError::Answer)?;
        let content = convert::digest("content", &row.content).map_err(CliError::Answer)?;
        let Some(kind) = kind(&row.kind) else { continue };
        let found = (row.run_uses, LayerPin { kind, key, content });
        let place = (kind, row.env);
        match best.get(&place) {
            None => {}
            Some((_, pin)) if *pin == found.1 => {}
            Some(known) => {
                output::note(&output::escape(&format!(
                    "warning: attempts of run {} had more than one {} layer of {}; the one that most of them had is meant",
                    run.run_id,
                    kind.name(),
                    place.1,
                )));
                if known.0 >= found.0 {
                    continue;
                }
            }
        }
        best.insert(place, found);
    }
    Ok(best.into_iter().map(|((_, env), (_, pin))| Used { env, pin }).collect())
}

fn kind(name: &str) -> Option<LayerKind> {
    [LayerKind::Base, LayerKind::Install, LayerKind::Configure].into_iter().find(|kind| kind.name() == name)
}

/// What is wrong with layers that are to be used as they were, if anything: not there, or there
/// with another content. The base image is compared by the worker, which knows its own.
pub(super) fn missing(store: &LayerStore, layers: &[Used]) -> Result<Vec<String>, CliError> {
    let mut reasons = Vec::new();
    for Used { env, pin } in layers.iter().filter(|layer| layer.pin.kind != LayerKind::Base) {
        let content = store.find(&pin.key).map_err(failed)?.map(|manifest| match manifest.content {
            LayerContent::File { digest, .. } => digest,
            LayerContent::Rerun { .. } => manifest.key,
        });
        let layer = format!("the {} layer of {env} ({})", pin.kind.name(), pin.key.short());
        match content {
            Some(content) if content == pin.content => {}
            Some(content) => reasons.push(format!(
                "{layer} has another content: {}, it was {}",
                content.short(),
                pin.content.short()
            )),
            None => reasons.push(format!("{layer} is not in {}", store.folder().display())),
        }
    }
    Ok(reasons)
}

/// What an earlier run stood on, for a new one that is to stand on the same. Where the new run's
/// workers are on this machine or see its disks, what is not there is said now; else by them.
///
/// # Errors
///
/// There is no such run, or its layers are not there as they were.
pub(crate) async fn layers_from(
    given: &str,
    venue: &VenueArgs,
    picked: &Picked,
    settings: &Settings,
) -> Result<LayersFrom, CliError> {
    let args = SourceArgs { coordinator: venue.coordinator.clone(), store: venue.store.clone() };
    let source = Source::open(&args, settings).await?;
    let run = source.run(given).await?;
    let wanted: BTreeSet<&str> = picked.tasks.iter().map(|task| task.env.as_str()).collect();
    let layers: Vec<Used> =
        used(&source, &run).await?.into_iter().filter(|layer| wanted.contains(layer.env.as_str())).collect();
    if venue.coordinator.is_none() {
        let store =
            LayerStore::open(&places::layers(venue.place.layers.as_deref(), settings)?, None).map_err(failed)?;
        let reasons = missing(&store, &layers)?;
        if !reasons.is_empty() {
            return Err(CliError::LayersFrom { run: run.run_id, reasons });
        }
    }
    let mut envs = BTreeMap::new();
    let id = convert::parsed("run_id", &run.run_id).map_err(CliError::Answer)?;
    for episode in source.episodes(id).await? {
        let Some((env, _)) = episode.task.split_once('/') else { continue };
        if !wanted.contains(env) || envs.contains_key(env) {
            continue;
        }
        let pins = layers.iter().filter(|layer| layer.env == env);
        let layers = pins.map(|layer| layer.pin).collect();
        envs.insert(env.to_owned(), EnvLayers { plan: env_plan(&source, &episode).await?, layers });
    }
    Ok(LayersFrom { run: run.run_id, envs })
}

/// The env of an episode as it was frozen.
async fn env_plan(source: &Source, episode: &v1::EpisodeRow) -> Result<EnvPlan, CliError> {
    let plan = convert::digest("plan", &episode.plan).map_err(CliError::Answer)?;
    let plan: EpisodePlan = blob(source, &plan).await?;
    let task: TaskPlan = blob(source, &plan.task).await?;
    blob(source, &task.env).await
}

async fn blob<T: DeserializeOwned>(source: &Source, digest: &Digest) -> Result<T, CliError> {
    let bytes = source.blob(digest).await?.ok_or_else(|| CliError::NoSuchPart {
        whole: source.place(),
        part: format!("blob {digest}"),
        have: Vec::new(),
    })?;
    serde_json::from_slice(&bytes).map_err(|source| CliError::Record { what: format!("blob {digest}"), source })
}

//! Layers of an attempt: found, waited for, or built, once per coordinator. Those of an env that is
//! held to an earlier run's ([`pins`]) are found, or there are none.

use std::path::PathBuf;
use std::sync::Arc;

use longhaul_core::digest::Digest;
use longhaul_core::notes::{AttemptNotes, LayerUse};
use longhaul_core::outcome::{Fault, FaultClass};
use longhaul_core::plan::{EnvPlan, LayerKind, layer_key};
use longhaul_proto::{convert, v1};

use super::{disk_fault, fault, pins, views};
use crate::moment;
use crate::sandbox::{LayerRequest, ReadyLayer};
use crate::session::actor::Shared;
use crate::session::desk::Answer;

/// The layers of an attempt.
pub(crate) struct Layers {
    /// What the sandbox stands on, lowest first.
    pub(crate) stack: Vec<ReadyLayer>,
    /// Services to be started with it.
    pub(crate) units: Vec<String>,
    /// Why the configure hook runs for this attempt in place of its layer, if it does.
    pub(crate) configure_reruns: Option<String>,
}

/// Gets the layers of an env ready, and notes them.
pub(crate) async fn ready(env: &EnvPlan, shared: &Arc<Shared>, notes: &mut AttemptNotes) -> Result<Layers, Fault> {
    let basis = shared.driver.basis(&env.name).await.map_err(|error| error.fault())?;
    pins::check(env, LayerKind::Base, basis.base, Some(basis.base))?;
    notes.layers.push(LayerUse {
        kind: LayerKind::Base,
        key: basis.base,
        content: basis.base,
        built: false,
        tolerated_exit: None,
    });
    let mut stack: Vec<ReadyLayer> = Vec::new();
    let mut units = Vec::new();
    let mut parent = basis.base;
    if env.pre_start.is_some() {
        let key = layer_key(LayerKind::Install, &parent, &basis.arch, &basis.overlay_driver, env);
        let (layer, built) = ensure(LayerKind::Install, key, env, &stack, shared).await?;
        note(notes, &layer, built);
        add_units(&mut units, &layer);
        stack.push(layer);
        parent = key;
    }
    let mut configure_reruns = None;
    if env.post_start.is_some() {
        let key = layer_key(LayerKind::Configure, &parent, &basis.arch, &basis.overlay_driver, env);
        let (layer, built) = ensure(LayerKind::Configure, key, env, &stack, shared).await?;
        note(notes, &layer, built);
        // Hooks are not idempotent: it runs over what it ran over when the layer was built.
        match layer.rerun.clone() {
            Some(reason) => configure_reruns = Some(reason),
            None => {
                add_units(&mut units, &layer);
                stack.push(layer);
            }
        }
    }
    notes.configure_ran.clone_from(&configure_reruns);
    Ok(Layers { stack, units, configure_reruns })
}

/// A layer names the services of those below it again, as they ran when it was built.
fn add_units(units: &mut Vec<String>, layer: &ReadyLayer) {
    for unit in &layer.units {
        if !units.contains(unit) {
            units.push(unit.clone());
        }
    }
}

fn note(notes: &mut AttemptNotes, layer: &ReadyLayer, built: bool) {
    notes.layers.push(LayerUse {
        kind: layer.kind,
        key: layer.key,
        content: layer.content,
        built,
        tolerated_exit: layer.tolerated_exit,
    });
}

async fn ensure(
    kind: LayerKind,
    key: Digest,
    env: &EnvPlan,
    parents: &[ReadyLayer],
    shared: &Arc<Shared>,
) -> Result<(ReadyLayer, bool), Fault> {
    let there = find(kind, key, shared).await?;
    pins::check(env, kind, key, there.as_ref().map(|layer| layer.content))?;
    if let Some(layer) = there {
        if shared.desk.first_report(key) {
            report_found(layer.clone(), env, shared);
        }
        return Ok((layer, false));
    }
    // A build is finished even if the attempt that began it is stopped: others wait for it.
    let build = claim_and_build(kind, key, env.clone(), parents.to_vec(), Arc::clone(shared));
    let ending = shared.ending.clone();
    let given_up = || fault(FaultClass::Preempted, "the worker had to stop while a layer was built".to_owned());
    let task = shared.builds.spawn(async move { ending.run_until_cancelled(Box::pin(build)).await });
    match task.await {
        Ok(Some(result)) => result,
        Ok(None) => Err(given_up()),
        Err(error) => Err(fault(FaultClass::LayerBuild, format!("the build failed in the worker: {error}"))),
    }
}

async fn claim_and_build(
    kind: LayerKind,
    key: Digest,
    env: EnvPlan,
    parents: Vec<ReadyLayer>,
    shared: Arc<Shared>,
) -> Result<(ReadyLayer, bool), Fault> {
    let _turn = shared.desk.turn(key).await;
    if let Some(layer) = find(kind, key, &shared).await? {
        return Ok((layer, false));
    }
    match shared.desk.claim(key, kind, &env.name).await {
        Answer::Failed(fault) => return Err(fault),
        Answer::Ready(content) => {
            if let Some(layer) = find(kind, key, &shared).await? {
                return Ok((layer, false));
            }
            if let Some(layer) = fetch(kind, key, content, &shared).await? {
                pins::check(&env, kind, key, Some(layer.content))?;
                return Ok((layer, false));
            }
            tracing::warn!(%key, "a layer that is ready elsewhere is not in this layer folder, and is built here");
        }
        Answer::Build => {}
    }
    tracing::info!(kind = kind.name(), env = env.name, %key, "building a layer");
    let start = moment::now();
    let scratch = shared.attempts.join(format!("layer-{}", key.short()));
    let built = build(kind, key, &env, parents, &shared, scratch).await;
    if let Err(fault) = &built
        && shared.shutdown.told_within(super::CAUSE_WAIT).await
    {
        // Not the layer's failure, and not to be remembered as one: somebody else builds it.
        let message = format!("the worker had to stop while a layer was built: {}", fault.message);
        return Err(super::fault(FaultClass::Preempted, message));
    }
    shared.desk.first_report(key);
    if let Ok(layer) = &built {
        // Before it is said to be ready: others look for it then.
        offer(layer, &shared).await;
    }
    let result = match &built {
        Ok(layer) => v1::layer_result::Result::Ready(info(layer)),
        Err(fault) => match convert::to_json("failed_fault_json", fault) {
            Ok(json) => v1::layer_result::Result::FailedFaultJson(json.into()),
            Err(error) => return Err(super::fault(FaultClass::LayerBuild, error.to_string())),
        },
    };
    let report = v1::LayerResult {
        key: convert::digest_bytes(&key).into(),
        kind: kind.name().to_owned(),
        env: env.name.clone(),
        built: true,
        build_millis: moment::since(start).0,
        result: Some(result),
    };
    shared.desk.report(key, report);
    Ok((built?, true))
}

async fn build(
    kind: LayerKind,
    key: Digest,
    env: &EnvPlan,
    parents: Vec<ReadyLayer>,
    shared: &Arc<Shared>,
    scratch: PathBuf,
) -> Result<ReadyLayer, Fault> {
    if let Some(message) = shared.node.disk_trouble() {
        return Err(fault(FaultClass::NodeDisk, message));
    }
    std::fs::create_dir_all(&scratch).map_err(|error| disk_fault(&scratch, &error))?;
    let mounts = views::mounts(env, &shared.blobs, &scratch).await?;
    let mut views = mounts.views.clone();
    views.extend(views::tasks(env, None, &scratch).await?);
    let request =
        LayerRequest { kind, key, env: env.clone(), views, parents, hook_env: shared.config.hook_env.clone() };
    // A hook that met a full disk fails, cleans up and says something else: the disk is watched
    // meanwhile. The build is not cut short, since it removes what it wrote.
    let building = shared.driver.build_layer(request);
    let watching = shared.node.until_disk_emergency();
    tokio::pin!(building, watching);
    let mut full = None;
    let built = loop {
        tokio::select! {
            built = &mut building => break built,
            reason = &mut watching, if full.is_none() => full = Some(reason),
        }
    };
    drop(mounts);
    super::remove_scratch(&scratch, shared).await;
    built.map_err(|error| blame(error.fault(), full))
}

/// What a build's failure is where the node's disk was full meanwhile.
fn blame(failed: Fault, full: Option<String>) -> Fault {
    match full {
        Some(reason) => Fault {
            class: FaultClass::NodeDisk,
            message: format!("{reason}, while a layer was built: {}", failed.message),
            ..failed
        },
        None => failed,
    }
}

async fn find(kind: LayerKind, key: Digest, shared: &Shared) -> Result<Option<ReadyLayer>, Fault> {
    shared.driver.find_layer(kind, key).await.map_err(|error| error.fault())
}

/// Says that a layer is there, after it was offered to nodes that do not see it.
fn report_found(layer: ReadyLayer, env: &EnvPlan, shared: &Arc<Shared>) {
    let result = found(&layer, env);
    if shared.carrier.is_none() {
        shared.desk.report(layer.key, result);
        return;
    }
    let (shared, ending) = (Arc::clone(shared), shared.ending.clone());
    let builds = shared.builds.clone();
    builds.spawn(async move {
        let offered = ending.run_until_cancelled(offer(&layer, &shared)).await;
        if offered.is_some() {
            shared.desk.report(layer.key, result);
        }
    });
}

/// Puts a layer where other nodes find it, if they have no folder in common with this one. A
/// layer that could not be put is built by them once more.
async fn offer(layer: &ReadyLayer, shared: &Shared) {
    let Some(carrier) = &shared.carrier else { return };
    let carried = match shared.driver.carry_layer(layer).await {
        Ok(Some(carried)) => carried,
        Ok(None) => return,
        Err(error) => {
            tracing::warn!(key = %layer.key, %error, "a layer cannot be carried to other nodes");
            return;
        }
    };
    match carrier.offer(carried).await {
        Ok(true) => tracing::info!(key = %layer.key, bytes = layer.bytes, "a layer was put at the coordinator"),
        Ok(false) => {}
        Err(error) => {
            let error = crate::chain(&error);
            tracing::warn!(key = %layer.key, error, "a layer was not put at the coordinator; other nodes build their own");
        }
    }
}

/// Fetches a layer that another node has built, if layers are carried and it is there.
async fn fetch(kind: LayerKind, key: Digest, content: Digest, shared: &Shared) -> Result<Option<ReadyLayer>, Fault> {
    let Some(carrier) = &shared.carrier else { return Ok(None) };
    let scratch = shared.attempts.join(format!("fetched-{}", key.short()));
    let fetched = match carrier.fetch(key, content, &scratch).await {
        Ok(Some(layer)) => shared.driver.take_layer(kind, layer).await.map_err(|error| error.to_string()),
        Ok(None) => Err("the coordinator does not have it".to_owned()),
        Err(error) => Err(crate::chain(&error)),
    };
    super::remove_scratch(&scratch, shared).await;
    match fetched {
        Ok(()) => find(kind, key, shared).await,
        Err(error) => {
            tracing::warn!(%key, error, "a layer that another node has was not fetched");
            Ok(None)
        }
    }
}

fn found(layer: &ReadyLayer, env: &EnvPlan) -> v1::LayerResult {
    v1::LayerResult {
        key: convert::digest_bytes(&layer.key).into(),
        kind: layer.kind.name().to_owned(),
        env: env.name.clone(),
        built: false,
        build_millis: 0,
        result: Some(v1::layer_result::Result::Ready(info(layer))),
    }
}

fn info(layer: &ReadyLayer) -> v1::LayerInfo {
    v1::LayerInfo { content: convert::digest_bytes(&layer.content).into(), bytes: layer.bytes }
}

//! Plans a run, brings its blobs to the coordinator, and submits it.

use longhaul_core::ids::RunId;
use longhaul_core::time::Timestamp;
use longhaul_proto::{convert, v1};
use rand::TryRngCore;

use super::pick::Wanted;
use super::secrets;
use crate::benchmark::{Blobs, PlanError, Planned, Request, plan};
use crate::client::Client;
use crate::error::CliError;
use crate::{output, units, upload};

/// How many tasks are named whose checklist cannot be used.
const CHECKLISTS_SHOWN: usize = 5;

/// A new id for a run, and the time that it says.
///
/// # Errors
///
/// The system gives no random bytes.
pub(crate) fn new_run() -> Result<(RunId, Timestamp), CliError> {
    let random = rand::rngs::OsRng.try_next_u32().map_err(|error| CliError::Machine(Box::new(error)))?;
    let now = Timestamp(u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default());
    Ok((RunId::new(now, random), now))
}

struct Uploading(upload::Sink);

impl Blobs for Uploading {
    fn put(&mut self, digest: longhaul_core::digest::Digest, bytes: &[u8]) -> Result<(), crate::benchmark::BlobError> {
        Ok(self.0.put(digest, bytes)?)
    }
}

/// Submits a run; it is durable when this returns.
pub(super) async fn submit(client: &Client, mut wanted: Wanted) -> Result<RunId, CliError> {
    let (run, _) = new_run()?;
    let (priority, file) = (wanted.priority, wanted.file.take().unwrap_or_default());
    // Until the answer is here: who is given the same file meanwhile waits for it.
    let _turn = wanted.turn.take();
    // Before the run: its first lease may call a model.
    secrets::put(client, std::mem::take(&mut wanted.keys)).await?;
    let (sink, uploader) = upload::channel();
    // Reading and digesting files holds a thread; the uploader empties the sink meanwhile.
    let planning = tokio::task::spawn_blocking(move || planned(&wanted, run, &mut Uploading(sink)));
    let (planned, uploaded) = tokio::join!(planning, uploader.run(client));
    // If the upload failed, planning failed too, for that reason.
    let uploaded = uploaded?;
    let planned =
        planned.map_err(|error| CliError::Plan(Box::new(error)))?.map_err(|error| CliError::Plan(Box::new(error)))?;
    for env in &planned.passed_over {
        output::note(&output::escape(&format!(
            "warning: {} ({} tasks) is left out: {}",
            env.env, env.tasks, env.reason
        )));
    }
    for path in &planned.left_out {
        output::note(&output::escape(&format!("warning: {path} cannot be frozen and is left out")));
    }
    for (task, reason) in planned.checklists.iter().take(CHECKLISTS_SHOWN) {
        output::note(&output::escape(&format!("warning: {task} is not judged by its checklist: {reason}")));
    }
    if planned.checklists.len() > CHECKLISTS_SHOWN {
        let more = planned.checklists.len() - CHECKLISTS_SHOWN;
        output::note(&format!("warning: {more} more tasks are not judged by a checklist"));
    }
    tracing::info!(blobs = uploaded.blobs, bytes = uploaded.bytes, "the run's files were brought to the coordinator");
    let request = v1::SubmitRequest {
        run_id: run.to_string(),
        plan: convert::digest_bytes(&planned.digest).into(),
        priority,
        limits_millis: planned.limits.iter().map(|limit| limit.0).collect(),
        file,
    };
    client.control.clone().submit(request).await.map_err(client.refused("take the run"))?;
    output::note(&format!(
        "run {run}: {} episodes in {} envs, submitted ({} of files new to the store)",
        planned.run.episodes.len(),
        planned.run.envs.len(),
        units::show_size(uploaded.bytes)
    ));
    Ok(run)
}

/// Freezes what is wanted as this run: the same things give the same digest.
///
/// # Errors
///
/// It cannot be planned, or a blob was not taken.
pub(super) fn planned(wanted: &Wanted, run: RunId, blobs: &mut dyn Blobs) -> Result<Planned, PlanError> {
    let request = Request {
        name: wanted.name.clone(),
        tasks: &wanted.picked.tasks,
        agents: &wanted.agents,
        samples: wanted.samples,
        limits: wanted.limits,
        retry: wanted.retry,
        hook_policies: &wanted.hook_policies,
        seed: run.as_u64(),
        on_refusal: wanted.on_refusal,
        gpus: wanted.gpus,
        layers_from: wanted.layers_from.as_ref(),
        earlier: wanted.earlier.as_ref(),
        extent: wanted.extent,
        models: &wanted.models,
    };
    plan(&wanted.picked.benchmark, &request, blobs)
}

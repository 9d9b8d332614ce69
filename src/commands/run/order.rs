//! What a coordinator is told to bring to its end: a new run, or one that it has.

use longhaul_core::endpoint::GatewayPlan;
use longhaul_core::ids::RunId;
use longhaul_core::outcome::SettlementKind;
use longhaul_core::plan::EpisodePlan;
use longhaul_proto::{convert, v1};

use super::pick::Wanted;
use super::secrets::{self, Keys, MissingKey};
use super::submit;
use crate::client::{Client, Source};
use crate::commands::cancel::who;
use crate::error::CliError;
use crate::output;

/// What is to be brought to its end.
#[derive(Debug)]
pub(crate) enum Order {
    /// A new run.
    New(Box<Wanted>),
    /// One that was begun.
    Again(Again),
}

/// A run that goes on.
#[derive(Debug)]
pub(crate) struct Again {
    run: RunId,
    kinds: Vec<SettlementKind>,
    keys: Keys,
    /// The keys that its endpoints want and this process does not have.
    pub(crate) missing_keys: Vec<MissingKey>,
}

impl Again {
    /// A run of a source, with the keys that its endpoints want.
    ///
    /// # Errors
    ///
    /// Its plans cannot be read.
    pub(crate) async fn read(source: &Source, run: RunId, kinds: Vec<SettlementKind>) -> Result<Self, CliError> {
        let gateway = gateway(source, run).await?;
        let (keys, missing_keys) = secrets::of_run(gateway.as_ref());
        Ok(Self { run, kinds, keys, missing_keys })
    }
}

/// The endpoints of a run: all of its episodes have the same.
async fn gateway(source: &Source, run: RunId) -> Result<Option<GatewayPlan>, CliError> {
    let Some(row) = source.episodes(run).await?.into_iter().next() else { return Ok(None) };
    let plan = convert::digest("plan", &row.plan).map_err(CliError::Answer)?;
    let unreadable = |source| CliError::Record { what: format!("the plan of episode {}", row.episode_id), source };
    let Some(bytes) = source.blob(&plan).await? else { return Ok(None) };
    let plan: EpisodePlan = serde_json::from_slice(&bytes).map_err(unreadable)?;
    let Some(digest) = plan.gateway else { return Ok(None) };
    let Some(bytes) = source.blob(&digest).await? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(unreadable)
}

impl From<Wanted> for Order {
    fn from(wanted: Wanted) -> Self {
        Self::New(Box::new(wanted))
    }
}

impl Order {
    /// Gives the order; it is durable when this returns.
    pub(super) async fn place(self, client: &Client) -> Result<RunId, CliError> {
        let Again { run, kinds, keys, .. } = match self {
            Self::New(wanted) => return submit::submit(client, *wanted).await,
            Self::Again(again) => again,
        };
        // Before the run: its first lease may call a model.
        secrets::put(client, keys).await?;
        let kinds = kinds.iter().map(ToString::to_string).collect();
        let request = v1::ResumeRunRequest { run_id: run.to_string(), kinds, by: who() };
        let answer = client.control.clone().resume_run(request).await.map_err(client.refused("go on with the run"))?;
        let v1::ResumeRunResponse { again, open } = answer.into_inner();
        output::note(&format!("run {run} goes on: {open} episodes are open, {again} of them done again"));
        Ok(run)
    }
}

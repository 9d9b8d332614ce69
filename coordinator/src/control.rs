//! The control service: what the command line asks.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use longhaul_core::endpoint::GatewayPlan;
use longhaul_core::ids::{AttemptId, EpisodeId, RunId};
use longhaul_core::money::Money;
use longhaul_core::plan::RunPlan;
use longhaul_core::text::chain;
use longhaul_core::time::{Millis, Timestamp};
use longhaul_engine::state::{RunSummary, RunTerms};
use longhaul_engine::{PoolId, Rejection, ScopeName};
use longhaul_proto::access::Secret;
use longhaul_proto::convert;
use longhaul_proto::v1;
use longhaul_proto::v1::control_service_server::ControlService;
use longhaul_store::{OpenError, Reader, Store};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use crate::auth::person;
use crate::blobs::blocking;
use crate::message::{Ask, Message};
use crate::{message, project, revive, view};

/// How many rows of an answer may wait for a client that reads slowly.
const ROWS_AHEAD: usize = 64;

/// So many episodes that settled are in one update at most: a message has a bound of 4 MiB.
const ROWS_AT_ONCE: usize = 1_000;

/// Changes of a run that come within this time are told at once.
const FOLLOW_PAUSE: Duration = Duration::from_millis(150);

/// A follower hears at least this often.
const FOLLOW_BEAT: Duration = Duration::from_secs(2);

/// The service that clients ask.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    pub(crate) mailbox: mpsc::Sender<Message>,
    pub(crate) store: Arc<Store>,
    pub(crate) started_at: Timestamp,
    pub(crate) tasks: TaskTracker,
    /// Who gives way to a later generation, if anybody does.
    pub(crate) succession: Option<Succession>,
}

/// A coordinator that another one of the same store will follow.
#[derive(Clone, Debug)]
pub(crate) struct Succession {
    /// Its own generation.
    pub(crate) generation: u64,
    /// Cancelled once the next one has asked for the store.
    pub(crate) wanted: CancellationToken,
}

type Rows<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Rows as they are read from a store.
type Reading<'a, T> = Box<dyn Iterator<Item = Result<T, view::ViewError>> + 'a>;

impl Control {
    async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Result<T, Status> {
        message::ask(&self.mailbox, ask).await
    }

    /// The budgets of a run: as the engine has them, or else the store.
    async fn budget(&self, run: RunId) -> Result<v1::ShowBudgetResponse, Status> {
        let scopes = self.ask(|reply| Ask::Budget { run, reply }).await?;
        if !scopes.is_empty() {
            let rows = scopes.into_iter().map(|scope| view::budget_row(&project::scope_record(scope))).collect();
            return Ok(v1::ShowBudgetResponse { scopes: rows });
        }
        let record = blocking(&self.store, move |store| store.run(run)).await?.ok_or_else(|| unknown_run(run))?;
        Ok(view::budget(&record))
    }

    /// What there is of an attempt, which may be much: it is read as it is taken, off the
    /// runtime's threads.
    fn streamed<T: Send + 'static>(
        &self,
        attempt: AttemptId,
        read: fn(&Reader, AttemptId) -> Reading<'_, T>,
    ) -> Response<Rows<T>> {
        let (rows, receiver) = mpsc::channel(ROWS_AHEAD);
        let store = Arc::clone(&self.store);
        self.tasks.spawn_blocking(move || {
            for row in read(&store, attempt) {
                let row = row.map_err(|error| Status::internal(chain(&error)));
                if rows.blocking_send(row).is_err() {
                    return;
                }
            }
        });
        Response::new(Box::pin(ReceiverStream::new(receiver)))
    }

    /// A run that has settled, from the store alone, in as many updates as it takes.
    async fn settled(&self, run: RunId) -> Result<Vec<v1::RunUpdate>, Status> {
        blocking(&self.store, move |store| {
            let Some(record) = store.run(run)? else { return Ok(None) };
            let summary = view::run_summary(store, &record)?;
            let rows: Vec<_> =
                view::episodes(store, run)?.into_iter().filter(|row| row.settled_at_millis > 0).map(short).collect();
            let update = |rows: &[v1::EpisodeRow], done| v1::RunUpdate {
                summary: Some(summary.clone()),
                settled: rows.to_vec(),
                done,
                ..v1::RunUpdate::default()
            };
            let mut updates: Vec<_> = rows.chunks(ROWS_AT_ONCE).map(|rows| update(rows, false)).collect();
            updates.push(update(&[], record.settled_at.is_some()));
            Ok::<_, view::ViewError>(Some(updates))
        })
        .await?
        .ok_or_else(|| unknown_run(run))
    }

    async fn follow_live(
        self,
        run: RunId,
        mut changes: tokio::sync::watch::Receiver<u64>,
        updates: mpsc::Sender<Result<v1::RunUpdate, Status>>,
    ) {
        let mut seen = 0;
        loop {
            // Seen before it is asked: what changes meanwhile is looked at again.
            changes.mark_unchanged();
            let update = self.update(run, &mut seen).await;
            let done = update.as_ref().map_or(true, |update| update.done);
            let more = update.as_ref().is_ok_and(|update| update.settled.len() == ROWS_AT_ONCE);
            if updates.send(update).await.is_err() || done {
                return;
            }
            if more {
                continue;
            }
            tokio::select! {
                // A sender that is gone means that the coordinator stops; asking tells.
                _changed = changes.changed() => tokio::time::sleep(FOLLOW_PAUSE).await,
                () = tokio::time::sleep(FOLLOW_BEAT) => {}
                () = updates.closed() => return,
            }
        }
    }

    async fn update(&self, run: RunId, seen: &mut usize) -> Result<v1::RunUpdate, Status> {
        let at = *seen;
        let mut view = self.ask(|reply| Ask::View { run, seen: at, reply }).await?.ok_or_else(|| unknown_run(run))?;
        let more = view.settled.len() > ROWS_AT_ONCE;
        view.settled.truncate(ROWS_AT_ONCE);
        *seen += view.settled.len();
        let (row, ids) = (view.summary.clone(), view.settled);
        let read = move |store: &Store| Ok::<_, view::ViewError>((summary(store, &row)?, rows(store, &ids)?));
        let (summary, settled) = blocking(&self.store, read).await?;
        Ok(v1::RunUpdate {
            done: !more && view.summary.settled_at.is_some(),
            summary: Some(summary),
            live: view.live,
            settled,
            building: view.building,
            waiting: view.waiting,
            warnings: view.warnings,
        })
    }
}

fn rows(store: &Store, ids: &[EpisodeId]) -> Result<Vec<v1::EpisodeRow>, view::ViewError> {
    let mut rows = Vec::with_capacity(ids.len());
    for id in ids {
        if let Some(record) = store.episode(*id)? {
            rows.push(short(view::episode_row(store, &record)?));
        }
    }
    Ok(rows)
}

/// A row as a follower gets it: what a verdict says may be large, and is asked for by episode.
fn short(row: v1::EpisodeRow) -> v1::EpisodeRow {
    v1::EpisodeRow { settlement_json: Vec::new().into(), ..row }
}

#[tonic::async_trait]
impl ControlService for Control {
    type FollowStream = Rows<v1::RunUpdate>;
    type ListEpisodesStream = Rows<v1::EpisodeRow>;
    type ListStepsStream = Rows<v1::StepRow>;
    type ListCallsStream = Rows<v1::CallRow>;

    async fn submit(&self, request: Request<v1::SubmitRequest>) -> Result<Response<v1::SubmitResponse>, Status> {
        person(&request)?;
        let request = request.into_inner();
        let run: RunId = id("run_id", &request.run_id)?;
        if blocking(&self.store, move |store| store.arrival(run)).await?.is_some() {
            return Err(Status::already_exists(format!("run {run} came from another store")));
        }
        let digest = convert::digest("plan", &request.plan).map_err(invalid)?;
        let bytes = blocking(&self.store, move |store| store.blob(&digest))
            .await?
            .ok_or_else(|| Status::failed_precondition(format!("the plan {digest} was not put before")))?;
        let plan: RunPlan = convert::from_json("plan", &bytes).map_err(invalid)?;
        let named: Vec<_> =
            plan.episodes.iter().map(|episode| episode.plan).chain(plan.envs.iter().map(|env| env.plan)).collect();
        let missing = blocking(&self.store, move |store| store.missing_blobs(&named)).await?;
        if let Some(first) = missing.first() {
            let count = missing.len();
            return Err(Status::failed_precondition(format!(
                "{count} of the blobs that the plan names were not put before, {first} among them"
            )));
        }
        let gateway: Option<Box<GatewayPlan>> = match plan.gateway {
            None => None,
            Some(digest) => {
                let bytes = blocking(&self.store, move |store| store.blob(&digest)).await?.ok_or_else(|| {
                    Status::failed_precondition(format!("the plan of endpoints {digest} was not put before"))
                })?;
                Some(Box::new(convert::from_json("gateway", &bytes).map_err(invalid)?))
            }
        };
        let limits: Vec<Millis> = request.limits_millis.into_iter().map(Millis).collect();
        if !limits.is_empty() && limits.len() != plan.episodes.len() {
            let (limits, episodes) = (limits.len(), plan.episodes.len());
            return Err(Status::invalid_argument(format!("{limits} limits are given for {episodes} episodes")));
        }
        let file = Some(request.file).filter(|file| !file.is_empty());
        let terms = RunTerms { priority: request.priority, limits, file };
        let plan = Box::new(plan);
        let asked = self.ask(|reply| Ask::Submit { run, plan, digest, gateway, terms, reply });
        let existed = asked.await?.map_err(rejected)?;
        Ok(Response::new(v1::SubmitResponse { run_id: run.to_string(), existed }))
    }

    async fn cancel(&self, request: Request<v1::CancelRequest>) -> Result<Response<v1::CancelResponse>, Status> {
        person(&request)?;
        let request = request.into_inner();
        let run: RunId = id("run_id", &request.run_id)?;
        let by = request.by;
        let cancelled = match self.ask(|reply| Ask::Cancel { run, by, reply }).await? {
            Ok(cancelled) => cancelled,
            // A run that the engine has forgotten is settled: there is nothing to cancel.
            Err(Rejection::UnknownRun { .. }) => {
                let known = blocking(&self.store, move |store| store.run(run)).await?;
                known.map(|_| 0).ok_or_else(|| unknown_run(run))?
            }
            Err(rejection) => return Err(rejected(rejection)),
        };
        Ok(Response::new(v1::CancelResponse { cancelled }))
    }

    async fn resume_run(
        &self,
        request: Request<v1::ResumeRunRequest>,
    ) -> Result<Response<v1::ResumeRunResponse>, Status> {
        person(&request)?;
        let v1::ResumeRunRequest { run_id, kinds, by } = request.into_inner();
        let run: RunId = id("run_id", &run_id)?;
        let kinds = kinds.iter().map(|name| id("kinds", name)).collect::<Result<_, _>>()?;
        let store = Arc::clone(&self.store);
        let back = tokio::task::spawn_blocking(move || revive::read(&store, run))
            .await
            .map_err(|error| Status::internal(error.to_string()))?
            .map_err(|error| Status::failed_precondition(chain(&error)))?;
        let imported = back.is_some();
        let (again, open) = match self.ask(|reply| Ask::Resume { run, by, kinds, back, reply }).await? {
            Ok(counts) => counts,
            Err(Rejection::UnknownRun { .. }) if imported => {
                return Err(Status::failed_precondition(format!(
                    "run {run} was brought into this store from elsewhere: it goes on where it was run"
                )));
            }
            Err(rejection) => return Err(rejected(rejection)),
        };
        Ok(Response::new(v1::ResumeRunResponse { again, open }))
    }

    async fn list_pools(
        &self,
        _request: Request<v1::ListPoolsRequest>,
    ) -> Result<Response<v1::ListPoolsResponse>, Status> {
        Ok(Response::new(self.ask(|reply| Ask::Pools { reply }).await?))
    }

    async fn resume_pool(
        &self,
        request: Request<v1::ResumePoolRequest>,
    ) -> Result<Response<v1::ResumePoolResponse>, Status> {
        person(&request)?;
        let pool = PoolId(request.into_inner().pool);
        self.ask(|reply| Ask::ResumePool { pool, reply }).await?.map_err(rejected)?;
        Ok(Response::new(v1::ResumePoolResponse {}))
    }

    async fn status(&self, _request: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        let workers = self.ask(|reply| Ask::Workers { reply }).await?;
        let replicas = self.ask(|reply| Ask::Replicas { reply }).await?;
        let runs = self.ask(|reply| Ask::Runs { reply }).await?;
        let summaries = move |store: &Store| {
            let mut rows = runs.iter().map(|run| summary(store, run)).collect::<Result<Vec<_>, _>>()?;
            let known: HashSet<RunId> = runs.iter().map(|run| run.run).collect();
            // What came from another store is in this one, and in no engine.
            for run in store.runs()?.iter().filter(|run| !known.contains(&run.id)) {
                rows.push(view::run_summary(store, run)?);
            }
            rows.sort_by(|one, other| one.run_id.cmp(&other.run_id));
            Ok::<_, view::ViewError>(rows)
        };
        let runs = blocking(&self.store, summaries).await?;
        Ok(Response::new(v1::StatusResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            store_path: self.store.path().display().to_string(),
            started_at_millis: self.started_at.0,
            workers,
            runs,
            replicas,
        }))
    }

    async fn list_runs(
        &self,
        _request: Request<v1::ListRunsRequest>,
    ) -> Result<Response<v1::ListRunsResponse>, Status> {
        let runs = blocking(&self.store, |store| view::runs(store)).await?;
        Ok(Response::new(v1::ListRunsResponse { runs }))
    }

    async fn follow(&self, request: Request<v1::FollowRequest>) -> Result<Response<Self::FollowStream>, Status> {
        let run: RunId = id("run_id", &request.into_inner().run_id)?;
        match self.ask(|reply| Ask::Follow { run, reply }).await? {
            Some(changes) => {
                let (updates, receiver) = mpsc::channel(1);
                self.tasks.spawn(self.clone().follow_live(run, changes, updates));
                Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
            }
            None => {
                let updates = self.settled(run).await?;
                Ok(Response::new(Box::pin(tokio_stream::iter(updates.into_iter().map(Ok)))))
            }
        }
    }

    async fn get_episode(
        &self,
        request: Request<v1::GetEpisodeRequest>,
    ) -> Result<Response<v1::GetEpisodeResponse>, Status> {
        let episode: EpisodeId = id("episode_id", &request.into_inner().episode_id)?;
        let mut response = blocking(&self.store, move |store| view::episode(store, episode))
            .await?
            .ok_or_else(|| Status::not_found(format!("there is no episode {episode}")))?;
        // What is live has reported its steps here before they were acknowledged there.
        let live = self.ask(|reply| Ask::Live { episode, reply }).await?;
        if let (Some(row), Some(live)) = (&mut response.row, live) {
            row.steps = row.steps.max(live.steps);
            (row.waiting, row.waiting_since_millis) = (live.waiting, live.waiting_since_millis);
        }
        Ok(Response::new(response))
    }

    async fn list_episodes(
        &self,
        request: Request<v1::ListEpisodesRequest>,
    ) -> Result<Response<Self::ListEpisodesStream>, Status> {
        let run: RunId = id("run_id", &request.into_inner().run_id)?;
        let mut rows = blocking(&self.store, move |store| {
            Ok::<_, view::ViewError>(match store.run(run)? {
                Some(_) => Some(view::episodes(store, run)?),
                None => None,
            })
        })
        .await?
        .ok_or_else(|| unknown_run(run))?;
        // Nothing that has settled since anybody looked is asked for.
        let view = self.ask(|reply| Ask::View { run, seen: usize::MAX, reply }).await?;
        let live = view.into_iter().flat_map(|view| view.live).filter(|attempt| !attempt.waiting.is_empty());
        let waits: HashMap<String, v1::LiveAttempt> = live.map(|attempt| (attempt.attempt.clone(), attempt)).collect();
        for row in &mut rows {
            if let Some(live) = waits.get(&row.attempt) {
                (row.waiting, row.waiting_since_millis) = (live.waiting.clone(), live.waiting_since_millis);
            }
        }
        Ok(Response::new(Box::pin(tokio_stream::iter(rows.into_iter().map(Ok)))))
    }

    async fn list_steps(
        &self,
        request: Request<v1::ListStepsRequest>,
    ) -> Result<Response<Self::ListStepsStream>, Status> {
        let v1::ListStepsRequest { attempt_id, own } = request.into_inner();
        let attempt = id("attempt_id", &attempt_id)?;
        Ok(if own {
            self.streamed(attempt, |store, attempt| Box::new(view::own_steps(store, attempt)))
        } else {
            self.streamed(attempt, |store, attempt| Box::new(view::steps(store, attempt)))
        })
    }

    async fn show_budget(
        &self,
        request: Request<v1::ShowBudgetRequest>,
    ) -> Result<Response<v1::ShowBudgetResponse>, Status> {
        let run: RunId = id("run_id", &request.into_inner().run_id)?;
        Ok(Response::new(self.budget(run).await?))
    }

    async fn raise_budget(
        &self,
        request: Request<v1::RaiseBudgetRequest>,
    ) -> Result<Response<v1::ShowBudgetResponse>, Status> {
        person(&request)?;
        let v1::RaiseBudgetRequest { run_id, scope, cap_nanos, by } = request.into_inner();
        let run: RunId = id("run_id", &run_id)?;
        let scope: ScopeName = id("scope", &scope)?;
        let cap = Money::from_nanos(cap_nanos);
        self.ask(|reply| Ask::RaiseBudget { run, scope, cap, by, reply }).await?.map_err(rejected)?;
        Ok(Response::new(self.budget(run).await?))
    }

    async fn list_calls(
        &self,
        request: Request<v1::ListCallsRequest>,
    ) -> Result<Response<Self::ListCallsStream>, Status> {
        let attempt = id("attempt_id", &request.into_inner().attempt_id)?;
        Ok(self.streamed(attempt, |store, attempt| Box::new(view::calls(store, attempt))))
    }

    async fn put_secrets(
        &self,
        request: Request<v1::PutSecretsRequest>,
    ) -> Result<Response<v1::PutSecretsResponse>, Status> {
        person(&request)?;
        let named = |secret: v1::NamedSecret| (secret.name, Secret::new(secret.value));
        let secrets: Vec<_> = request.into_inner().secrets.into_iter().map(named).collect();
        if let Some((name, _)) = secrets.iter().find(|(name, value)| name.is_empty() || value.expose().is_empty()) {
            return Err(Status::invalid_argument(format!("secret `{}` has no name or no value", name.escape_debug())));
        }
        self.ask(|reply| Ask::PutSecrets { secrets, reply }).await?;
        Ok(Response::new(v1::PutSecretsResponse {}))
    }

    async fn hand_over(&self, request: Request<v1::HandOverRequest>) -> Result<Response<v1::HandOverResponse>, Status> {
        person(&request)?;
        let asked = request.into_inner().generation;
        let Some(Succession { wanted, .. }) = self.succession.as_ref().filter(|own| own.generation < asked) else {
            return Err(Status::failed_precondition("it gives way to no other coordinator of that generation"));
        };
        let named = |(name, secret): (String, Secret)| v1::NamedSecret { name, value: secret.expose().to_owned() };
        let secrets = self.ask(|reply| Ask::Secrets { reply }).await?.into_iter().map(named).collect();
        // It stops now, and has still to answer this: whoever asks is waited for.
        wanted.cancel();
        Ok(Response::new(v1::HandOverResponse { secrets }))
    }

    async fn backup(&self, request: Request<v1::BackupRequest>) -> Result<Response<v1::BackupResponse>, Status> {
        person(&request)?;
        let path = PathBuf::from(request.into_inner().path);
        if !path.is_absolute() {
            return Err(Status::invalid_argument("the folder of a copy is named by its whole path"));
        }
        // The writer goes on meanwhile: a copy is of one point in the order of what it wrote.
        let store = Arc::clone(&self.store);
        let copied = tokio::task::spawn_blocking(move || store.checkpoint(&path)).await;
        copied.map_err(|error| Status::internal(error.to_string()))?.map_err(not_copied)?;
        Ok(Response::new(v1::BackupResponse {}))
    }

    async fn show_restore(
        &self,
        _request: Request<v1::ShowRestoreRequest>,
    ) -> Result<Response<v1::ShowRestoreResponse>, Status> {
        Ok(Response::new(self.ask(|reply| Ask::Restore { reply }).await?))
    }

    async fn accept_restore(
        &self,
        request: Request<v1::AcceptRestoreRequest>,
    ) -> Result<Response<v1::ShowRestoreResponse>, Status> {
        person(&request)?;
        let v1::AcceptRestoreRequest { by, unheard } = request.into_inner();
        let accepted = self.ask(|reply| Ask::AcceptRestore { by, unheard, reply }).await?;
        let stands = accepted.map_err(|error| Status::failed_precondition(error.to_string()))?;
        Ok(Response::new(stands))
    }

    async fn list_layers(
        &self,
        request: Request<v1::ListLayersRequest>,
    ) -> Result<Response<v1::ListLayersResponse>, Status> {
        let run = match request.into_inner().run_id.as_str() {
            "" => None,
            text => Some(id::<RunId>("run_id", text)?),
        };
        let layers = blocking(&self.store, move |store| view::layers_of(store, run)).await?;
        Ok(Response::new(v1::ListLayersResponse { layers }))
    }
}

/// A run in one row; the engine keeps what it decides by, the store where the benchmark was.
fn summary(store: &Store, summary: &RunSummary) -> Result<v1::RunSummary, view::ViewError> {
    let counts = summary.counts;
    let record = store.run(summary.run)?;
    Ok(v1::RunSummary {
        run_id: summary.run.to_string(),
        name: summary.name.clone(),
        submitted_at_millis: summary.submitted_at.0,
        episodes: counts.total(),
        queued: counts.queued,
        active: counts.active,
        passed: counts.passed,
        failed: counts.failed,
        unverified: counts.unverified,
        cancelled: counts.cancelled,
        faulted: counts.faulted,
        not_started: counts.not_started,
        cap_nanos: record.as_ref().and_then(view::cap_of).map(Money::nanos),
        spent_nanos: record.as_ref().map_or(Money::ZERO, view::spent_of).nanos(),
        settled_at_millis: summary.settled_at.map_or(0, |at| at.0),
        file: record.as_ref().and_then(|run| run.file.clone()).unwrap_or_default(),
        dropped_at_millis: store.dropped(summary.run)?.map_or(0, |dropped| dropped.at.0),
        plan: record.as_ref().map(|run| convert::digest_bytes(&run.plan)).unwrap_or_default().into(),
        benchmark: record.map(|run| run.benchmark).unwrap_or_default(),
    })
}

fn id<T>(field: &'static str, text: &str) -> Result<T, Status>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    convert::parsed(field, text).map_err(invalid)
}

fn not_copied(error: OpenError) -> Status {
    let text = chain(&error);
    match error {
        OpenError::File { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists => {
            Status::already_exists(text)
        }
        _ => Status::internal(text),
    }
}

fn unknown_run(run: RunId) -> Status {
    Status::not_found(format!("there is no run {run}"))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn invalid(error: convert::ConvertError) -> Status {
    Status::invalid_argument(error.to_string())
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn rejected(rejection: Rejection) -> Status {
    let text = rejection.to_string();
    match rejection {
        Rejection::UnknownRun { .. }
        | Rejection::UnknownWorker { .. }
        | Rejection::UnknownAttempt { .. }
        | Rejection::UnknownPool { .. }
        | Rejection::UnknownSubmission { .. } => Status::not_found(text),
        Rejection::RunIdTaken { .. } => Status::already_exists(text),
        Rejection::BadPlan { .. }
        | Rejection::BadPool { .. }
        | Rejection::NoBudget { .. }
        | Rejection::BudgetLowered { .. } => Status::invalid_argument(text),
        Rejection::RunNotSettled { .. }
        | Rejection::NotRevived { .. }
        | Rejection::RunOver { .. }
        | Rejection::WorkerChanged { .. }
        | Rejection::NotRestored
        | Rejection::StaleEpoch { .. } => Status::failed_precondition(text),
    }
}

//! Where results come from: a live coordinator, or a store folder.

use std::path::{Path, PathBuf};

use longhaul_coordinator::{ACCESS_FILE, ACCESS_FOLDER, LOCAL_ACCESS_FILE, view};
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, RunId};
use longhaul_node::error::NodeError;
use longhaul_proto::access::{Access, AccessError, Connection, MAX_ANSWER_BYTES, MAX_MESSAGE_BYTES};
use longhaul_proto::convert;
use longhaul_proto::v1;
use longhaul_proto::v1::blob_service_client::BlobServiceClient;
use longhaul_proto::v1::control_service_client::ControlServiceClient;
use longhaul_store::Reader;
use tokio_stream::StreamExt;

use crate::cli::SourceArgs;
use crate::commands::generations;
use crate::error::CliError;
use crate::places;
use crate::settings::Settings;

/// A connection to a coordinator.
#[derive(Clone, Debug)]
pub struct Client {
    /// Where it is, for people.
    pub address: String,
    /// The control service.
    pub control: ControlServiceClient<Connection>,
    /// Blobs.
    pub blobs: BlobServiceClient<Connection>,
}

/// The access file of the coordinator that has a store open: on this machine, or else in an
/// allocation of its own.
#[must_use]
pub(crate) fn access_of(store: &Path) -> PathBuf {
    if generations::is_served(store) { remote_access(store) } else { local_access(store) }
}

/// Where results are read.
#[derive(Debug)]
pub enum Source {
    /// A live coordinator.
    Live(Box<Client>),
    /// A store folder that no coordinator has open, or none that answers.
    Stored(Reader),
}

impl Client {
    /// Connects to the coordinator that an access file names.
    ///
    /// # Errors
    ///
    /// The file cannot be used, or nobody answers.
    pub async fn open(access: &Path) -> Result<Self, CliError> {
        let access = Access::read(access).map_err(NodeError::Access)?;
        let connection = access.connect().await.map_err(NodeError::Access)?;
        Ok(Self {
            address: access.address.to_string(),
            control: ControlServiceClient::new(connection.clone()).max_decoding_message_size(MAX_ANSWER_BYTES),
            blobs: BlobServiceClient::new(connection).max_decoding_message_size(MAX_MESSAGE_BYTES),
        })
    }

    /// Connects to the coordinator that has a store open: on this machine, or else in an allocation
    /// of its own.
    ///
    /// # Errors
    ///
    /// Its file cannot be used, or nobody answers.
    pub async fn of_store(store: &Path) -> Result<Self, CliError> {
        match Self::open(&local_access(store)).await {
            Err(CliError::Node(NodeError::Access(_))) if generations::is_served(store) => {
                Self::open(&remote_access(store)).await
            }
            answer => answer,
        }
    }

    /// For `map_err`: a coordinator that does not do what was asked.
    pub fn refused(&self, what: &'static str) -> impl FnOnce(tonic::Status) -> CliError + use<> {
        let address = self.address.clone();
        move |status| CliError::Refused { address, what, reason: status.message().to_owned(), code: status.code() }
    }

    async fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, CliError> {
        let request = v1::GetBlobRequest { digest: convert::digest_bytes(digest).into() };
        let refused = self.refused("give a blob");
        let mut stream = match self.blobs.clone().get(request).await {
            Ok(response) => response.into_inner(),
            Err(status) if status.code() == tonic::Code::NotFound => return Ok(None),
            Err(status) => return Err(refused(status)),
        };
        let mut bytes = Vec::new();
        while let Some(piece) = stream.message().await.map_err(self.refused("give a blob"))? {
            bytes.extend_from_slice(&piece.data);
        }
        Ok(Some(bytes))
    }
}

/// The access file of the coordinator that has a store open, if one ever had.
#[must_use]
pub fn local_access(store: &Path) -> PathBuf {
    store.join(ACCESS_FOLDER).join(LOCAL_ACCESS_FILE)
}

/// The file by which other machines reach the coordinator that has a store open.
#[must_use]
pub fn remote_access(store: &Path) -> PathBuf {
    store.join(ACCESS_FOLDER).join(ACCESS_FILE)
}

impl Source {
    /// Opens what the command line names: a coordinator, else the one that has the store
    /// open, else the store itself.
    ///
    /// # Errors
    ///
    /// Neither can be reached or read.
    pub async fn open(args: &SourceArgs, settings: &Settings) -> Result<Self, CliError> {
        if let Some(access) = &args.coordinator {
            return Ok(Self::Live(Box::new(Client::open(access).await?)));
        }
        let store = places::store(args.store.as_deref(), settings)?;
        if local_access(&store).exists() {
            match Client::of_store(&store).await {
                Ok(client) => return Ok(Self::Live(Box::new(client))),
                Err(CliError::Node(NodeError::Access(AccessError::Unreachable { .. }))) => {
                    tracing::debug!(store = %store.display(), "no coordinator has the store open");
                }
                Err(error) => return Err(error),
            }
        }
        Reader::open(&store).map(Self::Stored).map_err(CliError::Store)
    }

    /// What it is, for people.
    #[must_use]
    pub fn place(&self) -> String {
        match self {
            Self::Live(client) => format!("the coordinator at {}", client.address),
            Self::Stored(reader) => format!("the store {}", reader.path().display()),
        }
    }

    /// The folder of the store, where it is.
    ///
    /// # Errors
    ///
    /// The coordinator does not say.
    pub async fn store_path(&self) -> Result<String, CliError> {
        match self {
            Self::Live(client) => {
                let status = client.control.clone().status(v1::StatusRequest {}).await;
                Ok(status.map_err(client.refused("say its status"))?.into_inner().store_path)
            }
            Self::Stored(reader) => Ok(reader.path().display().to_string()),
        }
    }

    /// All runs, the oldest first.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    pub async fn runs(&self) -> Result<Vec<v1::RunSummary>, CliError> {
        match self {
            Self::Live(client) => {
                let answer = client.control.clone().list_runs(v1::ListRunsRequest {}).await;
                Ok(answer.map_err(client.refused("list its runs"))?.into_inner().runs)
            }
            Self::Stored(reader) => Ok(view::runs(reader)?),
        }
    }

    /// The run that a person means: an id, its unambiguous start or end, or `latest`.
    ///
    /// # Errors
    ///
    /// None is meant, or more than one may be.
    pub async fn run(&self, given: &str) -> Result<v1::RunSummary, CliError> {
        let mut runs = self.runs().await?;
        let ids: Vec<&str> = runs.iter().map(|run| run.run_id.as_str()).collect();
        match pick(given, &ids) {
            Picked::One(index) => Ok(runs.swap_remove(index)),
            Picked::None => Err(CliError::UnknownRun { given: given.to_owned(), place: self.place() }),
            Picked::Many(candidates) => Err(CliError::AmbiguousRun { given: given.to_owned(), candidates }),
        }
    }

    /// The episodes of a run, in order.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    pub async fn episodes(&self, run: RunId) -> Result<Vec<v1::EpisodeRow>, CliError> {
        match self {
            Self::Live(client) => {
                let request = v1::ListEpisodesRequest { run_id: run.to_string() };
                let what = "list the episodes";
                let stream = client.control.clone().list_episodes(request).await.map_err(client.refused(what))?;
                stream.into_inner().collect::<Result<_, _>>().await.map_err(client.refused(what))
            }
            Self::Stored(reader) => Ok(view::episodes(reader, run)?),
        }
    }

    /// An episode with its attempts and logs.
    ///
    /// # Errors
    ///
    /// It is not there, or cannot be read.
    pub async fn episode(&self, id: EpisodeId) -> Result<v1::GetEpisodeResponse, CliError> {
        match self {
            Self::Live(client) => {
                let request = v1::GetEpisodeRequest { episode_id: id.to_string() };
                let answer = client.control.clone().get_episode(request).await;
                Ok(answer.map_err(client.refused("show the episode"))?.into_inner())
            }
            Self::Stored(reader) => view::episode(reader, id)?.ok_or_else(|| CliError::NoSuchPart {
                whole: format!("run {}", id.run),
                part: format!("episode {}", id.index),
                have: Vec::new(),
            }),
        }
    }

    /// The steps of the trajectory that ends with an attempt's, in order; or its own alone.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    pub async fn steps(&self, attempt: AttemptId, own: bool) -> Result<Vec<v1::StepRow>, CliError> {
        match self {
            Self::Live(client) => {
                let request = v1::ListStepsRequest { attempt_id: attempt.to_string(), own };
                let what = "list the steps";
                let stream = client.control.clone().list_steps(request).await.map_err(client.refused(what))?;
                stream.into_inner().collect::<Result<_, _>>().await.map_err(client.refused(what))
            }
            Self::Stored(reader) if own => Ok(view::own_steps(reader, attempt).collect::<Result<_, _>>()?),
            Self::Stored(reader) => Ok(view::steps(reader, attempt).collect::<Result<_, _>>()?),
        }
    }

    /// The model calls of an attempt, in order.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    pub async fn calls(&self, attempt: AttemptId) -> Result<Vec<v1::CallRow>, CliError> {
        match self {
            Self::Live(client) => {
                let request = v1::ListCallsRequest { attempt_id: attempt.to_string() };
                let what = "list the model calls";
                let stream = client.control.clone().list_calls(request).await.map_err(client.refused(what))?;
                stream.into_inner().collect::<Result<_, _>>().await.map_err(client.refused(what))
            }
            Self::Stored(reader) => Ok(view::calls(reader, attempt).collect::<Result<_, _>>()?),
        }
    }

    /// What a run may spend and has spent, by scope.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub async fn budget(&self, run: &str) -> Result<v1::ShowBudgetResponse, CliError> {
        match self {
            Self::Live(client) => {
                let request = v1::ShowBudgetRequest { run_id: run.to_owned() };
                let answer = client.control.clone().show_budget(request).await;
                Ok(answer.map_err(client.refused("show the budget"))?.into_inner())
            }
            Self::Stored(reader) => {
                let id = convert::parsed("run_id", run).map_err(CliError::Answer)?;
                let record = reader.run(id)?;
                Ok(record.map(|record| view::budget(&record)).unwrap_or_default())
            }
        }
    }

    /// The layers that a run's attempts rested on, or all.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    pub async fn layers(&self, run: Option<RunId>) -> Result<Vec<v1::LayerRow>, CliError> {
        match self {
            Self::Live(client) => {
                let request = v1::ListLayersRequest { run_id: run.map(|run| run.to_string()).unwrap_or_default() };
                let answer = client.control.clone().list_layers(request).await;
                Ok(answer.map_err(client.refused("list its layers"))?.into_inner().layers)
            }
            Self::Stored(reader) => Ok(view::layers_of(reader, run)?),
        }
    }

    /// The bytes of a blob, if it is there.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub async fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, CliError> {
        match self {
            Self::Live(client) => client.blob(digest).await,
            Self::Stored(reader) => Ok(reader.blob(digest)?),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Picked {
    None,
    One(usize),
    Many(Vec<String>),
}

/// The ids are sorted by age, the oldest first.
fn pick(given: &str, ids: &[&str]) -> Picked {
    if given == "latest" {
        return ids.len().checked_sub(1).map_or(Picked::None, Picked::One);
    }
    if given.is_empty() {
        return Picked::None;
    }
    let given = given.to_lowercase();
    let matching: Vec<usize> =
        (0..ids.len()).filter(|index| ids[*index].starts_with(&given) || ids[*index].ends_with(&given)).collect();
    match matching.as_slice() {
        [] => Picked::None,
        [one] => Picked::One(*one),
        many => many.iter().find(|index| ids[**index] == given).map_or_else(
            || Picked::Many(many.iter().map(|index| ids[*index].to_owned()).collect()),
            |one| Picked::One(*one),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_named_by_its_start_its_end_or_as_the_latest() {
        let ids = ["0abc1", "0abd2", "0xyz2"];
        assert_eq!(pick("latest", &ids), Picked::One(2));
        assert_eq!(pick("0abc", &ids), Picked::One(0));
        assert_eq!(pick("D2", &ids), Picked::One(1));
        assert_eq!(pick("2", &ids), Picked::Many(vec!["0abd2".to_owned(), "0xyz2".to_owned()]));
        assert_eq!(pick("7", &ids), Picked::None);
        assert_eq!(pick("", &ids), Picked::None);
        assert_eq!(pick("latest", &[]), Picked::None);
    }
}

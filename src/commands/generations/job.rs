//! The allocations of a coordinator: how they are asked for, found and cancelled.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use longhaul_core::digest::Digest;
use longhaul_slurm::{
    AllocationRequest, Client, JobState, JobView, Limits, Memory, Owner, Shape, System, Template, Token, WarningSignal,
    Which, WorkerCommand, script,
};

use super::record::{Record, Turn};
use crate::cli::LayerPlaceArgs;
use crate::commands::slurm;
use crate::error::CliError;
use crate::output;
use crate::settings::Settings;

const MIB: u64 = 1 << 20;
const MINUTE: u64 = 60_000;

/// What a coordinator in an allocation is started with, and whose name its job has.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    owner: Owner,
    template: Template,
    program: PathBuf,
    args: Vec<String>,
    /// When the next one may begin, counted from when one did.
    after_minutes: u64,
}

impl Wanted {
    /// As the settings and the command line say it, for the store in `store`, an absolute path.
    ///
    /// # Errors
    ///
    /// A folder cannot be named.
    pub(crate) fn of(
        store: &Path,
        place: &LayerPlaceArgs,
        settings: &Settings,
        file: Option<&Path>,
    ) -> Result<Self, CliError> {
        let set = &settings.slurm.coordinator;
        let minutes = set.time.0.div_ceil(MINUTE);
        // One name for one store, whoever looks for it.
        let name = Digest::of(store.as_os_str().as_encoded_bytes()).short();
        let owner = Owner::new(format!("serve-{name}")).map_err(failed)?;
        let at = store.display().to_string();
        Ok(Self {
            owner,
            template: Template {
                partition: set.partition.clone(),
                account: set.account.clone(),
                qos: set.qos.clone(),
                constraint: set.constraint.clone(),
                cpus: NonZeroU32::new(set.cpus),
                memory: Some(Memory::Mib(set.memory.div_ceil(MIB))),
                time_limit_minutes: u32::try_from(minutes).unwrap_or(u32::MAX),
                warning_seconds: u16::try_from(set.warning.0.div_ceil(1000)).unwrap_or(u16::MAX),
                warning_signal: WarningSignal::Usr1,
                output_folder: slurm::logs(store, settings)?,
                options: set.options.clone(),
                prologue: set.prologue.clone(),
                ..Template::default()
            },
            program: slurm::this_program()?,
            args: slurm::arguments(&["serve", "--slurm", "--store", &at], place, settings, file)?,
            after_minutes: minutes.saturating_sub(set.overlap.0.div_ceil(MINUTE)).max(1),
        })
    }

    /// The name of a generation's job.
    pub(crate) fn token(&self, generation: u64) -> Token {
        Token::new(self.owner.clone(), generation)
    }

    /// Where its jobs write what they print.
    pub(crate) fn logs(&self) -> &Path {
        &self.template.output_folder
    }

    /// The batch script of a generation; `before` is the job that it follows.
    ///
    /// # Errors
    ///
    /// A setting cannot be written into it.
    pub(crate) fn script(&self, generation: u64, before: Option<&str>) -> Result<String, CliError> {
        let mut template = self.template.clone();
        // When the one before is gone, however it went; or, so that there is no gap, a while before that.
        template
            .options
            .extend(before.map(|job| format!("--dependency=afterany:{job}?after:{job}+{}", self.after_minutes)));
        let mut args = self.args.clone();
        args.extend(["--generation".to_owned(), generation.to_string()]);
        let worker = WorkerCommand { program: self.program.clone(), args };
        script(&template, &AllocationRequest { token: self.token(generation), shape: Shape::Single, worker })
            .map_err(failed)
    }
}

/// The queue, as far as it is about one coordinator's own allocations.
#[derive(Debug)]
pub(crate) struct Jobs {
    wanted: Wanted,
    client: Client<System>,
}

impl Jobs {
    /// Finds Slurm's programs.
    ///
    /// # Errors
    ///
    /// They are not there.
    pub(crate) async fn connect(wanted: Wanted, limits: Limits) -> Result<Self, CliError> {
        let nonce = u64::from(std::process::id());
        let client = Client::connect(System::default(), nonce, limits).await.map_err(failed)?;
        Ok(Self { wanted, client })
    }

    /// What is asked for.
    pub(crate) fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// The job of a generation, if it is not over; nothing if there is none.
    ///
    /// # Errors
    ///
    /// Slurm does not answer.
    pub(crate) async fn live(&self, generation: u64) -> Result<Option<JobView>, CliError> {
        let found = self.client.find(&self.wanted.token(generation)).await.map_err(failed)?;
        Ok(found.into_iter().find(|job| !job.state.is_ended()))
    }

    /// Whether the job of a generation is known to be over.
    pub(crate) async fn is_over(&self, generation: u64) -> bool {
        match self.live(generation).await {
            Ok(live) => live.is_none(),
            Err(error) => {
                tracing::warn!(%error, "the queue is not known");
                false
            }
        }
    }

    /// Those that are not over, of all generations.
    ///
    /// # Errors
    ///
    /// Slurm does not answer.
    pub(crate) async fn all(&self) -> Result<Vec<JobView>, CliError> {
        let queue = self.client.queue().await.map_err(failed)?;
        Ok(queue.owned_by(&self.wanted.owner).filter(|job| !job.state.is_ended()).cloned().collect())
    }

    /// What they are to each other; none if Slurm does not answer.
    pub(crate) async fn turns(&self) -> Option<Vec<Turn>> {
        let turn = |job: JobView| {
            let generation = self.generation(&job)?;
            Some(Turn { generation, job: job.raw_id.0, ending: job.state == JobState::Completing })
        };
        match self.all().await {
            Ok(all) => Some(all.into_iter().filter_map(turn).collect()),
            Err(error) => {
                tracing::warn!(%error, "the queue is not known");
                None
            }
        }
    }

    /// The generation whose job it is.
    pub(crate) fn generation(&self, job: &JobView) -> Option<u64> {
        job.token.as_ref().map(Token::serial)
    }

    /// Asks for a generation, unless it was asked for: an answer may have been lost.
    ///
    /// # Errors
    ///
    /// Slurm refuses, or does not answer: then it may be there all the same.
    pub(crate) async fn ask(&self, generation: u64, before: Option<&str>) -> Result<String, CliError> {
        if let Some(job) = self.live(generation).await? {
            return Ok(job.raw_id.to_string());
        }
        let text = self.wanted.script(generation, before)?;
        Ok(self.client.submit(&text).await.map_err(failed)?.to_string())
    }

    /// Ends the job of a generation, if there is one.
    ///
    /// # Errors
    ///
    /// It is not known whether it is ended.
    pub(crate) async fn cancel(&self, generation: u64) -> Result<(), CliError> {
        self.client.cancel(&self.wanted.token(generation), Which::All).await.map_err(failed)
    }
}

/// Fails if the job that serves a store by its record is known to live: a lock that does not hold from node to
/// node would not keep a second coordinator out. Where Slurm cannot be asked, this only warns.
///
/// # Errors
///
/// An allocation serves the store.
pub(crate) async fn refuse_served(store: &Path, limits: Limits) -> Result<(), CliError> {
    let Some(record) = Record::read(store).ok().flatten().filter(|record| !record.ended) else { return Ok(()) };
    let known = async {
        let token: Token = record.token.parse().ok()?;
        let client = Client::connect(System::default(), u64::from(std::process::id()), limits).await.ok()?;
        Some(client.find(&token).await.ok()?.iter().any(|job| !job.state.is_ended()))
    };
    let is_live = known.await;
    match is_live {
        Some(true) => Err(CliError::Served { store: store.to_owned(), job: record.job }),
        Some(false) => Ok(()),
        None => {
            output::note(&format!(
                "warning: {} was served from job {} last, and Slurm does not say whether that is over",
                store.display(),
                output::escape_line(&record.job)
            ));
            Ok(())
        }
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> CliError {
    CliError::OwnAllocation(Box::new(error))
}

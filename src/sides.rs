//! What is compared or reported: runs, and agents of runs, as the command line names them; settled as
//! they are, or as another judge sees them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use longhaul_core::ids::RunId;
use longhaul_node::error::Explained as _;
use longhaul_proto::convert;
use longhaul_report::{MeasureError, MeasuredRun, Side, measured};

use crate::cli::SourceArgs;
use crate::client::Source;
use crate::commands::rejudge;
use crate::error::CliError;
use crate::exit::Exit;
use crate::reading;
use crate::settings::Settings;

/// A run, or one agent of it: `[STORE#]RUN[:AGENT]`. The folder of a rejudgement stands for its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The store's folder or a coordinator's access file, if not the command's own.
    pub place: Option<PathBuf>,
    /// The run: its id, the unambiguous start or end of it, or `latest`; or the folder of a rejudgement.
    pub run: String,
    /// The agent; all of the run if absent.
    pub agent: Option<String>,
}

/// A text that names no run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` names no run: write RUN, RUN:AGENT, or STORE#RUN for a run of another store")]
pub struct NamedError {
    text: String,
}

impl FromStr for Named {
    type Err = NamedError;

    fn from_str(text: &str) -> Result<Self, NamedError> {
        let wrong = || NamedError { text: text.to_owned() };
        let (place, rest) = match text.split_once('#') {
            // A `#` after the `:` is part of an agent's name.
            Some((place, rest)) if !place.contains(':') => (Some(place), rest),
            _ => (None, text),
        };
        let (run, agent) = rest.split_once(':').map_or((rest, None), |(run, agent)| (run, Some(agent)));
        if run.is_empty() || place == Some("") || agent == Some("") {
            return Err(wrong());
        }
        Ok(Self { place: place.map(PathBuf::from), run: run.to_owned(), agent: agent.map(str::to_owned) })
    }
}

/// The runs that were named, and the sides that they are taken apart into.
#[derive(Debug)]
pub struct Sides {
    /// One for each agent of each run, in the order given.
    pub sides: Vec<Side>,
    /// Where each run can be read again, by its id.
    sources: BTreeMap<RunId, SourceArgs>,
}

impl Sides {
    /// Reads what is named.
    ///
    /// # Errors
    ///
    /// A run or an agent is not there, cannot be read, or is named twice.
    pub async fn read(named: &[Named], source: &SourceArgs, settings: &Settings) -> Result<Self, CliError> {
        let mut found: Vec<Meant> = Vec::new();
        let mut whole: BTreeMap<RunId, MeasuredRun> = BTreeMap::new();
        let mut sources = BTreeMap::new();
        for one in named {
            let place = place(one, source);
            let opened = Source::open(&place, settings).await?;
            let judged = match rejudge::folder_of(&one.run) {
                Some(folder) => Some(rejudge::verdicts_of(&folder)?),
                None => None,
            };
            let given = judged.as_ref().map_or_else(|| one.run.clone(), |judged| judged.run.to_string());
            let summary = opened.run(&given).await?;
            let run: RunId = convert::parsed("run_id", &summary.run_id).map_err(CliError::Answer)?;
            sources.insert(run, place);
            let read = match whole.get(&run) {
                Some(known) => known.clone(),
                None => {
                    let label = run.to_string();
                    let read = move |source: &reading::Reading| measured(source, run, &label);
                    let read = reading::blocking(opened, read).await?.map_err(CliError::Measure)?;
                    whole.insert(run, read.clone());
                    read
                }
            };
            let run = match &judged {
                Some(judged) => read.rejudged(judged),
                None => read,
            };
            found.push(Meant { run, agent: one.agent.clone(), rejudged: judged.map(|judged| judged.name) });
        }
        Ok(Self { sides: split(found)?, sources })
    }

    /// Where a run can be read again, if it is one of these.
    ///
    /// # Errors
    ///
    /// It cannot be reached any more.
    pub async fn source(&self, run: RunId, settings: &Settings) -> Result<Option<Source>, CliError> {
        match self.sources.get(&run) {
            Some(place) => Source::open(place, settings).await.map(Some),
            None => Ok(None),
        }
    }
}

/// How a command ends that cannot measure a run.
#[must_use]
pub fn exit(error: &MeasureError) -> Exit {
    match error {
        MeasureError::NoRun { .. } => Exit::Input,
        MeasureError::Read { source, .. } => source.downcast_ref::<CliError>().map_or(Exit::Store, CliError::exit),
    }
}

/// Where what is named is read: the command's own place, if it names none.
#[must_use]
pub fn place(named: &Named, own: &SourceArgs) -> SourceArgs {
    named.place.as_ref().map_or_else(|| own.clone(), |place| source_of(place.clone()))
}

/// A run as it is meant.
struct Meant {
    run: MeasuredRun,
    /// The agent; all if absent.
    agent: Option<String>,
    /// Whose verdicts, if not those that it was settled with.
    rejudged: Option<String>,
}

/// A folder is a store, a file names a coordinator.
fn source_of(place: PathBuf) -> SourceArgs {
    if place.is_file() {
        SourceArgs { coordinator: Some(place), store: None }
    } else {
        SourceArgs { coordinator: None, store: Some(place) }
    }
}

/// One side for each agent, each named so that no other is called the same.
fn split(runs: Vec<Meant>) -> Result<Vec<Side>, CliError> {
    let mut sides: Vec<Side> = Vec::new();
    for Meant { run, agent: wanted, rejudged } in runs {
        let id = run.run.id;
        if run.episodes.is_empty() {
            // Its record may outlive its episodes.
            let part = "episodes (any more)".to_owned();
            return Err(CliError::NoSuchPart { whole: format!("run {id}"), part, have: Vec::new() });
        }
        let mut agents: Vec<&str> = Vec::new();
        for episode in &run.episodes {
            if !agents.contains(&episode.row.agent.as_str()) {
                agents.push(&episode.row.agent);
            }
        }
        if let Some(wanted) = &wanted
            && !agents.contains(&wanted.as_str())
        {
            let have = agents.iter().map(|agent| format!("`{agent}`")).collect();
            return Err(CliError::NoSuchPart { whole: format!("run {id}"), part: format!("agent `{wanted}`"), have });
        }
        for agent in agents.iter().filter(|agent| wanted.as_deref().is_none_or(|wanted| wanted == **agent)) {
            if sides.iter().any(|side| side.run.id == id && side.agent == *agent && side.rejudged == rejudged) {
                return Err(CliError::Usage(format!("agent `{agent}` of run {id} is named twice")));
            }
            let episodes = run.episodes.iter().filter(|episode| episode.row.agent == **agent).cloned().collect();
            let agent = (*agent).to_owned();
            let label = rejudged.as_ref().map_or_else(|| agent.clone(), |by| format!("{agent} ({by})"));
            sides.push(Side { label, agent, run: run.run.clone(), episodes, rejudged: rejudged.clone() });
        }
    }
    let labels: Vec<String> = sides.iter().map(|side| side.label.clone()).collect();
    for side in &mut sides {
        if labels.iter().filter(|label| **label == side.label).count() > 1 {
            side.label = format!("{}:{}", side.run.id, side.label);
        }
    }
    Ok(sides)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(place: Option<&str>, run: &str, agent: Option<&str>) -> Result<Named, NamedError> {
        Ok(Named { place: place.map(PathBuf::from), run: run.to_owned(), agent: agent.map(str::to_owned) })
    }

    #[test]
    fn a_side_is_a_run_an_agent_of_it_or_one_of_another_store() {
        let parse = |text: &str| text.parse::<Named>();
        assert_eq!(parse("latest"), named(None, "latest", None));
        assert_eq!(parse("0abc:anthropic:claude"), named(None, "0abc", Some("anthropic:claude")));
        assert_eq!(parse("/old/results#latest:idle"), named(Some("/old/results"), "latest", Some("idle")));
        assert_eq!(parse("0abc:agent#2"), named(None, "0abc", Some("agent#2")));
        for text in ["", ":idle", "#latest", "results#", "0abc:"] {
            assert_eq!(parse(text), Err(NamedError { text: text.to_owned() }));
        }
    }
}

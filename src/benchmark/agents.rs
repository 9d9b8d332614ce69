//! Agents as the command line names them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use longhaul_core::agent::{AgentPlan, AgentSpec, ScriptError, parse_script};
use longhaul_core::ids::TaskName;

use super::tree::{TreeBuilder, TreeError};

/// An agent that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The text names no agent.
    #[error(
        "`{text}` names no agent: write `idle`, `scripted:FILE.jsonl` or `scripted:FOLDER` (with ENV/TASK.jsonl), with `NAME=` before it if you like"
    )]
    Unknown {
        /// The text.
        text: String,
    },
    /// Two agents have one name.
    #[error("two agents are called `{name}`: give one a name of its own, `NAME=scripted:PATH`")]
    SameName {
        /// The name.
        name: String,
    },
    /// A script is not there, or cannot be read.
    #[error("cannot read the script {} of the agent `{agent}`", path.display())]
    Read {
        /// The agent.
        agent: String,
        /// The script.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The folder has no script for a task.
    #[error("the agent `{agent}` has no script for the task {task}: {} is not there", path.display())]
    NoScript {
        /// The agent.
        agent: String,
        /// The task.
        task: TaskName,
        /// Where it should be.
        path: PathBuf,
    },
    /// A line of a script makes no sense.
    #[error("the script {} of the agent `{agent}` cannot be used", path.display())]
    Script {
        /// The agent.
        agent: String,
        /// The script.
        path: PathBuf,
        /// Why.
        #[source]
        source: ScriptError,
    },
    /// A script could not be kept.
    #[error(transparent)]
    Keep(#[from] TreeError),
}

/// An agent with where its answers come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agent {
    /// Done at once.
    Idle,
    /// Answers from one script for all tasks, or from a folder with one for each.
    Scripted {
        /// Its name in tables.
        name: String,
        /// The script, or the folder.
        path: PathBuf,
    },
}

impl Agent {
    /// Reads an agent as it is written: `idle`, `scripted:PATH`, or `NAME=scripted:PATH`.
    ///
    /// # Errors
    ///
    /// The text names no agent, or a path that is not there.
    pub fn parse(text: &str) -> Result<Self, AgentError> {
        let unknown = || AgentError::Unknown { text: text.to_owned() };
        if text == "idle" {
            return Ok(Self::Idle);
        }
        let (name, rest) = match text.split_once('=') {
            Some((name, rest)) if !name.contains([':', '/']) => (Some(name.trim()), rest),
            _ => (None, text),
        };
        let path = rest.strip_prefix("scripted:").filter(|path| !path.is_empty()).ok_or_else(unknown)?;
        let path = PathBuf::from(path);
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let name = match name {
            Some("") => return Err(unknown()),
            Some(name) => name.to_owned(),
            None => stem.unwrap_or_else(|| "scripted".to_owned()),
        };
        match fs::metadata(&path) {
            Ok(_) => Ok(Self::Scripted { name, path }),
            Err(source) => Err(AgentError::Read { agent: name, path, source }),
        }
    }

    /// Reads all agents of a run; their names are told apart.
    ///
    /// # Errors
    ///
    /// One of them cannot be read, or two have one name.
    pub fn parse_all<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<Vec<Self>, AgentError> {
        let mut agents: Vec<Self> = Vec::new();
        for text in texts {
            let agent = Self::parse(text)?;
            if agents.iter().any(|known| known.name() == agent.name()) {
                return Err(AgentError::SameName { name: agent.name().to_owned() });
            }
            agents.push(agent);
        }
        Ok(agents)
    }

    /// The name in tables.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Idle => "idle",
            Self::Scripted { name, .. } => name,
        }
    }

    /// The agent as a run names it.
    #[must_use]
    pub fn spec(&self) -> AgentSpec {
        match self {
            Self::Idle => AgentSpec::Idle,
            Self::Scripted { name, .. } => AgentSpec::Scripted { name: name.clone() },
        }
    }
}

/// Makes the plans of one agent; a script for all tasks is read once.
pub(super) struct AgentPlanner<'a> {
    agent: &'a Agent,
    known: BTreeMap<PathBuf, AgentPlan>,
}

impl<'a> AgentPlanner<'a> {
    pub(super) const fn new(agent: &'a Agent) -> Self {
        Self { agent, known: BTreeMap::new() }
    }

    /// The agent, ready to start on a task.
    pub(super) fn plan(&mut self, task: &TaskName, blobs: &mut TreeBuilder<'_>) -> Result<AgentPlan, AgentError> {
        let Agent::Scripted { name, path } = self.agent else { return Ok(AgentPlan::Idle) };
        let script =
            if path.is_dir() { path.join(&task.env).join(format!("{}.jsonl", task.task)) } else { path.clone() };
        if let Some(plan) = self.known.get(&script) {
            return Ok(plan.clone());
        }
        let text = read_script(name, task, &script)?;
        parse_script(&text).map_err(|source| AgentError::Script {
            agent: name.clone(),
            path: script.clone(),
            source,
        })?;
        let plan = AgentPlan::Scripted { script: blobs.put(&script, text.as_bytes())? };
        self.known.insert(script, plan.clone());
        Ok(plan)
    }
}

fn read_script(agent: &str, task: &TaskName, path: &Path) -> Result<String, AgentError> {
    fs::read_to_string(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => {
            AgentError::NoScript { agent: agent.to_owned(), task: task.clone(), path: path.to_owned() }
        }
        _ => AgentError::Read { agent: agent.to_owned(), path: path.to_owned(), source },
    })
}

//! Agents as the command line and run files name them.

mod external;
mod model;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use longhaul_core::agent::{AgentPlan, AgentSpec, ExternalAgent, ModelAgent, ScriptError, parse_script};
use longhaul_core::ids::TaskName;

pub use external::External;
pub use model::Parameters;
pub(crate) use model::{KEYS as PARAMETER_KEYS, read_image};

use super::tree::{Hide, TreeBuilder, TreeError};
use crate::nearest;
use crate::settings::{EndpointSettings, harness};
use crate::strict::StrictError;

/// An agent that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The text names no agent.
    #[error(
        "`{text}` names no agent: write `ENDPOINT:MODEL` (`anthropic:claude-sonnet-4-6`), `external:FILE.toml`, `scripted:FILE.jsonl`, `scripted:FOLDER` (with ENV/TASK.jsonl) or `idle`, with `NAME=` before it if you like"
    )]
    Unknown {
        /// The text.
        text: String,
    },
    /// No endpoint has the name.
    #[error("`{text}` needs an endpoint `{endpoint}`, and the settings have none of that name: {hint}")]
    NoEndpoint {
        /// What names it.
        text: String,
        /// The endpoint.
        endpoint: String,
        /// What was probably meant, or what there is.
        hint: String,
    },
    /// The parameters make no sense.
    #[error("the parameters of `{text}` cannot be used: {reason}")]
    Parameters {
        /// The agent, as it is written.
        text: String,
        /// What is wrong.
        reason: String,
    },
    /// The file of a program cannot be used.
    #[error("the agent `{text}` cannot be used")]
    External {
        /// The agent, as it is written.
        text: String,
        /// Why.
        #[source]
        source: StrictError,
    },
    /// Two agents have one name.
    #[error("two agents are called `{name}`: give one a name of its own, `NAME=...`")]
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
#[derive(Clone, Debug, PartialEq)]
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
    /// One of our loops around a model.
    Model {
        /// Its name in tables.
        name: String,
        /// The loop.
        agent: Box<ModelAgent>,
    },
    /// A program of somebody else's.
    External {
        /// Its name in tables.
        name: String,
        /// How it is started.
        external: Box<External>,
    },
}

/// An agent as it is asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AskedAgent {
    /// Its text: `[NAME=]ENDPOINT:MODEL[?PARAMETERS]` and so on.
    pub text: String,
    /// Its name, if it is not in the text.
    pub name: Option<String>,
    /// Its parameters, over those in the text.
    pub parameters: Parameters,
    /// The folder that paths in the text are relative to; this process's own if absent.
    pub folder: Option<PathBuf>,
}

impl AskedAgent {
    /// An agent that a text alone names.
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self { text: text.to_owned(), ..Self::default() }
    }

    fn path(&self, written: &str) -> PathBuf {
        self.folder.as_ref().map_or_else(|| PathBuf::from(written), |folder| folder.join(written))
    }
}

impl Agent {
    /// Reads an agent as it is asked for; `endpoints` are those of the settings.
    ///
    /// # Errors
    ///
    /// The text names no agent, or something that is not there.
    pub fn read(asked: &AskedAgent, endpoints: &BTreeMap<String, EndpointSettings>) -> Result<Self, AgentError> {
        let unknown = || AgentError::Unknown { text: asked.text.clone() };
        let (written, rest) = match asked.text.split_once('=') {
            Some((name, rest)) if !name.contains([':', '/', '?', '@']) => (Some(name.trim()), rest),
            _ => (None, asked.text.as_str()),
        };
        if written.is_some_and(str::is_empty) {
            return Err(unknown());
        }
        let name = asked.name.as_deref().or(written);
        if rest == "idle" {
            // The floor has one name everywhere.
            return if name.is_none_or(|name| name == "idle") { Ok(Self::Idle) } else { Err(unknown()) };
        }
        let (head, tail) = rest.split_once(':').filter(|(_, tail)| !tail.is_empty()).ok_or_else(unknown)?;
        match head {
            "scripted" => Self::scripted(name, asked.path(tail)),
            "external" => Self::external(name, asked, &asked.path(tail)),
            _ => Self::model(name, asked, (head, tail), endpoints),
        }
    }

    fn scripted(name: Option<&str>, path: PathBuf) -> Result<Self, AgentError> {
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let name = name.map_or_else(|| stem.unwrap_or_else(|| "scripted".to_owned()), str::to_owned);
        match fs::metadata(&path) {
            Ok(_) => Ok(Self::Scripted { name, path }),
            Err(source) => Err(AgentError::Read { agent: name, path, source }),
        }
    }

    fn external(name: Option<&str>, asked: &AskedAgent, path: &Path) -> Result<Self, AgentError> {
        if !asked.parameters.is_default() {
            let reason = "a program has none but what its own file says".to_owned();
            return Err(AgentError::Parameters { text: asked.text.clone(), reason });
        }
        let (own, external) =
            External::read(path).map_err(|source| AgentError::External { text: asked.text.clone(), source })?;
        let folder = path.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let name = name.map(str::to_owned).or(own).or(folder).unwrap_or_else(|| "external".to_owned());
        Ok(Self::External { name, external: Box::new(external) })
    }

    fn model(
        name: Option<&str>,
        asked: &AskedAgent,
        (head, tail): (&str, &str),
        endpoints: &BTreeMap<String, EndpointSettings>,
    ) -> Result<Self, AgentError> {
        let refuse = |reason| AgentError::Parameters { text: asked.text.clone(), reason };
        let (model, query) = tail.split_once('?').unwrap_or((tail, ""));
        if model.is_empty() || model.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(AgentError::Unknown { text: asked.text.clone() });
        }
        let (word, endpoint) = match head.split_once('@') {
            Some((word, endpoint)) => (Some(word), endpoint),
            None => (None, head),
        };
        let mut parameters = asked.parameters.clone().over(Parameters::parse(query).map_err(refuse)?);
        if let Some(word) = word {
            let named = harness(word).map_err(|_| refuse(format!("`{word}` is no loop")))?;
            if parameters.harness.is_some_and(|other| other != named) {
                return Err(refuse("two loops are named".to_owned()));
            }
            parameters.harness = Some(named);
        }
        let settings = endpoints.get(endpoint).ok_or_else(|| no_endpoint(&asked.text, endpoint, endpoints))?;
        let agent = Box::new(parameters.agent(endpoint, model, settings.harness(endpoint)));
        Ok(Self::Model { name: name.unwrap_or(model).to_owned(), agent })
    }

    /// Reads all agents of a run; their names are told apart.
    ///
    /// # Errors
    ///
    /// One of them cannot be read, or two have one name.
    pub fn read_all(
        asked: &[AskedAgent],
        endpoints: &BTreeMap<String, EndpointSettings>,
    ) -> Result<Vec<Self>, AgentError> {
        let mut agents: Vec<Self> = Vec::new();
        for asked in asked {
            let agent = Self::read(asked, endpoints)?;
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
            Self::Scripted { name, .. } | Self::Model { name, .. } | Self::External { name, .. } => name,
        }
    }

    /// The agent as a run names it.
    #[must_use]
    pub fn spec(&self) -> AgentSpec {
        match self {
            Self::Idle => AgentSpec::Idle,
            Self::Scripted { name, .. } => AgentSpec::Scripted { name: name.clone() },
            Self::Model { name, agent } => AgentSpec::Model {
                name: name.clone(),
                harness: agent.harness,
                endpoint: agent.endpoint.clone(),
                model: agent.model.clone(),
            },
            Self::External { name, external } => {
                AgentSpec::External { name: name.clone(), endpoints: external.endpoints.clone() }
            }
        }
    }
}

/// What to say of an endpoint that the settings do not have.
pub(crate) fn no_endpoint(text: &str, endpoint: &str, known: &BTreeMap<String, EndpointSettings>) -> AgentError {
    let known: Vec<&str> = known.keys().map(String::as_str).collect();
    let hint = nearest::hint(endpoint, &known, |names| {
        format!("there are {names} (a table `[endpoint.{endpoint}]` adds one)")
    });
    AgentError::NoEndpoint { text: text.to_owned(), endpoint: endpoint.to_owned(), hint }
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
        let (name, path) = match self.agent {
            Agent::Idle => return Ok(AgentPlan::Idle),
            Agent::Model { agent, .. } => return Ok(AgentPlan::Model(agent.clone())),
            Agent::External { external, .. } => return external_plan(external, blobs),
            Agent::Scripted { name, path } => (name, path),
        };
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

/// A program with its files as they are now.
fn external_plan(external: &External, blobs: &mut TreeBuilder<'_>) -> Result<AgentPlan, AgentError> {
    let files = external.files.as_deref().map(|folder| blobs.tree(folder, Hide::Nothing)).transpose()?;
    Ok(AgentPlan::External(Box::new(ExternalAgent {
        command: external.command.clone(),
        files,
        image: external.image.clone(),
        variables: external.variables.clone(),
        endpoints: external.endpoints.clone(),
        answer_limit: external.answer_limit,
        memory_mib: external.memory_mib,
        net: external.net,
    })))
}

#[cfg(test)]
mod tests {
    use longhaul_core::agent::Harness;

    use super::*;
    use crate::settings::parse;

    fn endpoints() -> BTreeMap<String, EndpointSettings> {
        let text = "[endpoint.my-vllm]\nprotocol = 'openai'\nurls = ['http://node7:8000']\n";
        parse(text, Path::new("settings.toml")).unwrap().endpoint
    }

    fn read(text: &str) -> Result<Agent, AgentError> {
        Agent::read(&AskedAgent::of(text), &endpoints())
    }

    fn model(text: &str) -> (String, ModelAgent) {
        match read(text) {
            Ok(Agent::Model { name, agent }) => (name, *agent),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn a_model_is_named_by_its_endpoint() {
        let (name, agent) = model("anthropic:claude-sonnet-4-6");
        assert_eq!((name.as_str(), agent.harness), ("claude-sonnet-4-6", Harness::AnthropicComputer));
        let (name, agent) = model("mine=openai:gpt-5.4?keep_images=3&max_output=2048");
        assert_eq!((name.as_str(), agent.harness, agent.keep_images), ("mine", Harness::OpenaiComputer, 3));
        let (name, agent) = model("tools@my-vllm:Qwen/Qwen3-VL-4B:latest");
        assert_eq!((name.as_str(), agent.harness), ("Qwen/Qwen3-VL-4B:latest", Harness::Tools));
        assert_eq!(agent.endpoint, "my-vllm");
        assert_eq!(model("tools@anthropic:x?image=800x600").1.harness, Harness::Tools);
    }

    #[test]
    fn what_names_no_agent_says_what_does() {
        for (text, said) in [
            ("genius", "`genius` names no agent"),
            ("=anthropic:m", "names no agent"),
            ("anthropic:", "names no agent"),
            ("anthropic:a b", "names no agent"),
            ("mine=idle", "names no agent"),
            ("antropic:m", "did you mean `anthropic`?"),
            ("xyzzy:m", "there are anthropic, gemini, my-vllm, openai (a table `[endpoint.xyzzy]` adds one)"),
            ("anthropic:m?keep_image=3", "did you mean `keep_images`?"),
            ("tool@anthropic:m", "`tool` is no loop"),
            ("tools@anthropic:m?harness=gemini-computer", "two loops are named"),
            ("external:nowhere.toml", "the agent `external:nowhere.toml` cannot be used"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(said), "{text:?} gave {error:?}");
        }
        let twice = [AskedAgent::of("anthropic:m"), AskedAgent::of("openai:m")];
        assert!(matches!(Agent::read_all(&twice, &endpoints()), Err(AgentError::SameName { .. })));
    }
}

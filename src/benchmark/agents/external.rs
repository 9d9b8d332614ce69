//! Agents that are somebody else's program: the file that says how it is started.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use longhaul_core::agent::ExternalAgent;
use longhaul_core::time::Millis;

use crate::strict::{Source, StrictError};
use crate::units;

/// How long a program may be silent when an answer is due, where its file does not say.
const ANSWER_LIMIT: Millis = Millis::from_secs(600);

/// The most bytes of an environment.
const MAX_VARIABLES: usize = 64 * 1024;

/// A program of somebody else's, as its file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    /// The program and its arguments, as they are found inside its sandbox.
    pub command: Vec<String>,
    /// The folder that is frozen and seen at `/agent`; none if it brings no files.
    pub files: Option<PathBuf>,
    /// The image that it stands on; the usual one if absent.
    pub image: Option<String>,
    /// Variables of its environment.
    pub variables: BTreeMap<String, String>,
    /// The endpoints that it may call.
    pub endpoints: Vec<String>,
    /// The models that it will ask them for, as `ENDPOINT:MODEL`, so that a missing price is
    /// found before it starts.
    pub models: Vec<(String, String)>,
    /// How long it may be silent when an answer is due.
    pub answer_limit: Millis,
    /// The most memory that it may use, in MiB.
    pub memory_mib: u32,
    /// Whether it has a way out to the network beside the gateway.
    pub net: bool,
}

/// What can be said of a program.
const KEYS: [&str; 10] =
    ["name", "command", "files", "image", "variables", "endpoints", "models", "answer_limit", "memory", "net"];

/// The least memory that a program can be given, in bytes: less is a slip of the pen.
const LEAST_MEMORY: u64 = 64 << 20;

impl External {
    /// Reads the file of an agent; its name, if it says one, comes with it.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or makes no sense.
    pub fn read(path: &Path) -> Result<(Option<String>, Self), StrictError> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
        Source::read(path)?.table(&KEYS, |fields| {
            let command = fields.texts("command")?.unwrap_or_default();
            if command.first().is_none_or(String::is_empty) {
                return Err(fields.missing("command", "the program and its arguments, [\"python3\", \"agent.py\"]"));
            }
            if command.iter().any(|part| part.contains('\0')) {
                return Err(fields.refuse_at("command", "a part of it has a zero byte"));
            }
            // Its own folder, unless it says another one; an empty text is none.
            let files = match fields.text("files")?.as_deref() {
                Some("") => None,
                Some(other) => Some(folder.join(other)),
                None => Some(folder.to_owned()),
            };
            if let Some(files) = files.as_ref().filter(|files| !files.is_dir()) {
                return Err(fields.refuse_at("files", format!("{} is no folder", files.display())));
            }
            let models = fields.texts("models")?.unwrap_or_default();
            let models = models
                .iter()
                .map(|text| {
                    let (endpoint, model) =
                        text.split_once(':').filter(|(_, model)| !model.is_empty()).ok_or_else(|| {
                            fields
                                .refuse_at("models", format!("`{text}` is no ENDPOINT:MODEL, such as `openai:gpt-5.4`"))
                        })?;
                    Ok((endpoint.to_owned(), model.to_owned()))
                })
                .collect::<Result<Vec<_>, StrictError>>()?;
            let mut endpoints = fields.texts("endpoints")?.unwrap_or_default();
            endpoints.extend(models.iter().map(|(endpoint, _)| endpoint.clone()));
            endpoints.sort();
            endpoints.dedup();
            let mut variables = BTreeMap::new();
            if let Some(table) = fields.open_table("variables")? {
                for name in table.keys() {
                    let value = table.text(name)?.unwrap_or_default();
                    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
                    if name.is_empty() || !name.bytes().all(word) || value.contains('\0') {
                        return Err(table.refuse_at(name, "is no variable of an environment"));
                    }
                    variables.insert(name.to_owned(), value);
                }
                if variables.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_VARIABLES {
                    return Err(table.refuse("the variables are too long for an environment".to_owned()));
                }
            }
            let name = fields.text("name")?;
            let image = fields.text("image")?.filter(|image| !image.is_empty());
            let answer_limit = fields.duration("answer_limit")?.unwrap_or(ANSWER_LIMIT);
            if answer_limit.0 == 0 {
                return Err(fields.refuse_at("answer_limit", "leaves no time for an answer"));
            }
            let memory_mib = match fields.read("memory", units::size)? {
                None => ExternalAgent::USUAL_MEMORY_MIB,
                Some(bytes) if bytes < LEAST_MEMORY => {
                    return Err(fields.refuse_at("memory", "is too little for a program: 64MiB is the least"));
                }
                Some(bytes) => u32::try_from(bytes.div_ceil(1 << 20)).unwrap_or(u32::MAX),
            };
            let net = fields.truth("net")?.unwrap_or(false);
            Ok((name, Self { command, files, image, variables, endpoints, models, answer_limit, memory_mib, net }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(Option<String>, External), StrictError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.toml");
        std::fs::write(&path, text).unwrap();
        External::read(&path)
    }

    #[test]
    fn a_program_is_described_by_its_file() {
        let (name, agent) = read(
            "name = 'mine'\ncommand = ['python3', 'agent.py']\nmodels = ['openai:gpt-5.4', 'my-vllm:a/b:c']\n\
             endpoints = ['anthropic']\nanswer_limit = '2m'\n[variables]\nSEED = '7'\n",
        )
        .unwrap();
        assert_eq!((name.as_deref(), agent.command.len(), agent.answer_limit), (Some("mine"), 2, Millis(120_000)));
        assert_eq!(agent.endpoints, ["anthropic", "my-vllm", "openai"]);
        assert_eq!(agent.models[1], ("my-vllm".to_owned(), "a/b:c".to_owned()));
        assert!(agent.files.is_some(), "its own folder is frozen");
        assert_eq!((agent.memory_mib, agent.net), (4096, false), "no way out but the gateway");
        let (_, agent) = read("command = 'agent'\nfiles = ''\nmemory = '1536MiB'\nnet = true\n").unwrap();
        assert_eq!((agent.files, agent.memory_mib, agent.net), (None, 1536, true));
    }

    #[test]
    fn what_is_wrong_in_it_is_said_with_its_place() {
        for (text, said) in [
            ("", "`command` is missing"),
            ("command = []", "`command` is missing"),
            ("command = ['']", "`command` is missing"),
            ("comand = 'x'", "did you mean `command`?"),
            ("command = 'x'\nfiles = 'nowhere'", "is no folder"),
            ("command = 'x'\nmodels = ['gpt-5.4']", "is no ENDPOINT:MODEL"),
            ("command = 'x'\nanswer_limit = 'soon'", "is not a length of time"),
            ("command = 'x'\nanswer_limit = '0s'", "leaves no time"),
            ("command = 'x'\nmemory = 'lots'", "is not a size"),
            ("command = 'x'\nmemory = '4MiB'", "too little"),
            ("command = 'x'\nnet = 'yes'", "true or false"),
            ("command = 'x'\n[variables]\n'A B' = '1'", "is no variable"),
            ("command = 'x'\n[variables]\nA = 1", "expected a text, found integer"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(said), "{text:?} gave {error:?}");
        }
    }
}

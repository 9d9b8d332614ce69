//! What can be set about models: where they are served, and what they cost.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::PathBuf;

use longhaul_core::agent::Harness;
use longhaul_core::endpoint::{EndpointPlan, ModelLimits, Protocol, RateLimits};
use longhaul_core::replicas::check_address;
use longhaul_core::time::Millis;
use serde::Deserialize;
use toml::de::{DeTable, DeValue};

use super::load::fill;
use super::model::{duration, optional};

/// What models cost.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceSettings {
    /// A file whose rows come before the table that is compiled in.
    #[serde(deserialize_with = "optional_path")]
    pub file: Option<PathBuf>,
}

/// Where models are served.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointSettings {
    /// What it speaks.
    #[serde(deserialize_with = "protocol")]
    pub protocol: Protocol,
    /// Whose prices hold; the endpoint's own name if absent.
    #[serde(deserialize_with = "optional")]
    pub vendor: Option<String>,
    /// Its addresses.
    pub urls: Vec<String>,
    /// The file that names them, in their place.
    #[serde(deserialize_with = "optional")]
    pub replicas_file: Option<String>,
    /// The variable of this process that holds its key.
    #[serde(deserialize_with = "optional")]
    pub key_env: Option<String>,
    /// The loop that drives its models where an agent does not say.
    #[serde(deserialize_with = "optional")]
    pub harness: Option<String>,
    /// Calls in flight; 0 is no such limit.
    pub concurrent: u32,
    /// Calls a minute; 0 is no such limit.
    pub requests_per_minute: u32,
    /// Tokens a minute; 0 is no such limit.
    pub tokens_per_minute: u64,
    /// The limits of some of its models, by their name, or by its beginning and a `*`.
    #[serde(default)]
    pub model: BTreeMap<String, ModelSettings>,
    /// When a call is given up.
    #[serde(deserialize_with = "duration")]
    pub call_limit: Millis,
    /// How often a call is tried again.
    pub retries: u32,
    /// Whether the coordinator connects for workers.
    pub relay: bool,
}

/// The limits of some models of an endpoint, beside its own; 0 is no such limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSettings {
    /// Calls in flight.
    #[serde(default)]
    pub concurrent: u32,
    /// Calls a minute.
    #[serde(default)]
    pub requests_per_minute: u32,
    /// Tokens a minute.
    #[serde(default)]
    pub tokens_per_minute: u64,
}

impl ModelSettings {
    /// As a run freezes them.
    fn limits(self) -> RateLimits {
        RateLimits {
            concurrent: Some(self.concurrent).filter(|limit| *limit > 0),
            requests_per_minute: Some(self.requests_per_minute).filter(|limit| *limit > 0),
            tokens_per_minute: Some(self.tokens_per_minute).filter(|limit| *limit > 0),
        }
    }
}

impl EndpointSettings {
    /// What all its models may do together.
    const fn together(&self) -> ModelSettings {
        ModelSettings {
            concurrent: self.concurrent,
            requests_per_minute: self.requests_per_minute,
            tokens_per_minute: self.tokens_per_minute,
        }
    }

    /// The limits of models, the nearest name first: whole ones, and then the longer beginnings.
    fn model_limits(&self) -> Vec<ModelLimits> {
        let mut names: Vec<_> = self.model.iter().collect();
        names.sort_by_key(|(name, _)| (name.ends_with('*'), Reverse(name.len())));
        names.into_iter().map(|(name, set)| ModelLimits { model: name.clone(), limits: set.limits() }).collect()
    }

    /// Whose prices hold for the endpoint of this name: its own, unless a vendor is named.
    #[must_use]
    pub fn vendor<'a>(&'a self, name: &'a str) -> &'a str {
        self.vendor.as_deref().unwrap_or(name)
    }

    /// The loop that drives its models where an agent does not say: the vendor's own, and
    /// functions of our own for servers that only speak the same protocol.
    #[must_use]
    pub fn harness(&self, name: &str) -> Harness {
        let set = self.harness.as_deref().and_then(|word| harness(word).ok());
        set.unwrap_or_else(|| match (self.protocol, self.vendor(name)) {
            (Protocol::Anthropic, _) => Harness::AnthropicComputer,
            (Protocol::Gemini, _) => Harness::GeminiComputer,
            (Protocol::OpenAi, "openai") => Harness::OpenaiComputer,
            (Protocol::OpenAi, _) => Harness::Tools,
        })
    }

    /// The endpoint as a run freezes it.
    #[must_use]
    pub fn plan(&self, name: &str) -> EndpointPlan {
        EndpointPlan {
            name: name.to_owned(),
            protocol: self.protocol,
            vendor: self.vendor(name).to_owned(),
            urls: self.urls.clone(),
            secret: self.key_env.clone(),
            limits: self.together().limits(),
            model_limits: self.model_limits(),
            call_limit: self.call_limit,
            retries: self.retries,
            relay: self.relay,
            replicas_file: self.replicas_file.clone(),
        }
    }

    fn check(&self) -> Result<(), String> {
        match (&self.replicas_file, self.urls.is_empty()) {
            (None, true) => return Err("`urls` names no address, such as [\"http://node7:8000\"]".to_owned()),
            (Some(_), false) => {
                return Err(
                    "`urls` and `replicas_file` both say where it is: leave one of them out (`urls = []`)".to_owned()
                );
            }
            (Some(file), true) if !file.starts_with('/') => {
                return Err(format!("`replicas_file`: {file} is no absolute path, such as /shared/vllm/addresses"));
            }
            _ => {}
        }
        self.urls.iter().try_for_each(|url| check_address(url)).map_err(|error| error.to_string())?;
        if let Some(name) = self.model.keys().find(|name| name.is_empty()) {
            return Err(format!("`model.{name:?}` names no model"));
        }
        if let Some(name) = self.model.keys().find(|name| name.trim_end_matches('*').contains('*')) {
            return Err(format!("`model.{name:?}`: a `*` stands at the end of a name"));
        }
        if self.call_limit.0 == 0 {
            return Err("`call_limit` leaves no time for a call".to_owned());
        }
        if let Some(variable) = &self.key_env {
            let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            if !variable.bytes().all(word) || variable.starts_with(|first: char| first.is_ascii_digit()) {
                return Err("`key_env` is the name of an environment variable, not the key itself".to_owned());
            }
        }
        self.harness.as_deref().map_or(Ok(()), |word| harness(word).map(|_| ()))
    }
}

/// The loop of that name.
///
/// # Errors
///
/// There is none; the message says which there are.
pub fn harness(word: &str) -> Result<Harness, String> {
    let known = Harness::ALL.map(Harness::name);
    let found = Harness::ALL.into_iter().find(|harness| harness.name() == word);
    found.ok_or_else(|| format!("`{word}` is no loop; there are {}", known.join(", ")))
}

/// What an endpoint of a person's own is where its table does not say. Everything but its
/// protocol and addresses has a value.
fn template(endpoints: &toml::Table) -> Option<toml::Table> {
    let mut template = endpoints.get("openai")?.as_table()?.clone();
    for key in ["vendor", "key_env", "harness", "replicas_file"] {
        template.insert(key.to_owned(), toml::Value::String(String::new()));
    }
    template.insert("urls".to_owned(), toml::Value::Array(Vec::new()));
    Some(template)
}

/// Makes known the endpoints that a file names.
pub(super) fn name_endpoints(known: &mut toml::Table, given: &DeTable<'_>) {
    let Some(toml::Value::Table(endpoints)) = known.get_mut("endpoint") else { return };
    let Some(template) = template(endpoints) else { return };
    let Some(DeValue::Table(given)) = given.get("endpoint").map(|value| value.get_ref()) else { return };
    for (name, given) in given {
        let known = endpoints.entry(name.get_ref().to_string());
        let known = known.or_insert_with(|| toml::Value::Table(template.clone()));
        if let (toml::Value::Table(known), DeValue::Table(given)) = (known, given.get_ref()) {
            name_models(known, given);
        }
    }
}

/// Makes known the models that an endpoint of a file names.
fn name_models(known: &mut toml::Table, given: &DeTable<'_>) {
    let limits = ["concurrent", "requests_per_minute", "tokens_per_minute"];
    let limits: toml::Table = limits.map(|name| (name.to_owned(), toml::Value::Integer(0))).into_iter().collect();
    let mut models = toml::Table::new();
    if let Some(DeValue::Table(given)) = given.get("model").map(|value| value.get_ref()) {
        models.extend(given.keys().map(|name| (name.get_ref().to_string(), toml::Value::Table(limits.clone()))));
    }
    known.insert("model".to_owned(), toml::Value::Table(models));
}

/// Makes every endpoint whole; `defaults` are those that are there when none is named.
pub(super) fn complete(settings: &mut toml::Table, defaults: &toml::Table) {
    let Some(toml::Value::Table(defaults)) = defaults.get("endpoint") else { return };
    let Some(mut template) = template(defaults) else { return };
    // What is spoken there is not guessed.
    template.remove("protocol");
    let Some(toml::Value::Table(endpoints)) = settings.get_mut("endpoint") else { return };
    for (_, endpoint) in endpoints.iter_mut().filter(|(name, _)| !defaults.contains_key(name.as_str())) {
        fill(endpoint, &template);
    }
}

/// What is wrong with values that are fine each by itself.
pub(super) fn check(endpoints: &BTreeMap<String, EndpointSettings>) -> Result<(), (&'static str, String)> {
    for (name, endpoint) in endpoints {
        let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if name.is_empty() || !name.bytes().all(word) {
            return Err(("endpoint", format!("{name}: a name has letters, digits, - and _")));
        }
        if matches!(name.as_str(), "idle" | "scripted" | "external") {
            return Err(("endpoint", format!("{name}: this is what an agent is, and cannot be an endpoint")));
        }
        endpoint.check().map_err(|reason| ("endpoint", format!("{name}: {reason}")))?;
    }
    Ok(())
}

fn protocol<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Protocol, D::Error> {
    let word = String::deserialize(deserializer)?;
    let known = Protocol::ALL.map(Protocol::name);
    let found = Protocol::ALL.into_iter().find(|protocol| protocol.name() == word);
    found.ok_or_else(|| {
        serde::de::Error::custom(format!(
            "`{word}` is no protocol: write {}",
            known.map(|name| format!("`{name}`")).join(", ")
        ))
    })
}

fn optional_path<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    Ok(optional(deserializer)?.map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Settings;
    use super::super::load::{SettingsError, parse};
    use super::*;

    fn read(text: &str) -> Result<Settings, SettingsError> {
        parse(text, Path::new("settings.toml"))
    }

    #[test]
    fn the_three_vendors_are_there_without_a_word() {
        let settings = read("").unwrap();
        let names: Vec<_> = settings.endpoint.keys().map(String::as_str).collect();
        assert_eq!(names, ["anthropic", "gemini", "openai"]);
        for (name, harness) in [
            ("anthropic", Harness::AnthropicComputer),
            ("gemini", Harness::GeminiComputer),
            ("openai", Harness::OpenaiComputer),
        ] {
            let endpoint = &settings.endpoint[name];
            assert_eq!((endpoint.vendor(name), endpoint.harness(name)), (name, harness));
            assert!(endpoint.plan(name).secret.is_some());
        }
    }

    #[test]
    fn a_server_of_ones_own_needs_its_protocol_and_address() {
        let text = "[endpoint.my-vllm]\nprotocol = 'openai'\nurls = ['http://node7:8000', 'http://node8:8000']\n";
        let settings = read(text).unwrap();
        let endpoint = &settings.endpoint["my-vllm"];
        assert_eq!((endpoint.vendor("my-vllm"), endpoint.harness("my-vllm")), ("my-vllm", Harness::Tools));
        let plan = endpoint.plan("my-vllm");
        assert_eq!((plan.urls.len(), plan.secret, plan.limits), (2, None, RateLimits::default()));
        assert_eq!(settings.endpoint.len(), 4, "the vendors are still there");
    }

    #[test]
    fn a_file_may_name_the_addresses_in_their_place() {
        let settings = read("[endpoint.x]\nprotocol = 'openai'\nreplicas_file = '/shared/addresses'\n").unwrap();
        let plan = settings.endpoint["x"].plan("x");
        assert_eq!((plan.urls.len(), plan.replicas_file.as_deref()), (0, Some("/shared/addresses")));
    }

    #[test]
    fn one_word_of_a_vendors_endpoint_may_be_changed() {
        let settings = read("[endpoint.anthropic]\nconcurrent = 8\n").unwrap();
        let plan = settings.endpoint["anthropic"].plan("anthropic");
        assert_eq!(plan.limits.concurrent, Some(8));
        assert_eq!(plan.secret.as_deref(), Some("ANTHROPIC_API_KEY"));
    }

    #[test]
    fn models_may_have_limits_of_their_own_of_which_the_nearest_name_counts() {
        let settings = read(
            "[endpoint.anthropic]\nconcurrent = 50\n[endpoint.anthropic.model.'claude-*']\nrequests_per_minute = 60\n\
             [endpoint.anthropic.model.'claude-opus-4*']\nconcurrent = 4\n\
             [endpoint.anthropic.model.'claude-opus-4-1']\ntokens_per_minute = 9\n\
             [endpoint.x]\nprotocol = 'openai'\nurls = ['http://a']\n[endpoint.x.model.m]\nconcurrent = 1\n",
        );
        let settings = settings.unwrap();
        let plan = settings.endpoint["anthropic"].plan("anthropic");
        let of = |model| plan.limits_of(model).map(|found| (found.model.as_str(), found.limits));
        let (none, opus) = (RateLimits::default(), RateLimits { concurrent: Some(4), ..RateLimits::default() });
        assert_eq!(plan.limits.concurrent, Some(50), "those of the endpoint hold beside them");
        assert_eq!(of("claude-opus-4-1"), Some(("claude-opus-4-1", RateLimits { tokens_per_minute: Some(9), ..none })));
        assert_eq!(of("claude-opus-4-6"), Some(("claude-opus-4*", opus)));
        assert_eq!(of("claude-sonnet-4-6"), Some(("claude-*", RateLimits { requests_per_minute: Some(60), ..none })));
        assert_eq!(of("other"), None);
        assert_eq!(settings.endpoint["x"].plan("x").model_limits.len(), 1);
        assert_eq!(settings.endpoint["openai"].plan("openai").model_limits, []);
    }

    #[test]
    fn what_is_no_endpoint_is_refused_by_its_reason() {
        let own = |rest: &str| format!("[endpoint.x]\nprotocol = 'openai'\n{rest}");
        for (text, said) in [
            ("[endpoint.x]\nurls = ['http://a']\n".to_owned(), "missing field `protocol`"),
            (own(""), "x: `urls` names no address"),
            (own("urls = ['node7:8000']\n"), "x: `node7:8000` is no address"),
            (own("urls = ['http://a']\nreplicas_file = '/b'\n"), "both say where it is"),
            (own("replicas_file = 'addresses'\n"), "addresses is no absolute path"),
            ("[endpoint.openai]\nreplicas_file = '/b'\n".to_owned(), "leave one of them out (`urls = []`)"),
            (own("urls = ['https://']\n"), "x: `https://` is no address"),
            (own("urls = ['https://key@host']\n"), "x: an address holds no user, password or key"),
            (own("urls = ['https://host/?key=1']\n"), "x: an address holds no user, password or key"),
            (own("urls = ['http://a:8000/v1']\n"), "leave out `/v1`"),
            (own("urls = ['http://a']\nkey_env = 'sk-123'\n"), "not the key itself"),
            (own("urls = ['http://a']\ncall_limit = '0s'\n"), "leaves no time"),
            (own("urls = ['http://a']\nharness = 'tool'\n"), "`tool` is no loop; there are"),
            ("[endpoint.'a b']\nprotocol = 'openai'\nurls = ['http://a']\n".to_owned(), "a b: a name has letters"),
            ("[endpoint.idle]\nprotocol = 'openai'\nurls = ['http://a']\n".to_owned(), "cannot be an endpoint"),
            ("[endpoint.x]\nprotocol = 'grpc'\n".to_owned(), "`grpc` is no protocol: write `openai`"),
            ("[endpoint.x]\nkey = 'sk-1'\n".to_owned(), "there is no setting `endpoint.x.key`"),
            (own("urls = ['http://a']\nmodel.m.rate = 3\n"), "there is no setting `endpoint.x.model.m.rate`"),
            (own("urls = ['http://a']\nmodel.'a*b'.concurrent = 3\n"), "a `*` stands at the end of a name"),
            (own("urls = ['http://a']\nmodel.''.concurrent = 3\n"), "names no model"),
            (own("urls = ['http://a']\nmodel = 'm'\n"), "model"),
        ] {
            let error = read(&text).expect_err(&text).to_string();
            assert!(error.contains(said), "{text:?} gave {error:?}");
        }
    }
}

//! The keys of model vendors: from the environment of this process to the coordinator's memory,
//! and nowhere else.

use longhaul_core::endpoint::GatewayPlan;
use longhaul_gateway::ports::{Secret, Secrets};
use longhaul_proto::v1;

use crate::client::Client;
use crate::error::CliError;
use crate::output;
use crate::settings::Settings;

/// Keys on their way. They are not shown.
#[derive(Default)]
pub(crate) struct Keys(Vec<v1::NamedSecret>);

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|key| &key.name)).finish()
    }
}

/// For calls that this process makes itself.
impl Secrets for Keys {
    fn get(&self, name: &str) -> Option<Secret> {
        self.0.iter().find(|key| key.name == name).map(|key| Secret::new(key.value.clone()))
    }
}

/// A key that a run needs and this process does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MissingKey {
    /// The endpoint.
    pub(crate) endpoint: String,
    /// The variable.
    pub(crate) variable: String,
}

/// The value of a variable, if it is set to something.
fn value(variable: &str) -> Option<String> {
    std::env::var(variable).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// The keys that a run needs, and those of them that this process does not have.
pub(crate) fn of_run(gateway: Option<&GatewayPlan>) -> (Keys, Vec<MissingKey>) {
    let (mut keys, mut missing) = (Keys::default(), Vec::new());
    for endpoint in gateway.into_iter().flat_map(|plan| &plan.endpoints) {
        let Some(name) = &endpoint.secret else { continue };
        match value(name) {
            Some(value) if keys.0.iter().all(|key| key.name != *name) => {
                keys.0.push(v1::NamedSecret { name: name.clone(), value });
            }
            Some(_) => {}
            None => missing.push(MissingKey { endpoint: endpoint.name.clone(), variable: name.clone() }),
        }
    }
    (keys, missing)
}

/// The keys of all endpoints in the settings that this process has.
pub(crate) fn of_settings(settings: &Settings) -> Keys {
    let mut names: Vec<&String> = settings.endpoint.values().filter_map(|endpoint| endpoint.key_env.as_ref()).collect();
    names.sort();
    names.dedup();
    let key = |name: &String| Some(v1::NamedSecret { name: name.clone(), value: value(name)? });
    Keys(names.into_iter().filter_map(key).collect())
}

/// The variables that hold keys: no child of ours is given them.
pub(crate) fn variables(settings: &Settings) -> impl Iterator<Item = &str> {
    settings.endpoint.values().filter_map(|endpoint| endpoint.key_env.as_deref())
}

/// Gives keys to a coordinator, which keeps them in its memory.
///
/// # Errors
///
/// It does not take them.
pub(crate) async fn put(client: &Client, keys: Keys) -> Result<(), CliError> {
    if keys.0.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = keys.0.iter().map(|key| key.name.as_str()).collect();
    tracing::info!(?names, "keys are given to the coordinator");
    let request = v1::PutSecretsRequest { secrets: keys.0 };
    client.control.clone().put_secrets(request).await.map_err(client.refused("take the keys of model vendors"))?;
    Ok(())
}

/// What to say of keys that are not there, where they are not needed yet.
pub(crate) fn warn(missing: &[MissingKey], rest: &str) {
    for MissingKey { endpoint, variable } in missing {
        output::note(&output::escape(&format!(
            "warning: the endpoint `{endpoint}` needs a key, and the variable {variable} is not set{rest}"
        )));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_never_shown() {
        let keys = Keys(vec![v1::NamedSecret { name: "SOME_KEY".to_owned(), value: "sk-1".to_owned() }]);
        assert_eq!(format!("{keys:?}"), "[\"SOME_KEY\"]");
    }

    #[test]
    fn a_key_that_is_not_there_is_named_with_its_endpoint() {
        let endpoint = crate::settings::parse(
            "[endpoint.x]\nprotocol = 'openai'\nurls = ['http://a']\nkey_env = 'A_VARIABLE_THAT_NOBODY_SETS'\n",
            std::path::Path::new("s.toml"),
        );
        let endpoint = endpoint.unwrap().endpoint["x"].plan("x");
        let plan = GatewayPlan { endpoints: vec![endpoint], ..GatewayPlan::default() };
        let (keys, missing) = of_run(Some(&plan));
        assert!(keys.0.is_empty());
        assert_eq!(missing[0].variable, "A_VARIABLE_THAT_NOBODY_SETS");
    }
}

//! What a loop is told beside the plan's own fields: its options, under the key `loop` of the
//! agent's parameters. They are the loop's and are not sent to the vendor.

use serde::Deserialize;
use serde_json::{Map, Value};

/// The key of the options in the parameters.
pub(crate) const KEY: &str = "loop";

/// The options of a loop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Options {
    /// The version of the vendor's tool; by the model's name if absent.
    pub(crate) tool: Option<String>,
    /// Further values of `anthropic-beta`.
    pub(crate) betas: Vec<String>,
    /// What Gemini's tool calls its surroundings: `ENVIRONMENT_DESKTOP`, ...
    pub(crate) environment: Option<String>,
    /// What coordinates count; by the model's name if absent.
    pub(crate) coordinates: Option<Coordinates>,
    /// How a model behind chat completions makes calls.
    pub(crate) calls: Calls,
}

/// What a model's coordinates count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Coordinates {
    /// Pixels of the picture that it is sent.
    Pixels,
    /// Thousandths of the screen, from 0 to 1000.
    Thousandths,
}

/// How a model behind chat completions makes calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Calls {
    /// As functions, in the protocol's own form; what is found in the text counts too.
    #[default]
    Functions,
    /// In its text, since the server has no parser for them.
    Text,
}

impl Options {
    /// Takes the options out of an agent's parameters.
    ///
    /// # Errors
    ///
    /// They hold something that is no option.
    pub(crate) fn take(parameters: &mut Map<String, Value>) -> Result<Self, String> {
        match parameters.remove(KEY) {
            None => Ok(Self::default()),
            Some(value) => serde_json::from_value(value).map_err(|error| format!("the loop's options: {error}")),
        }
    }
}

/// Puts fields into a request, into objects that are there on both sides too.
pub(crate) fn merge(into: &mut Map<String, Value>, fields: &Map<String, Value>) {
    for (name, value) in fields {
        match (into.get_mut(name), value) {
            (Some(Value::Object(inner)), Value::Object(fields)) => merge(inner, fields),
            _ => {
                into.insert(name.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn options_leave_the_parameters_and_unknown_ones_are_named() {
        let mut parameters = json!({"temperature": 1, "loop": {"coordinates": "thousandths", "calls": "text"}});
        let parameters = parameters.as_object_mut().unwrap();
        let options = Options::take(parameters).unwrap();
        assert_eq!((options.coordinates, options.calls), (Some(Coordinates::Thousandths), Calls::Text));
        assert_eq!(Value::Object(parameters.clone()), json!({"temperature": 1}));
        assert_eq!(Options::take(parameters).unwrap(), Options::default());
        parameters.insert(KEY.to_owned(), json!({"tempo": 1}));
        assert!(Options::take(parameters).unwrap_err().contains("tempo"));
    }

    #[test]
    fn fields_are_put_into_objects_that_are_there() {
        let mut body = json!({"generationConfig": {"maxOutputTokens": 5}, "model": "m"});
        let fields = json!({"generationConfig": {"temperature": 0}, "model": "n"});
        merge(body.as_object_mut().unwrap(), fields.as_object().unwrap());
        assert_eq!(body, json!({"generationConfig": {"maxOutputTokens": 5, "temperature": 0}, "model": "n"}));
    }
}

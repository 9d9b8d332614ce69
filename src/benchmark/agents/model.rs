//! Agents that are one of our loops around a model: their parameters.

use std::convert::identity;

use longhaul_core::agent::{Harness, ImageSize, ModelAgent};
use serde_json::{Map, Value};

use crate::nearest;
use crate::settings::harness;
use crate::strict::{Fields, StrictError};

/// The most output tokens of an answer where nobody says.
const MAX_OUTPUT: u32 = 8192;

/// How many screenshots stay in the context where nobody says.
const KEEP_IMAGES: u32 = 10;

/// The parameters of a loop, where a person says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    /// The loop.
    pub harness: Option<Harness>,
    /// The longest sides of the screenshots that are sent; `Some(None)` is the screen's own size.
    pub image: Option<Option<ImageSize>>,
    /// How many screenshots stay in the context.
    pub keep_images: Option<u32>,
    /// The most output tokens of an answer.
    pub max_output: Option<u32>,
    /// After how much context what is old is summarized.
    pub summarize_above: Option<u64>,
    /// What is said before the task.
    pub system: Option<String>,
    /// Further fields of each request.
    pub further: Map<String, Value>,
}

/// The names of the parameters on a command line.
const NAMES: [&str; 6] = ["harness", "image", "keep_images", "max_output", "summarize_above", "system"];

/// The keys of the parameters in a run file.
pub(crate) const KEYS: [&str; 7] =
    ["harness", "image", "keep_images", "max_output", "summarize_above", "system", "parameters"];

/// What a further field of a request starts with on a command line.
const FURTHER: &str = "parameters.";

impl Parameters {
    /// Reads parameters as a command line has them: `image=1280x800&keep_images=3`.
    ///
    /// # Errors
    ///
    /// What is wrong with the first that makes no sense.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parameters = Self::default();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) =
                pair.split_once('=').ok_or_else(|| format!("`{pair}` has no value: write NAME=VALUE"))?;
            parameters.set(name, value)?;
        }
        Ok(parameters)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "harness" => self.harness = Some(harness(value)?),
            "image" => self.image = Some(read_image(value)?),
            "keep_images" => self.keep_images = Some(whole(name, value)?),
            "max_output" => self.max_output = Some(whole(name, value)?),
            "summarize_above" => self.summarize_above = Some(whole(name, value)?),
            "system" => self.system = Some(value.to_owned()),
            other => match other.strip_prefix(FURTHER).filter(|field| !field.is_empty()) {
                // What is no JSON is a text, as on any command line.
                Some(field) => {
                    let json = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
                    self.further.insert(field.to_owned(), json);
                }
                None => {
                    let hint = nearest::hint(other, &NAMES, identity);
                    return Err(format!(
                        "there is no parameter `{other}`: {hint} (a field of the vendor's requests is written \
                         `{FURTHER}{other}=VALUE`)"
                    ));
                }
            },
        }
        Ok(())
    }

    /// Reads parameters of a table in a run file.
    ///
    /// # Errors
    ///
    /// One of them makes no sense.
    pub(crate) fn read(fields: &Fields<'_>) -> Result<Self, StrictError> {
        Ok(Self {
            harness: fields.read("harness", harness)?,
            image: fields.read("image", read_image)?,
            keep_images: fields.whole("keep_images", 1)?,
            max_output: fields.whole("max_output", 1)?,
            summarize_above: fields.whole("summarize_above", 1)?,
            system: fields.text("system")?,
            further: fields.open_table("parameters")?.map(|table| table.json()).transpose()?.unwrap_or_default(),
        })
    }

    /// These, and of the others what these do not say.
    #[must_use]
    pub fn over(self, others: Self) -> Self {
        let mut further = others.further;
        further.extend(self.further);
        Self {
            harness: self.harness.or(others.harness),
            image: self.image.or(others.image),
            keep_images: self.keep_images.or(others.keep_images),
            max_output: self.max_output.or(others.max_output),
            summarize_above: self.summarize_above.or(others.summarize_above),
            system: self.system.or(others.system),
            further,
        }
    }

    /// Whether nothing is said.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The agent with these parameters.
    #[must_use]
    pub fn agent(&self, endpoint: &str, model: &str, usual: Harness) -> ModelAgent {
        let harness = self.harness.unwrap_or(usual);
        ModelAgent {
            harness,
            endpoint: endpoint.to_owned(),
            model: model.to_owned(),
            max_output: self.max_output.unwrap_or(MAX_OUTPUT),
            image: self.image.unwrap_or_else(|| usual_image(harness)),
            keep_images: self.keep_images.unwrap_or(KEEP_IMAGES),
            summarize_above: self.summarize_above,
            system: self.system.clone(),
            parameters: self.further.clone(),
        }
    }
}

/// The size of screenshots where nobody says. Anthropic shrinks larger ones by itself, and what
/// its models point at is then somewhere else.
const fn usual_image(harness: Harness) -> Option<ImageSize> {
    match harness {
        Harness::AnthropicComputer => Some(ImageSize { width: 1280, height: 800 }),
        Harness::OpenaiComputer | Harness::GeminiComputer | Harness::Tools => None,
    }
}

/// `1280x800`, or `screen` for the screen's own size.
pub(crate) fn read_image(text: &str) -> Result<Option<ImageSize>, String> {
    if text == "screen" {
        return Ok(None);
    }
    let size = || {
        let (width, height) = text.split_once('x')?;
        let side = |text: &str| text.parse::<u16>().ok().filter(|side| *side >= 64);
        Some(ImageSize { width: side(width)?, height: side(height)? })
    };
    size().map(Some).ok_or_else(|| format!("`{text}` is no size of screenshots: write `1280x800`, or `screen`"))
}

fn whole<T: TryFrom<u64>>(name: &str, text: &str) -> Result<T, String> {
    let number = text.parse::<u64>().ok().filter(|number| *number > 0).and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| format!("`{name}={text}` is no whole number of at least 1 that can be counted"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_are_read_and_have_defaults() {
        let text = "image=1024x768&keep_images=3&max_output=4096&parameters.temperature=0.2&parameters.user=me";
        let parameters = Parameters::parse(text).unwrap();
        let agent = parameters.agent("anthropic", "m", Harness::AnthropicComputer);
        assert_eq!(agent.image, Some(ImageSize { width: 1024, height: 768 }));
        assert_eq!((agent.keep_images, agent.max_output, agent.summarize_above), (3, 4096, None));
        assert_eq!(Value::Object(agent.parameters), json!({"temperature": 0.2, "user": "me"}));
        let usual = Parameters::default().agent("gemini", "m", Harness::GeminiComputer);
        assert_eq!((usual.image, usual.keep_images, usual.max_output), (None, KEEP_IMAGES, MAX_OUTPUT));
        let own = Parameters::parse("image=screen").unwrap().agent("anthropic", "m", Harness::AnthropicComputer);
        assert_eq!(own.image, None);
    }

    #[test]
    fn a_parameter_that_makes_no_sense_is_named() {
        for (text, said) in [
            ("keep_image=3", "did you mean `keep_images`?"),
            ("temperature=1", "`parameters.temperature=VALUE`"),
            ("image=big", "`big` is no size"),
            ("image=1280", "`1280` is no size"),
            ("image=1x1", "`1x1` is no size"),
            ("max_output=1000000000000", "`max_output=1000000000000` is no whole number"),
            ("max_output=0", "is no whole number of at least 1"),
            ("max_output", "has no value"),
            ("harness=tool", "`tool` is no loop"),
        ] {
            let error = Parameters::parse(text).expect_err(text);
            assert!(error.contains(said), "{text:?} gave {error:?}");
        }
    }
}

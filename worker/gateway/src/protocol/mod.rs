//! The vendors' protocols, as far as money, records and errors need them: what a request asks
//! for, what an answer reports, which paths there are, and how an error is said. Pure.

mod chat;
pub(crate) mod count;
mod gemini;
mod known;
mod messages;
mod report;
mod responses;
pub(crate) mod route;
pub(crate) mod sse;

use longhaul_core::endpoint::Protocol;
use longhaul_core::price::{ImageRule, ModelPrice, Rate, Service};
use serde_json::{Map, Value, json};

pub(crate) use report::{Report, Served};

/// Which request of a vendor's protocol a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Surface {
    /// OpenAI's `POST /v1/chat/completions`.
    ChatCompletions,
    /// OpenAI's `POST /v1/responses`.
    Responses,
    /// Anthropic's `POST /v1/messages`.
    Messages,
    /// Gemini's `POST /v1beta/models/MODEL:generateContent`, and `:streamGenerateContent`.
    GenerateContent,
}

impl Surface {
    /// Every request that there is.
    pub const ALL: [Self; 4] = [Self::ChatCompletions, Self::Responses, Self::Messages, Self::GenerateContent];

    /// The protocol that it belongs to.
    pub(crate) const fn protocol(self) -> Protocol {
        match self {
            Self::ChatCompletions | Self::Responses => Protocol::OpenAi,
            Self::Messages => Protocol::Anthropic,
            Self::GenerateContent => Protocol::Gemini,
        }
    }
}

/// By what a request is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<'a> {
    /// The price of its model, if there is one.
    pub(crate) price: Option<&'a ModelPrice>,
    /// Whether a cap on dollars holds.
    pub(crate) capped: bool,
    /// Whose prices hold.
    pub(crate) vendor: &'a str,
}

/// The place of a value in a request.
pub(crate) type Path = &'static [&'static str];

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The most tokens of its input.
    pub(crate) input: u64,
    /// The most tokens of one of its answers.
    pub(crate) output: u64,
    /// How many answers it asks for.
    pub(crate) choices: u64,
    /// Where its output limit stands.
    pub(crate) limit: Path,
    /// The output limit below which it makes no sense.
    pub(crate) least: u64,
    /// What has to be set before it is sent, as JSON.
    pub(crate) edits: Vec<(Path, String)>,
    /// Whether usage is reported for us alone, and is to be kept from the client.
    pub(crate) usage_for_us: bool,
    /// The tier of service that it asks for, if that has prices of its own.
    pub(crate) service: Option<Service>,
}

/// Below that many output tokens no request is shortened: nothing of use fits.
const LEAST_OUTPUT: u64 = 64;

/// Reads what a request asks for.
///
/// # Errors
///
/// Why it cannot be bounded, or is no request; in words for whoever wrote it.
pub(crate) fn read(surface: Surface, body: &Value, stream: bool, terms: Terms<'_>) -> Result<Asked, String> {
    let Value::Object(body) = body else { return Err("the body of a request is a JSON object".to_owned()) };
    let mut reader = Reader::new(terms);
    let shape = match surface {
        Surface::ChatCompletions => chat::read(&mut reader, body, stream),
        Surface::Responses => responses::read(&mut reader, body),
        Surface::Messages => messages::read(&mut reader, body),
        Surface::GenerateContent => gemini::read(&mut reader, body),
    };
    reader.finish(shape)
}

/// What a protocol's own rules say of a request.
#[derive(Debug)]
struct Shape {
    /// The output limit that it names.
    output: Option<u64>,
    choices: u64,
    limit: Path,
    least: u64,
    usage_for_us: bool,
}

/// Collects the bound of a request, and what stands against it.
#[derive(Debug)]
struct Reader<'a> {
    terms: Terms<'a>,
    rule: ImageRule,
    input: u64,
    against: Option<String>,
    edits: Vec<(Path, String)>,
    service: Option<Service>,
}

impl<'a> Reader<'a> {
    fn new(terms: Terms<'a>) -> Self {
        let rule = terms.price.map_or(ImageRule::Fixed { tokens: 0 }, |price| price.image);
        Self { terms, rule, input: count::REQUEST, against: None, edits: Vec::new(), service: None }
    }

    fn add(&mut self, tokens: u64) {
        self.input = self.input.saturating_add(tokens);
    }

    fn text(&mut self, text: &str) {
        self.add(count::text(text));
    }

    fn structured(&mut self, value: &Value) {
        self.add(count::structured(value));
    }

    /// Every member of an object but those that are counted in another way.
    fn members(&mut self, object: &Map<String, Value>, but: &[&str]) {
        for (key, value) in object {
            if !but.contains(&key.as_str()) {
                self.add(count::text(key) + count::structured(value));
            }
        }
    }

    /// Something that cannot be bounded from here; the first that is found is told.
    fn unbounded(&mut self, reason: impl Into<String>) {
        self.against.get_or_insert_with(|| reason.into());
    }

    /// Members that bring in what cannot be seen from here, with what to do instead.
    fn refuse(&mut self, body: &Map<String, Value>, names: &[(&str, &str)]) {
        for (name, instead) in names {
            if body.get(*name).is_some_and(|value| !is_nothing(value)) {
                self.unbounded(format!("`{name}` cannot be bounded under a dollar cap: {instead}"));
            }
        }
    }

    /// The tier of service that a request asks for: the usual one, or one whose price is known. One
    /// that is cheaper may be asked for without a price: it is counted as the usual one.
    fn service_tier(&mut self, body: &Map<String, Value>, name: &str) {
        let Some(tier) = body.get(name).filter(|tier| !is_nothing(tier)) else { return };
        match tier.as_str().map(Served::named) {
            // What is unknown to everybody costs the time that it takes, where time is the price.
            Some(_) if self.terms.price.is_some_and(|price| matches!(price.rate, Rate::Time { .. })) => {}
            // Also of one that is usually cheaper: a table of one's own may say otherwise.
            Some(Served::As(service)) if self.terms.price.is_some_and(|price| price.serves(service)) => {
                // Gemini's protocol has two spellings of the name: either may be the one that counts.
                if self.service.is_some_and(|other| other != service) {
                    self.unbounded("two tiers of service are asked for together");
                }
                self.service = Some(service);
            }
            Some(Served::Usual | Served::As(Service::Flex)) => {}
            Some(Served::As(service)) => self.unbounded(format!(
                "`{name}: {tier}` has prices of its own, and the price table has no `[[price.{}]]` for this model",
                service.name()
            )),
            Some(Served::Unknown) | None => {
                self.unbounded(format!("`{name}: {tier}` has prices of its own, which no cap knows"));
            }
        }
    }

    /// The same where the vendor's project says which tier serves a request that names none: under a
    /// cap it names the usual one.
    fn openai_tier(&mut self, body: &Map<String, Value>) {
        self.service_tier(body, "service_tier");
        let named = body.get("service_tier").is_some_and(|tier| !is_nothing(tier) && tier != "auto");
        if self.terms.capped && self.terms.vendor == "openai" && !named {
            self.edits.push((&["service_tier"], "\"default\"".to_owned()));
        }
    }

    /// The same where a request that names no tier, or leaves it open, may be served as priority: where
    /// that has a price, it is bounded by it.
    fn messages_tier(&mut self, body: &Map<String, Value>) {
        self.service_tier(body, "service_tier");
        let open = body.get("service_tier").is_none_or(|tier| is_nothing(tier) || tier == "auto");
        let priced = self.terms.price.is_some_and(|price| price.serves(Service::Priority));
        if open && priced {
            self.service = Some(Service::Priority);
        }
    }

    /// A whole number of a request, if it is there.
    fn whole(&mut self, body: &Map<String, Value>, name: &str) -> Option<u64> {
        let value = body.get(name).filter(|value| !value.is_null())?;
        let number = value.as_u64();
        if number.is_none() {
            self.unbounded(format!("`{name}` has to be a whole number, and is {value}"));
        }
        number
    }

    /// Texts that stand in a list without an object around them.
    fn strays(&mut self, value: Option<&Value>) {
        if let Some(Value::Array(list)) = value {
            list.iter().filter_map(Value::as_str).for_each(|text| self.text(text));
        }
    }

    /// An image, by its `data:` address.
    fn image_url(&mut self, url: Option<&Value>) {
        match url.and_then(Value::as_str).map(|url| count::data_url(self.rule, url)) {
            Some(Some(tokens)) => self.add(tokens),
            _ => self.unbounded(
                "an image at a remote address cannot be bounded under a dollar cap: send it as `data:image/...;base64,...`",
            ),
        }
    }

    fn finish(mut self, shape: Shape) -> Result<Asked, String> {
        let Terms { price, capped, vendor } = self.terms;
        if let Some(reason) = self.against.take() {
            if capped {
                return Err(reason);
            }
            self.input = price.map_or(0, |price| price.context);
        }
        let mut output = shape.output.unwrap_or_default();
        match price {
            None if capped => {
                return Err(format!(
                    "the price table has no row of this model at `{vendor}`, and a model without a price cannot be called under a dollar cap"
                ));
            }
            None => {}
            Some(price) => {
                if shape.output.is_none() {
                    output = price.max_output;
                    if capped {
                        self.edits.push((shape.limit, output.to_string()));
                    }
                }
                if capped && output > price.context {
                    return Err(format!(
                        "{output} output tokens are asked for, and the model's whole context is {} tokens",
                        price.context
                    ));
                }
            }
        }
        Ok(Asked {
            input: self.input,
            output,
            choices: shape.choices.max(1),
            limit: shape.limit,
            least: shape.least.max(LEAST_OUTPUT),
            edits: self.edits,
            usage_for_us: shape.usage_for_us,
            service: self.service,
        })
    }
}

/// Whether a member is there in name only.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// The objects of an array, or of a value that stands alone.
fn objects(value: Option<&Value>) -> impl Iterator<Item = &Map<String, Value>> {
    let list: &[Value] = match value {
        Some(Value::Array(list)) => list,
        Some(value) => std::slice::from_ref(value),
        None => &[],
    };
    list.iter().filter_map(Value::as_object)
}

/// The type of an object, as it names it.
fn kind(object: &Map<String, Value>) -> &str {
    object.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// What an error of ours is about, and so which kind a vendor's program takes it for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// The request is wrong.
    Invalid,
    /// The token is wrong.
    Unauthorized,
    /// There is no such thing.
    NotFound,
    /// Money or tokens are spent.
    Spent,
    /// The attempt is over.
    Closed,
    /// It is too large.
    TooLarge,
    /// Nothing answers.
    Unavailable,
    /// We failed.
    Internal,
}

impl ErrorKind {
    /// The status. None of those that a vendor's SDK tries again by itself, but the last two,
    /// which are sent with `x-should-retry: false`.
    pub(crate) const fn status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthorized => 401,
            Self::Spent => 402,
            Self::Closed => 403,
            Self::NotFound => 404,
            Self::TooLarge => 413,
            Self::Internal => 500,
            Self::Unavailable => 503,
        }
    }

    const fn openai(self) -> (&'static str, &'static str) {
        match self {
            Self::Invalid => ("invalid_request_error", "invalid_request"),
            Self::Unauthorized => ("invalid_request_error", "invalid_api_key"),
            Self::Spent => ("budget_spent", "budget_spent"),
            Self::Closed => ("invalid_request_error", "attempt_over"),
            Self::NotFound => ("invalid_request_error", "not_found"),
            Self::TooLarge => ("invalid_request_error", "request_too_large"),
            Self::Internal => ("server_error", "gateway"),
            Self::Unavailable => ("server_error", "endpoint_down"),
        }
    }

    const fn anthropic(self) -> &'static str {
        match self {
            Self::Invalid => "invalid_request_error",
            Self::Unauthorized => "authentication_error",
            Self::Spent => "billing_error",
            Self::Closed => "permission_error",
            Self::NotFound => "not_found_error",
            Self::TooLarge => "request_too_large",
            Self::Internal => "api_error",
            Self::Unavailable => "overloaded_error",
        }
    }

    const fn gemini(self) -> &'static str {
        match self {
            Self::Invalid | Self::TooLarge => "INVALID_ARGUMENT",
            Self::Unauthorized => "UNAUTHENTICATED",
            Self::Spent => "FAILED_PRECONDITION",
            Self::Closed => "PERMISSION_DENIED",
            Self::NotFound => "NOT_FOUND",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
        }
    }

    /// The body of the error in the protocol's own form.
    pub(crate) fn body(self, protocol: Protocol, message: &str) -> Value {
        match protocol {
            Protocol::OpenAi => {
                let (kind, code) = self.openai();
                json!({ "error": { "message": message, "type": kind, "param": null, "code": code } })
            }
            Protocol::Anthropic => {
                json!({ "type": "error", "error": { "type": self.anthropic(), "message": message } })
            }
            Protocol::Gemini => {
                json!({ "error": { "code": self.status(), "message": message, "status": self.gemini() } })
            }
        }
    }
}

/// What a vendor's error says, out of its body; hostile until escaped.
pub(crate) fn error_message(body: &[u8]) -> String {
    const LONGEST: usize = 2000;
    let value = serde_json::from_slice::<Value>(body).unwrap_or_default();
    let value = value.get(0).unwrap_or(&value);
    let said =
        value["error"]["message"].as_str().or_else(|| value["message"].as_str()).or_else(|| value["error"].as_str());
    let text = said.map_or_else(|| String::from_utf8_lossy(body), std::borrow::Cow::Borrowed);
    text.chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests;

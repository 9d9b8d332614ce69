//! What answers a verifier that asks a model: the run's judge, on the judge's money.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use longhaul_core::endpoint::GatewayPlan;
use longhaul_core::judge::JudgePlan;
use serde_json::Value;

use super::{Asks, Judge, JudgeError, Said};
use crate::agents::picture::PNG;
use crate::agents::{image_part, text_part};

/// The most output tokens that a verifier may ask for.
const MOST_OUTPUT: u32 = 16_384;

/// What kind of picture some bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    Png,
    Jpeg,
    Gif,
    Webp,
}

impl Media {
    /// The kind that the bytes begin as, if vendors take it.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0x89, b'P', b'N', b'G', ..] => Some(Self::Png),
            [0xff, 0xd8, 0xff, ..] => Some(Self::Jpeg),
            [b'G', b'I', b'F', b'8', ..] => Some(Self::Gif),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::Webp),
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Png => PNG,
            Self::Jpeg => "image/jpeg",
            Self::Gif => "image/gif",
            Self::Webp => "image/webp",
        }
    }
}

/// A verifier's question.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    pub(crate) prompt: String,
    /// Pictures, before the words; those that are none were left out.
    pub(crate) pictures: Vec<(Media, Vec<u8>)>,
    pub(crate) max_output: u32,
}

/// The judge as verifiers ask it.
pub(crate) struct Oracle<'a> {
    judge: Judge<'a>,
}

impl<'a> Oracle<'a> {
    /// The judge of a plan.
    pub(crate) fn new(asks: &'a dyn Asks, plan: &'a JudgePlan, gateway: &GatewayPlan) -> Result<Self, JudgeError> {
        // Pictures are sent as the verifier gives them.
        let screen = longhaul_core::agent::ImageSize { width: 0, height: 0 };
        Judge::new(asks, plan, gateway, screen).map(|judge| Self { judge })
    }

    /// Answers in words; asked again as often as a judge is.
    pub(crate) async fn answer(&self, query: Query) -> Result<String, JudgeError> {
        let protocol = self.judge.protocol;
        let pictures = query.pictures.iter();
        let mut parts: Vec<Value> =
            pictures.map(|(media, bytes)| image_part(protocol, media.name(), &BASE64_STANDARD.encode(bytes))).collect();
        parts.push(text_part(protocol, &query.prompt));
        let read = |said: Said, _: u32| {
            if said.text.trim().is_empty() { Err("the answer is empty".to_owned()) } else { Ok(said.text) }
        };
        self.judge.ask(&parts, query.max_output.clamp(1, MOST_OUTPUT), read).await
    }
}

//! Who judges, as command lines, run files and settings say it.

use std::convert::identity;
use std::fmt;

use longhaul_core::agent::ImageSize;
use longhaul_core::endpoint::Protocol;
use longhaul_core::judge::{FramePolicy, JudgePlan};

use super::{NO_CAP, model_spec};
use crate::benchmark::read_image;

/// What a judge's parameters may be called.
const PARAMETERS: [&str; 11] = [
    "judges",
    "asks",
    "max_output",
    "temperature",
    "top_p",
    "frames",
    "max_frames",
    "max_frame_tokens",
    "image",
    "completion_threshold",
    "integrity_threshold",
];

/// Who judges.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgeTerms {
    /// The endpoint.
    pub endpoint: String,
    /// The model.
    pub model: String,
    judges: u32,
    asks: u32,
    max_output: u32,
    /// `Some(None)` says that it is not sent.
    temperature: Option<Option<f64>>,
    top_p: Option<Option<f64>>,
    frames: FramePolicy,
    max_frames: Option<u32>,
    max_frame_tokens: Option<u64>,
    image: Option<ImageSize>,
    completion_threshold: f64,
    integrity_threshold: f64,
}

impl JudgeTerms {
    /// How many screenshots a judge sees at most where nobody says: what every vendor takes.
    const MAX_FRAMES: u32 = 100;

    /// The most judges: more say nothing new.
    const MOST_JUDGES: u32 = 9;

    /// Reads a judge as a command line has it: `ENDPOINT:MODEL?judges=3`.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let usage = || format!("`{text}` names no judge: write `ENDPOINT:MODEL`, or `ENDPOINT:MODEL?judges=3`");
        let (endpoint, model, query) = model_spec(text).ok_or_else(usage)?;
        let usual = JudgePlan::published(String::new(), String::new());
        let mut judge = Self {
            endpoint: endpoint.to_owned(),
            model: model.to_owned(),
            judges: usual.judges,
            asks: usual.asks,
            max_output: usual.max_output,
            temperature: None,
            top_p: None,
            frames: usual.frames,
            max_frames: Some(Self::MAX_FRAMES),
            max_frame_tokens: None,
            image: None,
            completion_threshold: usual.completion_threshold,
            integrity_threshold: usual.integrity_threshold,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            judge.set(name, value)?;
        }
        Ok(judge)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "judges" => {
                self.judges = whole(name, value)?;
                if self.judges > Self::MOST_JUDGES {
                    return Err(format!("`{name}={value}`: {} are the most", Self::MOST_JUDGES));
                }
            }
            "asks" => self.asks = whole(name, value)?,
            "max_output" => self.max_output = whole(name, value)?,
            "temperature" => self.temperature = Some(not_sent(name, value, 2.0)?),
            "top_p" => self.top_p = Some(not_sent(name, value, 1.0)?),
            "frames" => {
                self.frames =
                    value.parse().map_err(|error: longhaul_core::judge::ParseFramePolicyError| error.to_string())?;
            }
            "max_frames" => self.max_frames = uncapped(name, value)?,
            "max_frame_tokens" => self.max_frame_tokens = uncapped(name, value)?,
            "image" => self.image = read_image(value)?,
            "completion_threshold" => self.completion_threshold = number(name, value, 100.0)?,
            "integrity_threshold" => self.integrity_threshold = number(name, value, 1.0)?,
            other => {
                let hint = crate::nearest::hint(other, &PARAMETERS, identity);
                return Err(format!("a judge has no parameter `{other}`: {hint}"));
            }
        }
        Ok(())
    }

    /// The judge as a run freezes it, for a model of a vendor that speaks a protocol.
    ///
    /// The published temperature and share are sent to those that take them: OpenAI's newer models
    /// take neither, and Anthropic's not both.
    #[must_use]
    pub fn plan(&self, protocol: Protocol, vendor: &str) -> JudgePlan {
        let published = JudgePlan::published(self.endpoint.clone(), self.model.clone());
        let takes_temperature = vendor != "openai";
        let takes_share = takes_temperature && protocol != Protocol::Anthropic;
        JudgePlan {
            judges: self.judges,
            asks: self.asks,
            max_output: self.max_output,
            temperature: self.temperature.unwrap_or_else(|| published.temperature.filter(|_| takes_temperature)),
            top_p: self.top_p.unwrap_or_else(|| published.top_p.filter(|_| takes_share)),
            frames: self.frames,
            max_frames: self.max_frames,
            max_frame_tokens: self.max_frame_tokens,
            image: self.image,
            completion_threshold: self.completion_threshold,
            integrity_threshold: self.integrity_threshold,
            ..published
        }
    }
}

/// As [`JudgeTerms::parse`] reads it: only what is not usual is said.
impl fmt::Display for JudgeTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.endpoint, self.model)?;
        let cap = |cap: Option<u64>| cap.map_or_else(|| NO_CAP.to_owned(), |cap| cap.to_string());
        let sent = |value: Option<f64>| value.map_or_else(|| NO_CAP.to_owned(), |value| value.to_string());
        let size = |size: ImageSize| format!("{}x{}", size.width, size.height);
        let usual = JudgePlan::published(String::new(), String::new());
        let said = |unusual: bool, text: String| unusual.then_some(text);
        let values = [
            said(self.judges != usual.judges, self.judges.to_string()),
            said(self.asks != usual.asks, self.asks.to_string()),
            said(self.max_output != usual.max_output, self.max_output.to_string()),
            self.temperature.map(sent),
            self.top_p.map(sent),
            said(self.frames != usual.frames, self.frames.to_string()),
            said(self.max_frames != Some(Self::MAX_FRAMES), cap(self.max_frames.map(u64::from))),
            self.max_frame_tokens.map(|tokens| tokens.to_string()),
            self.image.map(size),
            said(differ(self.completion_threshold, usual.completion_threshold), self.completion_threshold.to_string()),
            said(differ(self.integrity_threshold, usual.integrity_threshold), self.integrity_threshold.to_string()),
        ];
        let pairs = PARAMETERS.iter().zip(values).filter_map(|(name, value)| Some(format!("{name}={}", value?)));
        let pairs: Vec<String> = pairs.collect();
        if pairs.is_empty() { Ok(()) } else { write!(f, "?{}", pairs.join("&")) }
    }
}

fn differ(one: f64, other: f64) -> bool {
    (one - other).abs() > f64::EPSILON
}

fn whole<T: TryFrom<u64>>(name: &str, text: &str) -> Result<T, String> {
    let number = text.parse::<u64>().ok().filter(|number| *number > 0).and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| format!("`{name}={text}` is no whole number of at least 1"))
}

fn uncapped<T: TryFrom<u64>>(name: &str, text: &str) -> Result<Option<T>, String> {
    if text == NO_CAP { Ok(None) } else { whole(name, text).map(Some) }
}

fn number(name: &str, text: &str, most: f64) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.0..=most).contains(number));
    number.ok_or_else(|| format!("`{name}={text}` is no number from 0 to {most}"))
}

fn not_sent(name: &str, text: &str, most: f64) -> Result<Option<f64>, String> {
    if text == NO_CAP { Ok(None) } else { number(name, text, most).map(Some) }
}

/// Reads a judge, or `none`, which says that nobody judges whatever is said farther off.
///
/// # Errors
///
/// What is wrong with it.
pub fn judge(text: &str) -> Result<Option<JudgeTerms>, String> {
    if text == NO_CAP { Ok(None) } else { JudgeTerms::parse(text).map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judges_are_printed_as_they_are_read() {
        for text in [
            "gemini:gemini-3-flash-preview",
            "my-vllm:Qwen/Qwen3-VL-8B?judges=3&frames=uniform:12",
            "openai:gpt-5.4?asks=5&max_output=4096&temperature=none&top_p=0.5&frames=changed&max_frames=none&\
             max_frame_tokens=90000&image=1280x800&completion_threshold=80&integrity_threshold=0.75",
        ] {
            let judge = JudgeTerms::parse(text).unwrap();
            assert_eq!(judge.to_string(), text);
            assert_eq!(JudgeTerms::parse(&judge.to_string()).unwrap(), judge);
        }
        assert_eq!(super::judge("none"), Ok(None));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, said) in [
            ("gemini", "names no judge"),
            (":m", "names no judge"),
            ("e:m?judges=0", "`judges=0` is no whole number"),
            ("e:m?judges=10", "9 are the most"),
            ("e:m?frames=some", "`some` says not which screenshots"),
            ("e:m?completion_threshold=101", "no number from 0 to 100"),
            ("e:m?temperature=nan", "no number from 0 to 2"),
            ("e:m?judge=3", "did you mean `judges`?"),
        ] {
            let error = JudgeTerms::parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn vendors_are_sent_what_they_take() {
        let sent = |text: &str, protocol, vendor| {
            let plan = JudgeTerms::parse(text).unwrap().plan(protocol, vendor);
            (plan.temperature, plan.top_p)
        };
        assert_eq!(sent("e:m", Protocol::Gemini, "gemini"), (Some(0.1), Some(0.95)));
        assert_eq!(sent("e:m", Protocol::OpenAi, "my-vllm"), (Some(0.1), Some(0.95)));
        assert_eq!(sent("e:m", Protocol::Anthropic, "anthropic"), (Some(0.1), None));
        assert_eq!(sent("e:m", Protocol::OpenAi, "openai"), (None, None));
        assert_eq!(sent("e:m?temperature=1&top_p=none", Protocol::OpenAi, "openai"), (Some(1.0), None));
    }
}

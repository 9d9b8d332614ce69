//! The judge: asks models about a trajectory's screenshots, and does not take silence, a refusal
//! or an answer that cannot be read for a verdict.
//!
//! What it asks and what answers come to is `longhaul_core::judge`; here are the calls. They go
//! through the gateway, so that they are bounded, paid from the judge's own purse, waited for
//! while an endpoint is down, and recorded with the exact request and response.

mod end;
mod oracle;

use std::fmt;
use std::sync::Arc;

use longhaul_core::agent::ImageSize;
use longhaul_core::call::Purpose;
use longhaul_core::digest::Digest;
use longhaul_core::endpoint::{GatewayPlan, Protocol};
use longhaul_core::judge::{
    Answered, Asked, FrameCap, JudgePlan, Judgement, Rubric, judge, prompt, read_answer, select_frames,
};
use longhaul_gateway::{Account, CallError, ModelAnswer, ModelCall};
use serde_json::Value;

pub(crate) use end::{Program, beside, by_rounds, end};
pub(crate) use oracle::{Media, Oracle, Query};

use crate::agents::caller::Caller;
use crate::agents::picture::{PNG, Picture, PictureError, Wish, prepare};
use crate::agents::{fit, image_part, text_part};
use crate::oneshot::{Question, model_reported, refusal, words};
use crate::sandbox::Pending;

/// How many tokens a screenshot is taken for, where nothing is known of the model.
const UNKNOWN_IMAGE_TOKENS: u64 = 1600;

/// Who makes a judge's calls.
pub trait Asks: Send + Sync {
    /// Makes a call.
    fn ask(&self, call: ModelCall) -> Pending<'_, Result<ModelAnswer, CallError>>;
}

impl Asks for Account {
    fn ask(&self, call: ModelCall) -> Pending<'_, Result<ModelAnswer, CallError>> {
        Box::pin(self.call(call))
    }
}

/// The account of an attempt.
impl Asks for Arc<dyn Caller> {
    fn ask(&self, call: ModelCall) -> Pending<'_, Result<ModelAnswer, CallError>> {
        self.call(call)
    }
}

/// Why there is no judgement. Never a failure of the agent.
#[derive(Debug, thiserror::Error)]
pub enum JudgeError {
    /// The judge's money is spent.
    #[error("the judge's budget is spent: {scope}")]
    Budget {
        /// The scope, with its figures.
        scope: String,
    },
    /// It was asked as often as it may be.
    #[error("the judge {model} was asked {asked} times and gave no answer that can be read; the last time: {last}")]
    Unanswered {
        /// The model.
        model: String,
        /// How often.
        asked: u32,
        /// What came of the last time; hostile until escaped.
        last: String,
    },
    /// It cannot be asked at all.
    #[error("the judge {model} cannot be asked: {reason}")]
    Unaskable {
        /// The model.
        model: String,
        /// Why; hostile until escaped.
        reason: String,
    },
    /// A screenshot cannot be shown.
    #[error("screenshot {number} cannot be shown to the judge: {reason}")]
    Screenshot {
        /// Its number in the trajectory.
        number: u32,
        /// Why.
        reason: String,
    },
    /// There is nothing to judge by.
    #[error("{reason}")]
    Checklist {
        /// Why, with the file.
        reason: String,
    },
    /// The attempt is over, or its calls cannot be written down.
    #[error(transparent)]
    Over(CallError),
}

/// A judge that can be asked.
pub struct Judge<'a> {
    asks: &'a dyn Asks,
    plan: &'a JudgePlan,
    protocol: Protocol,
    /// The size that screenshots are scaled to; they are sent as they are if absent.
    image: Option<ImageSize>,
    cap: FrameCap,
}

impl<'a> Judge<'a> {
    /// The judge of a plan, whose model is served as `gateway` says.
    ///
    /// # Errors
    ///
    /// It has no such endpoint.
    pub fn new(
        asks: &'a dyn Asks,
        plan: &'a JudgePlan,
        gateway: &GatewayPlan,
        screen: ImageSize,
    ) -> Result<Self, JudgeError> {
        let endpoint = gateway.endpoint(&plan.endpoint).ok_or_else(|| JudgeError::Unaskable {
            model: plan.model.clone(),
            reason: format!("there is no endpoint `{}` in the run's plan", plan.endpoint),
        })?;
        let image = fit(screen, plan.image);
        let rule = gateway.price(&endpoint.vendor, &plan.model).map(|price| price.image);
        let size = (u32::from(image.width), u32::from(image.height));
        let cap = FrameCap {
            count: plan.max_frames,
            tokens: plan.max_frame_tokens,
            tokens_each: rule.map_or(UNKNOWN_IMAGE_TOKENS, |rule| rule.bound(Some(size))),
        };
        let image = plan.image.map(|_| image);
        Ok(Self { asks, plan, protocol: endpoint.protocol, image, cap })
    }

    /// Judges a trajectory by the digests of its screenshots (those of the steps, and the one after
    /// the export hook): every judge of the plan is asked until its answer can be read, and a
    /// bounded number of times. `load` gives the PNG of a screenshot by its index.
    ///
    /// # Errors
    ///
    /// One of them gave none: with fewer judges than were asked for it would be another measure.
    pub async fn judge<F>(
        &self,
        description: &str,
        rubric: &Rubric,
        screens: &[Digest],
        load: impl Fn(usize) -> F,
    ) -> Result<Judgement, JudgeError>
    where
        F: Future<Output = Result<Arc<[u8]>, String>>,
    {
        let chosen = select_frames(screens, self.plan.frames, self.cap);
        let shown: Vec<u32> = chosen.iter().map(|index| u32::try_from(*index).unwrap_or(u32::MAX)).collect();
        let text = prompt(description, rubric, chosen.len());
        let mut parts = Vec::with_capacity(chosen.len() + 1);
        for (index, number) in chosen.iter().zip(&shown) {
            let refuse = |reason: String| JudgeError::Screenshot { number: *number, reason };
            let png = load(*index).await.map_err(refuse)?;
            let picture = scaled(png, self.image).await.map_err(|error| refuse(crate::chain(&error)))?;
            parts.push(image_part(self.protocol, PNG, &picture));
        }
        parts.push(text_part(self.protocol, &text));
        let mut answers = Vec::new();
        for _ in 0..self.plan.judges.max(1) {
            answers.push(self.answer(rubric, &parts).await?);
        }
        let asked = Asked { shown, prompt: Digest::of(text.as_bytes()) };
        Ok(judge(self.plan, rubric, answers, asked))
    }

    async fn answer(&self, rubric: &Rubric, parts: &[Value]) -> Result<Answered, JudgeError> {
        let read = |said: Said, asked: u32| -> Result<Answered, String> {
            let answer = read_answer(&said.text, rubric).map_err(|unreadable| unreadable.to_string())?;
            Ok(Answered { answer, model: said.model, call: said.call, asked })
        };
        self.ask(parts, self.plan.max_output, read).await
    }

    /// Asks until what is said can be read, as often as the plan allows; `read` is told how often
    /// it was asked.
    async fn ask<T>(
        &self,
        parts: &[Value],
        max_output: u32,
        read: impl Fn(Said, u32) -> Result<T, String>,
    ) -> Result<T, JudgeError> {
        let asks = self.plan.asks.max(1);
        let mut last = String::new();
        for asked in 1..=asks {
            match self.say(parts.to_vec(), max_output).await?.and_then(|said| read(said, asked)) {
                Ok(answer) => return Ok(answer),
                Err(why) => last = why,
            }
        }
        Err(JudgeError::Unanswered { model: self.plan.model.clone(), asked: asks, last })
    }

    /// Asks once. The inner error is worth asking again for.
    async fn say(&self, parts: Vec<Value>, max_output: u32) -> Result<Result<Said, String>, JudgeError> {
        let JudgePlan { endpoint, model, temperature, top_p, .. } = self.plan;
        let question = Question {
            endpoint,
            protocol: self.protocol,
            model,
            purpose: Purpose::Judge,
            system: None,
            parts,
            max_output,
            temperature: *temperature,
            top_p: *top_p,
        };
        let unaskable = |error: &CallError| JudgeError::Unaskable { model: model.clone(), reason: error.to_string() };
        match self.asks.ask(question.call()).await {
            Ok(answer) => {
                if let Some(refused) = refusal(self.protocol, &answer.body) {
                    return Ok(Err(refused));
                }
                let text = words(self.protocol, &answer.body);
                let model = model_reported(&answer.body).unwrap_or(model).to_owned();
                Ok(Ok(Said { text, model, call: answer.number }))
            }
            Err(CallError::Budget { scope } | CallError::Round { scope }) => Err(JudgeError::Budget { scope }),
            // Waited for as long as calls wait for an endpoint, or tried as often as it is worth.
            Err(error @ CallError::Endpoint { down: true, .. }) => Err(unaskable(&error)),
            Err(error @ CallError::Endpoint { .. }) => Ok(Err(error.to_string())),
            Err(error @ CallError::Rejected { status: 401 | 403 | 404 | 407 | 413, .. }) => Err(unaskable(&error)),
            // What a vendor refuses for what is on a screenshot, it may take the next time.
            Err(error @ CallError::Rejected { .. }) => Ok(Err(error.to_string())),
            Err(error @ (CallError::Unbounded { .. } | CallError::Tokens { .. })) => Err(unaskable(&error)),
            Err(error @ (CallError::Journal(_) | CallError::NotRecorded { .. } | CallError::Closed)) => {
                Err(JudgeError::Over(error))
            }
        }
    }
}

impl fmt::Debug for Judge<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Judge").field("plan", self.plan).finish_non_exhaustive()
    }
}

/// An answer in words.
struct Said {
    text: String,
    model: String,
    call: u32,
}

/// A screenshot as the judge is sent it, made where nobody waits on the thread.
async fn scaled(png: Arc<[u8]>, size: Option<ImageSize>) -> Result<Picture, PictureError> {
    let wish = Wish { size, parts: Vec::new() };
    let made = tokio::task::spawn_blocking(move || prepare(&png, &wish)).await;
    made.map_or(Err(PictureError::Kind), |made| made).map(|pictures| pictures.whole)
}

#[cfg(test)]
mod tests;

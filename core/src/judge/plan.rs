//! Who judges, and how: what a run says of it.

use serde::{Deserialize, Serialize};

use super::frames::FramePolicy;
use crate::agent::ImageSize;

/// Who judges, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JudgePlan {
    /// The endpoint that serves the model, as the run names it.
    pub endpoint: String,
    /// The model.
    pub model: String,
    /// How many judges look, each in a call of its own.
    pub judges: u32,
    /// How often a judge is asked at most until its answer can be read.
    pub asks: u32,
    /// The most output tokens of one answer.
    pub max_output: u32,
    /// The temperature; not sent if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// The share of likely tokens that is sampled from; not sent if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Which screenshots it sees.
    pub frames: FramePolicy,
    /// At most so many of them; no cap if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_frames: Option<u32>,
    /// At most so many tokens of them, as the vendor counts; no cap if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_frame_tokens: Option<u64>,
    /// The longest sides of the screenshots that it is sent; the screen's own size if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSize>,
    /// From which score on a task is passed.
    pub completion_threshold: f64,
    /// From which share of passed integrity items on the score counts; below, it is zero.
    pub integrity_threshold: f64,
}

impl JudgePlan {
    /// The published terms, for a model at an endpoint. What is sent beside the question depends
    /// on the vendor, and is left to whoever knows it.
    #[must_use]
    pub const fn published(endpoint: String, model: String) -> Self {
        Self {
            endpoint,
            model,
            judges: 1,
            asks: 3,
            max_output: 8192,
            temperature: Some(0.1),
            top_p: Some(0.95),
            frames: FramePolicy::Published,
            max_frames: None,
            max_frame_tokens: None,
            image: None,
            completion_threshold: 100.0,
            integrity_threshold: 1.0,
        }
    }
}

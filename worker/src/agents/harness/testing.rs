//! A conversation without a model: responses are written by hand, requests are looked at.

use longhaul_core::agent::{Harness as Kind, ImageSize, ModelAgent};
use longhaul_core::step::ActionOutcome;
use longhaul_gateway::ModelCall;
use serde_json::{Map, Value};

use crate::agents::conversation::{Conversation, Seen, Turn};
use crate::agents::picture::Pictures;

/// The screen is 1920 by 1080, and the model sees it at two thirds.
pub(crate) struct Rig {
    pub(crate) conversation: Conversation,
    actions: usize,
}

/// A model agent with usual values.
pub(crate) fn agent(harness: Kind, model: &str, parameters: Value) -> ModelAgent {
    ModelAgent {
        harness,
        endpoint: "endpoint".to_owned(),
        model: model.to_owned(),
        max_output: 1000,
        image: Some(ImageSize { width: 1280, height: 1280 }),
        keep_images: 3,
        summarize_above: None,
        system: None,
        parameters: match parameters {
            Value::Object(parameters) => parameters,
            _ => Map::new(),
        },
    }
}

impl Rig {
    pub(crate) fn new(harness: Kind, model: &str, parameters: Value) -> Self {
        Self::of(&agent(harness, model, parameters))
    }

    /// Has seen its first screen.
    pub(crate) fn of(agent: &ModelAgent) -> Self {
        let screen = ImageSize { width: 1920, height: 1080 };
        let conversation = Conversation::new(agent, "Make the list.", screen).unwrap();
        let mut rig = Self { conversation, actions: 0 };
        rig.see("first", None);
        rig
    }

    /// Sees a screen, after all actions were done.
    pub(crate) fn see(&mut self, name: &str, told: Option<&str>) {
        let outcomes = vec![ActionOutcome::Done; self.actions];
        self.see_after(name, &outcomes, told);
    }

    pub(crate) fn see_after(&mut self, name: &str, outcomes: &[ActionOutcome], told: Option<&str>) {
        let parts = self.conversation.wish().parts.iter().map(|_| Some(format!("{name}-part").into())).collect();
        let pictures = Pictures { whole: name.into(), parts };
        self.conversation.observe(Seen { pictures, outcomes, told });
    }

    pub(crate) fn take(&mut self, body: &Value) -> Turn {
        let turn = self.conversation.take(body);
        self.actions = turn.answer.actions.len();
        turn
    }

    /// Takes a response and sees what came of it.
    pub(crate) fn step(&mut self, body: &Value, name: &str) -> Turn {
        let turn = self.take(body);
        self.see(name, None);
        turn
    }

    pub(crate) fn call(&self) -> ModelCall {
        self.conversation.turn_call()
    }

    pub(crate) fn body(&self) -> Value {
        self.call().body
    }
}

/// Bodies that no vendor sends.
pub(crate) fn hostile() -> Vec<Value> {
    use serde_json::json;
    vec![
        Value::Null,
        json!([]),
        json!("text"),
        json!({}),
        json!({"content": "text", "output": "text", "candidates": "x", "choices": "x"}),
        json!({"content": [null, 1, [], {}, {"type": 5}], "output": [null, {"type": 7}], "candidates": [null],
               "choices": [null]}),
        json!({"content": [{"type": "tool_use"}], "output": [{"type": "computer_call"}],
               "candidates": [{"content": {"parts": [{"functionCall": null}]}}],
               "choices": [{"message": {"tool_calls": [{"id": "a"}, {}]}}]}),
        json!({"usage": {"input_tokens": u64::MAX, "output_tokens": u64::MAX, "prompt_tokens": -5,
               "completion_tokens": "many"}, "usageMetadata": {"promptTokenCount": 1e300}}),
    ]
}

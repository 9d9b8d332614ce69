//! What has been said between a loop and its model: all of the state that there is.
//!
//! It is a function of the plan, the observations and the model's responses alone, so that it
//! can be made again from what was recorded. Nothing of it is kept at a vendor.

use std::sync::Arc;

pub(crate) use longhaul_core::functions::LEFT_OUT;
use serde_json::Value;

use super::picture::Picture;

/// A conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// What the model has noted of what was said before the first exchange.
    pub(crate) summary: Option<String>,
    /// What is asked for now, where it is no longer what was asked for at first.
    pub(crate) goal: Option<String>,
    /// What was said, the oldest first.
    pub(crate) exchanges: Vec<Exchange>,
}

/// What the model was given, and its reply.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exchange {
    /// What became of the calls of the reply before, in their order.
    pub(crate) results: Vec<CallResult>,
    /// What it is told in words.
    pub(crate) told: Vec<String>,
    /// The screen; none once it was left out.
    pub(crate) picture: Option<Picture>,
    /// Its reply; none while it is waited for.
    pub(crate) reply: Option<Arc<Reply>>,
}

/// What became of one call.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CallResult {
    /// The call's id, where the vendor has one.
    pub(crate) id: Option<String>,
    /// The call's name.
    pub(crate) name: String,
    /// What went wrong.
    pub(crate) error: Option<String>,
    /// What it is answered in words.
    pub(crate) text: Option<String>,
    /// Whether it asked for a part of the screen, and the part, unless it was left out.
    pub(crate) part: Option<Option<Picture>>,
    /// The vendor's safety checks of the call, acknowledged.
    pub(crate) safety: Vec<Value>,
}

/// A model's reply.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    /// As it is sent back, word by word.
    pub(crate) kept: Value,
    /// What it said, and what it asked for, in short: for vendors whose replies cannot be
    /// sent back without their screenshots.
    pub(crate) gist: String,
}

impl History {
    /// Leaves out screenshots so that no more than the last `most` stay. They are left out
    /// several at a time, so that what a vendor has cached stays the same for some steps.
    pub(crate) fn keep_pictures(&mut self, most: u32) {
        let most = usize::try_from(most).unwrap_or(usize::MAX).max(1);
        let at_once = (most / 2).max(1);
        let over = self.exchanges.len().saturating_sub(most);
        let left_out = over.div_ceil(at_once).saturating_mul(at_once).min(self.exchanges.len().saturating_sub(1));
        for exchange in self.exchanges.iter_mut().take(left_out) {
            exchange.picture = None;
            for result in &mut exchange.results {
                if let Some(part) = &mut result.part {
                    *part = None;
                }
            }
        }
    }

    /// Goes on from a summary in place of all that was said; what the model was given last, and
    /// has not replied to, stays.
    pub(crate) fn go_on_from(&mut self, summary: String) {
        let Some(mut last) = self.exchanges.pop() else { return };
        // Their calls are gone: what became of them is said in words.
        let mut told: Vec<String> = last
            .results
            .drain(..)
            .filter_map(|result| result.error.map(|error| format!("{}: {error}", result.name)))
            .collect();
        told.append(&mut last.told);
        last.told = told;
        self.exchanges = vec![last];
        self.summary = Some(summary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(exchanges: usize) -> History {
        let exchange = Exchange { picture: Some("p".into()), ..Exchange::default() };
        History { exchanges: vec![exchange; exchanges], ..History::default() }
    }

    fn kept(exchanges: usize, most: u32) -> usize {
        let mut history = history(exchanges);
        history.keep_pictures(most);
        let kept: Vec<bool> = history.exchanges.iter().map(|exchange| exchange.picture.is_some()).collect();
        assert!(kept.is_sorted(), "the last ones stay");
        assert!(kept.last().copied().unwrap_or(true), "the newest always");
        kept.into_iter().filter(|kept| *kept).count()
    }

    #[test]
    fn no_more_than_the_last_screenshots_stay_and_they_go_several_at_a_time() {
        assert_eq!([3, 4, 5, 6].map(|count| kept(count, 3)), [3, 3, 3, 3]);
        assert_eq!([10, 11, 12, 15, 16].map(|count| kept(count, 10)), [10, 6, 7, 10, 6]);
        assert_eq!([0, 1, 2].map(|count| kept(count, 0)), [0, 1, 1]);
        assert_eq!(kept(5, u32::MAX), 5);
    }

    #[test]
    fn a_summary_takes_the_place_of_all_but_what_was_given_last() {
        let mut history = history(3);
        let failed = CallResult { name: "click".to_owned(), error: Some("no".to_owned()), ..CallResult::default() };
        let last = history.exchanges.last_mut().unwrap();
        last.results = vec![failed, CallResult::default()];
        last.told = vec!["go on".to_owned()];
        history.go_on_from("did this".to_owned());
        assert_eq!(history.summary.as_deref(), Some("did this"));
        let [only] = history.exchanges.as_slice() else { panic!() };
        assert_eq!((only.told.join("|").as_str(), only.results.len()), ("click: no|go on", 0));
        assert!(only.picture.is_some());
    }
}

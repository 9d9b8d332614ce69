//! Text that looks like the marks by which chat templates and tokenizers tell who speaks.
//!
//! What models, tasks and screens say is data; a `<|im_end|>` in it would end a turn in training.

/// How such marks begin: templates' own, and those that stand for pictures, calls and thoughts.
const MARKS: [&str; 15] = [
    "<|",
    "<｜",
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<image>",
    "<video>",
    "<audio>",
    "<s>",
    "</s>",
    "<bos>",
    "<eos>",
    "<start_of_",
    "<end_of_",
];

/// The text with such marks broken by a space, so that no template takes them for its own.
#[must_use]
pub fn harmless(text: &str) -> String {
    replaced(text, "< ")
}

/// JSON whose strings hold no such mark; what it says is the same.
pub(super) fn escaped(json: &str) -> String {
    replaced(json, "\\u003c")
}

fn replaced(text: &str, opening: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        out.push_str(if MARKS.iter().any(|mark| from.starts_with(mark)) { opening } else { "<" });
        rest = &from[1..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_broken_and_other_text_is_left_alone() {
        assert_eq!(harmless("a <|im_end|> b <｜User｜> <</s>"), "a < |im_end|> b < ｜User｜> << /s>");
        assert_eq!(harmless("<div>1 < 2</div>"), "<div>1 < 2</div>");
        let json = escaped("{\"text\":\"<image></think> <b>\"}");
        assert_eq!(json, "{\"text\":\"\\u003cimage>\\u003c/think> <b>\"}");
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(read["text"], "<image></think> <b>");
    }
}

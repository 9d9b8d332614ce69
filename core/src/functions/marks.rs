//! Text that looks like the marks by which chat templates and tokenizers tell who speaks.
//!
//! What models, tasks and screens say is data; a `<|im_end|>` in it would end a turn in training.

/// How such marks begin: templates' own, and those that stand for pictures, calls and thoughts.
const MARKS: [&str; 36] = [
    "<|",
    "<｜",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
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
    "<pad>",
    "<unk>",
    "<<SYS>>",
    "<</SYS>>",
    "[INST]",
    "[/INST]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_CALLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[THINK]",
    "[/THINK]",
    "[IMG]",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[gMASK]",
];

/// The text with such marks broken by a space, so that no template takes them for its own.
#[must_use]
pub fn harmless(text: &str) -> String {
    replaced(text, |opening| if opening == '<' { "< " } else { "[ " })
}

/// JSON whose strings hold no such mark; what it says is the same.
pub(super) fn escaped(json: &str) -> String {
    replaced(json, |opening| if opening == '<' { "\\u003c" } else { "\\u005b" })
}

/// Every mark begins with one of two characters, which is replaced.
fn replaced(text: &str, by: impl Fn(char) -> &'static str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['<', '[']) {
        let (before, from) = rest.split_at(at);
        let opening = if from.starts_with('<') { '<' } else { '[' };
        out.push_str(before);
        if MARKS.iter().any(|mark| from.starts_with(mark)) {
            out.push_str(by(opening));
        } else {
            out.push(opening);
        }
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
        assert_eq!(harmless("<div>1 < 2</div> [1] a[INSTALL]"), "<div>1 < 2</div> [1] a[INSTALL]");
        assert_eq!(harmless("[INST] <<SYS>>x<</SYS>> [/INST]"), "[ INST] < <SYS>>x< </SYS>> [ /INST]");
        let json = escaped("{\"text\":[\"<image></think> <b>[/INST]\"]}");
        assert_eq!(json, "{\"text\":[\"\\u003cimage>\\u003c/think> <b>\\u005b/INST]\"]}");
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(read["text"][0], "<image></think> <b>[/INST]");
    }
}

//! Text of unknown origin (screens, models, specs, logs) made safe to show, and errors in words.

use std::error::Error;

/// Makes a text safe for a terminal and for a page: control characters, and those that turn the
/// direction of text, are shown as escapes. Line ends stay, tabs become a space.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => safe.push('\n'),
            '\t' => safe.push(' '),
            c if c.is_control() || turns_direction(c) => safe.extend(c.escape_unicode()),
            c => safe.push(c),
        }
    }
    safe
}

/// As [`escape`], on one line: for cells of tables.
#[must_use]
pub fn escape_line(text: &str) -> String {
    escape(text).replace('\n', " ")
}

pub(crate) const fn turns_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text cut to at most `width` characters.
#[must_use]
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// An error with all that caused it, on one line: for statuses, faults and logs.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// The first few names, and how many more there are.
#[must_use]
pub fn named<T: ToString>(names: &[T], most: usize) -> String {
    let shown: Vec<String> = names.iter().take(most).map(ToString::to_string).collect();
    let more = names.len().saturating_sub(most);
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_cannot_command_the_terminal() {
        assert_eq!(escape("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(escape("x\r\u{202e}y\u{9b}"), "x\\u{d}\\u{202e}y\\u{9b}");
        assert_eq!(escape("Grüße\n\tweiter"), "Grüße\n weiter");
        assert_eq!(escape_line("a\nb"), "a b");
    }

    #[test]
    fn what_is_cut_says_so() {
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("abcd", 4), "abcd");
        assert_eq!((named(&["a", "b", "c"], 2), named(&["a"], 2)), ("a, b and 1 more".into(), "a".into()));
    }

    #[test]
    fn an_error_says_all_that_caused_it() {
        #[derive(Debug, thiserror::Error)]
        #[error("it has no number")]
        struct Outer(#[source] std::num::ParseIntError);

        let error = Outer("x".parse::<u8>().expect_err("it is none"));
        assert_eq!(chain(&error), "it has no number: invalid digit found in string");
    }
}

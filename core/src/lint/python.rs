//! Enough of Python's grammar to judge a verifier without running it: logical lines,
//! strings, brackets, indentation, and literals.
//!
//! It is no parser: what it does not understand it calls unknown, never constant.

/// A token of a logical line.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// A name or keyword.
    Name(&'a str),
    /// A number as written.
    Number(&'a str),
    /// A string's content as written, without prefix and quotes.
    Text {
        /// Between the quotes.
        content: &'a str,
        /// Whether it is formatted with values, so that it is not known here.
        formatted: bool,
    },
    /// Any other character.
    Sign(char),
}

/// A logical line: brackets and backslashes join physical ones.
#[derive(Clone, Debug)]
pub(super) struct Line<'a> {
    /// How far it is indented.
    pub(super) indent: usize,
    /// The physical line that it starts on, from 1.
    pub(super) number: u32,
    /// What it is made of.
    pub(super) tokens: Vec<Token<'a>>,
}

impl<'a> Line<'a> {
    /// The first name, if the line starts with one.
    pub(super) fn first(&self) -> Option<&'a str> {
        match self.tokens.first() {
            Some(Token::Name(name)) => Some(name),
            _ => None,
        }
    }
}

/// Splits a text into logical lines. A string or bracket that is never closed ends with
/// the text.
///
/// Also gives the line, from 1, of what can be no Python: such a string, or brackets
/// that do not match.
pub(super) fn lines(text: &str) -> (Vec<Line<'_>>, Option<u32>) {
    let mut scanner = Scanner { text, at: 0, number: 1, broken: None };
    let mut lines = Vec::new();
    while let Some(line) = scanner.line() {
        if !line.tokens.is_empty() {
            lines.push(line);
        }
    }
    (lines, scanner.broken)
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    number: u32,
    broken: Option<u32>,
}

impl<'a> Scanner<'a> {
    fn broken_at(&mut self, line: u32) {
        self.broken.get_or_insert(line);
    }

    fn peek(&self) -> Option<char> {
        self.text.get(self.at..)?.chars().next()
    }

    fn byte(&self, ahead: usize) -> Option<u8> {
        self.text.as_bytes().get(self.at + ahead).copied()
    }

    fn take(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.at += character.len_utf8();
        self.number += u32::from(character == '\n');
        Some(character)
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let start = self.at;
        while self.peek().is_some_and(&wanted) {
            self.take();
        }
        self.text.get(start..self.at).unwrap_or_default()
    }

    fn line(&mut self) -> Option<Line<'a>> {
        self.peek()?;
        let mut indent = 0;
        while let Some(character @ (' ' | '\t' | '\u{c}' | '\u{feff}')) = self.peek() {
            indent = if character == '\t' { (indent / 8 + 1) * 8 } else { indent + usize::from(character == ' ') };
            self.take();
        }
        let mut line = Line { indent, number: self.number, tokens: Vec::new() };
        let mut depth = 0_usize;
        while let Some(character) = self.peek() {
            match character {
                '\n' => {
                    self.take();
                    if depth == 0 {
                        break;
                    }
                }
                '#' => drop(self.take_while(|next| next != '\n')),
                '\\' => {
                    self.take();
                    self.take();
                }
                '\'' | '"' => {
                    let token = self.string("");
                    line.tokens.push(token);
                }
                '0'..='9' => {
                    let number = self.take_while(|next| next.is_ascii_alphanumeric() || next == '.' || next == '_');
                    line.tokens.push(Token::Number(number));
                }
                _ if character.is_alphabetic() || character == '_' => {
                    let name = self.take_while(|next| next.is_alphanumeric() || next == '_');
                    let token = if matches!(self.peek(), Some('\'' | '"')) && is_prefix(name) {
                        self.string(name)
                    } else {
                        Token::Name(name)
                    };
                    line.tokens.push(token);
                }
                _ if character.is_whitespace() => drop(self.take()),
                _ => {
                    match character {
                        '(' | '[' | '{' => depth += 1,
                        ')' | ']' | '}' => match depth.checked_sub(1) {
                            Some(outer) => depth = outer,
                            None => self.broken_at(self.number),
                        },
                        _ => {}
                    }
                    self.take();
                    line.tokens.push(Token::Sign(character));
                }
            }
        }
        if depth > 0 {
            self.broken_at(line.number);
        }
        Some(line)
    }

    /// A string from its opening quote on.
    fn string(&mut self, prefix: &str) -> Token<'a> {
        let quote = self.byte(0).unwrap_or(b'"');
        let triple = self.byte(1) == Some(quote) && self.byte(2) == Some(quote);
        let width = if triple { 3 } else { 1 };
        let number = self.number;
        self.at += width;
        let start = self.at;
        let mut end = None;
        while let Some(character) = self.peek() {
            let closes = if triple {
                (0..3).all(|ahead| self.byte(ahead) == Some(quote))
            } else {
                self.byte(0) == Some(quote) || character == '\n'
            };
            if closes {
                end = Some(self.at);
                // A line break ends a plain string that was never closed, and the line.
                if character == '\n' && !triple {
                    self.broken_at(number);
                } else {
                    self.at += width;
                }
                break;
            }
            self.take();
            if character == '\\' {
                self.take();
            }
        }
        if end.is_none() {
            self.broken_at(number);
        }
        let content = self.text.get(start..end.unwrap_or(self.text.len())).unwrap_or_default();
        let formatted = prefix.contains(['f', 'F', 't', 'T']) && content.contains('{');
        Token::Text { content, formatted }
    }
}

fn is_prefix(name: &str) -> bool {
    name.len() <= 2 && name.chars().all(|letter| "rRbBuUfFtT".contains(letter))
}

/// A value that is written out.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Literal {
    /// `None`.
    Nothing,
    /// `True` or `False`.
    Truth(bool),
    /// A number.
    Number(f64),
    /// A string.
    Text(String),
    /// A list, tuple or set.
    List(Vec<Self>),
    /// A dict, in the order written.
    Dict(Vec<(Self, Self)>),
}

impl Literal {
    /// The value of a key of a dict; the last one written wins.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let Self::Dict(items) = self else { return None };
        items.iter().rev().find(|(known, _)| matches!(known, Self::Text(text) if text == key)).map(|(_, value)| value)
    }

    /// Whether Python calls it true.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Nothing => false,
            Self::Truth(truth) => *truth,
            Self::Number(number) => *number != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::List(items) => !items.is_empty(),
            Self::Dict(items) => !items.is_empty(),
        }
    }
}

/// The literal that all of the tokens write out; none if any part of it is computed.
pub(super) fn literal(tokens: &[Token<'_>]) -> Option<Literal> {
    let mut reader = Reader { tokens, at: 0, depth: 0 };
    let value = reader.value()?;
    reader.next().is_none().then_some(value)
}

/// Literals within literals beyond this are taken for computed.
const MAX_DEPTH: usize = 32;

struct Reader<'a, 't> {
    tokens: &'t [Token<'a>],
    at: usize,
    depth: usize,
}

impl<'a, 't> Reader<'a, 't> {
    fn next(&self) -> Option<&'t Token<'a>> {
        self.tokens.get(self.at)
    }

    fn sign(&mut self, wanted: char) -> bool {
        let found = self.next() == Some(&Token::Sign(wanted));
        self.at += usize::from(found);
        found
    }

    fn value(&mut self) -> Option<Literal> {
        self.depth += 1;
        let value = if self.depth > MAX_DEPTH { None } else { self.shallow() };
        self.depth -= 1;
        value
    }

    fn shallow(&mut self) -> Option<Literal> {
        let token = self.next()?;
        self.at += 1;
        match token {
            Token::Name("None") => Some(Literal::Nothing),
            Token::Name("True") => Some(Literal::Truth(true)),
            Token::Name("False") => Some(Literal::Truth(false)),
            Token::Name(_) => None,
            Token::Number(written) => written.replace('_', "").parse().ok().map(Literal::Number),
            Token::Text { formatted: true, .. } => None,
            Token::Text { content, .. } => {
                let mut text = (*content).to_owned();
                // Strings that stand side by side are one.
                while let Some(Token::Text { content, formatted }) = self.next() {
                    if *formatted {
                        return None;
                    }
                    text.push_str(content);
                    self.at += 1;
                }
                Some(Literal::Text(text))
            }
            Token::Sign('-') => match self.value()? {
                Literal::Number(number) => Some(Literal::Number(-number)),
                _ => None,
            },
            Token::Sign('(') => self.items(')').map(|(mut items, commas)| {
                // Brackets around one value without a comma are no tuple.
                if commas == 0 && items.len() == 1 { items.remove(0) } else { Literal::List(items) }
            }),
            Token::Sign('[') => self.items(']').map(|(items, _)| Literal::List(items)),
            Token::Sign('{') => self.braces(),
            Token::Sign(_) => None,
        }
    }

    fn items(&mut self, close: char) -> Option<(Vec<Literal>, usize)> {
        let (mut items, mut commas) = (Vec::new(), 0);
        while !self.sign(close) {
            items.push(self.value()?);
            if self.sign(',') {
                commas += 1;
            } else if self.sign(close) {
                break;
            } else {
                return None;
            }
        }
        Some((items, commas))
    }

    fn braces(&mut self) -> Option<Literal> {
        let mut items = Vec::new();
        while !self.sign('}') {
            let key = self.value()?;
            if !self.sign(':') {
                return None;
            }
            items.push((key, self.value()?));
            if !self.sign(',') {
                return self.sign('}').then_some(Literal::Dict(items));
            }
        }
        Some(Literal::Dict(items))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_brackets_and_comments_do_not_split_lines() {
        let text = "x = (1,\n  '#no', \"\"\"a\n  return 7\n\"\"\")  # return 8\nif a: \\\n  return f'{x}'\n";
        let (lines, broken) = lines(text);
        assert_eq!((lines.len(), broken), (2, None));
        assert_eq!((lines[0].number, lines[1].number), (1, 5));
        assert_eq!(lines[1].tokens.last(), Some(&Token::Text { content: "{x}", formatted: true }));
    }

    #[test]
    fn a_string_that_is_never_closed_ends_with_its_line() {
        for (text, count, line) in [
            ("a = 1\nb = 'oops\nc = 1\n", 3, 2),
            ("a = '''oops\nb = 1\n", 1, 1),
            ("a = (1,\nb = 1\n", 1, 1),
            ("a = 1)\n", 1, 1),
        ] {
            let (lines, broken) = lines(text);
            assert_eq!((lines.len(), broken), (count, Some(line)), "{text}");
        }
    }

    #[test]
    fn only_what_is_written_out_is_a_literal() {
        let read = |text: &'static str| literal(&lines(text).0[0].tokens);
        assert_eq!(
            read("{'a': True, 'b': [1, -2.5], 'c': ('x' \"y\")}").unwrap().get("a"),
            Some(&Literal::Truth(true))
        );
        assert_eq!(read("(1)"), Some(Literal::Number(1.0)));
        assert_eq!(read("(1,)"), Some(Literal::List(vec![Literal::Number(1.0)])));
        for computed in
            ["{'a': x}", "1 + 1", "True if x else False", "f'{x}'", "dict(a=1)", "{**x}", "[1 2]", "{'a' 1}"]
        {
            assert_eq!(read(computed), None, "{computed}");
        }
    }

    #[test]
    fn a_deep_literal_is_computed_and_does_not_overflow() {
        let text = "[".repeat(100_000);
        assert_eq!(literal(&lines(&text).0[0].tokens), None);
    }
}

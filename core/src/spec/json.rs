//! JSON with places: a value, the keys that stand twice in it, and where things are.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::Format;
use super::diagnostic::{Code, Diagnostic, Place, Refused};

/// One step of a path into a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// The value of this key.
    Key(String),
    /// This item of a list, from 0.
    Item(usize),
}

impl From<&str> for At {
    fn from(key: &str) -> Self {
        Self::Key(key.to_owned())
    }
}

/// A parsed text, which still knows where its values stand.
#[derive(Clone, Debug)]
pub struct Document<'a> {
    text: &'a str,
    format: Format,
    value: Value,
}

impl<'a> Document<'a> {
    /// Parses the bytes of a file. `syntax` is the code of what is not JSON.
    ///
    /// # Errors
    ///
    /// The text is not UTF-8, or not JSON (or YAML): where, and why.
    pub fn parse(bytes: &'a [u8], format: Format, syntax: Code, out: &mut Vec<Diagnostic>) -> Result<Self, Refused> {
        let text = decode(bytes, syntax, out)?;
        let value = match format {
            Format::Json => parse_json(text, syntax, out)?,
            Format::Yaml => super::yaml::parse(text)?,
        };
        Ok(Self { text, format, value })
    }

    /// The value.
    #[must_use]
    pub const fn value(&self) -> &Value {
        &self.value
    }

    /// The value, without its text.
    #[must_use]
    pub fn into_value(self) -> Value {
        self.value
    }

    /// Where the value at a path stands; none if it is not in this text.
    #[must_use]
    pub fn place(&self, path: &[At]) -> Option<Place> {
        match self.format {
            Format::Json => {
                Cursor { bytes: self.text.as_bytes(), at: 0 }.find(path).map(|offset| place_at(self.text, offset))
            }
            Format::Yaml => None,
        }
    }
}

/// The place of a byte offset of a text.
#[must_use]
pub fn place_at(text: &str, offset: usize) -> Place {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before.get(start..).map_or(0, |rest| rest.chars().count()) + 1;
    Place { line: narrow(line), column: narrow(column) }
}

fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn decode<'a>(bytes: &'a [u8], syntax: Code, out: &mut Vec<Diagnostic>) -> Result<&'a str, Refused> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let good = bytes.get(..error.valid_up_to()).unwrap_or_default();
        let good = std::str::from_utf8(good).unwrap_or_default();
        let code = if syntax == Code::JsonSyntax || syntax == Code::YamlSyntax { Code::NotUtf8 } else { syntax };
        let byte = bytes.get(error.valid_up_to()).copied().unwrap_or_default();
        Diagnostic::new(code, format!("not UTF-8: the byte 0x{byte:02x} cannot stand here"))
            .at(place_at(good, good.len()))
            .hint(Code::NotUtf8.hint())
    })?;
    match text.strip_prefix('\u{feff}') {
        None => Ok(text),
        Some(rest) => {
            let place = Place { line: 1, column: 1 };
            out.push(Diagnostic::new(Code::ByteOrderMark, "the file starts with a byte order mark").at(place));
            Ok(rest)
        }
    }
}

fn parse_json(text: &str, syntax: Code, out: &mut Vec<Diagnostic>) -> Result<Value, Refused> {
    let mut repeated = Vec::new();
    let mut reader = serde_json::Deserializer::from_str(text);
    let seed = Seed { path: &mut Vec::new(), repeated: &mut repeated };
    let value = seed.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    let value = value.map_err(|error| syntax_error(text, &error, syntax))?;
    for path in repeated {
        let place = Cursor { bytes: text.as_bytes(), at: 0 }.find(&path).map(|offset| place_at(text, offset));
        let key = match path.last() {
            Some(At::Key(key)) => key.chars().take(80).collect::<String>(),
            _ => String::new(),
        };
        out.push(Diagnostic::new(Code::DuplicateKey, format!("the key `{key}` stands more than once")).at(place));
    }
    Ok(value)
}

/// Says what is wrong in words of this project, and what to do for the mistakes that
/// are common in benchmarks written by tools.
fn syntax_error(text: &str, error: &serde_json::Error, code: Code) -> Refused {
    let full = error.to_string();
    let said = full.split(" at line ").next().unwrap_or_default();
    let (message, hint) = if said.starts_with("control character") {
        ("a string holds a raw control character (a line break, a tab)", Some("write it as an escape: \\n, \\t"))
    } else if said.starts_with("invalid escape") {
        ("a string holds an escape that JSON does not have", Some("double the backslash: \\\\d, not \\d"))
    } else if said.starts_with("trailing characters") {
        ("text follows the end of the JSON value", Some("remove what follows the closing bracket"))
    } else if said.starts_with("EOF") {
        ("the text ends in the middle of a value", Some("the file is cut short, or a bracket or quote is not closed"))
    } else {
        (said, None)
    };
    let mut diagnostic =
        Diagnostic::new(code, format!("not JSON: {message}")).at(serde_place(text, error.line(), error.column()));
    if let Some(hint) = hint {
        diagnostic = diagnostic.hint(hint);
    }
    diagnostic.into()
}

/// The parser counts columns in bytes, and puts a raw line break at column 0 of the
/// line after it.
fn serde_place(text: &str, line: usize, column: usize) -> Place {
    let of_line = |number: usize| text.split('\n').nth(number.saturating_sub(1)).unwrap_or_default();
    if column == 0 && line > 1 {
        let previous = of_line(line - 1);
        return Place { line: narrow(line - 1), column: narrow(previous.chars().count() + 1) };
    }
    let bytes = of_line(line).as_bytes();
    let before = bytes.get(..column.saturating_sub(1).min(bytes.len())).unwrap_or_default();
    // Bytes that continue a character are no column of their own.
    let characters = before.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
    Place { line: narrow(line.max(1)), column: narrow(characters + 1) }
}

/// Builds a value, and notes the path of each key that is met again: the last one wins.
struct Seed<'p> {
    path: &'p mut Vec<At>,
    repeated: &'p mut Vec<Vec<At>>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        loop {
            self.path.push(At::Item(items.len()));
            let item = access.next_element_seed(Seed { path: self.path, repeated: self.repeated })?;
            self.path.pop();
            match item {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            self.path.push(At::Key(key));
            let value = access.next_value_seed(Seed { path: self.path, repeated: self.repeated })?;
            if let Some(At::Key(key)) = self.path.last()
                && map.contains_key(key)
                && !self.repeated.contains(self.path)
            {
                self.repeated.push(self.path.clone());
            }
            if let Some(At::Key(key)) = self.path.pop() {
                map.insert(key, value);
            }
        }
        Ok(Value::Object(map))
    }
}

/// Walks a text that is known to be JSON.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    /// The offset of the value at a path.
    fn find(mut self, path: &[At]) -> Option<usize> {
        for step in path {
            self.space();
            match step {
                At::Key(wanted) => self.enter_key(wanted)?,
                At::Item(index) => self.enter_item(*index)?,
            }
        }
        self.space();
        Some(self.at)
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Moves past a separator, and says whether there was one.
    fn more(&mut self) -> bool {
        self.space();
        let more = self.peek() == Some(b',');
        self.at += usize::from(more);
        self.space();
        more
    }

    fn enter_key(&mut self, wanted: &str) -> Option<()> {
        (self.peek()? == b'{').then_some(())?;
        self.at += 1;
        self.space();
        let mut found = None;
        while self.peek()? == b'"' {
            let start = self.at;
            self.skip_string()?;
            let key: String = serde_json::from_slice(self.bytes.get(start..self.at)?).ok()?;
            self.space();
            (self.peek()? == b':').then_some(())?;
            self.at += 1;
            self.space();
            if key == wanted {
                found = Some(self.at);
            }
            self.skip_value()?;
            if !self.more() {
                break;
            }
        }
        self.at = found?;
        Some(())
    }

    fn enter_item(&mut self, index: usize) -> Option<()> {
        (self.peek()? == b'[').then_some(())?;
        self.at += 1;
        self.space();
        for _ in 0..index {
            self.skip_value()?;
            self.more().then_some(())?;
        }
        Some(())
    }

    fn skip_string(&mut self) -> Option<()> {
        self.at += 1;
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Some(());
                }
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
    }

    fn skip_value(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            match self.peek()? {
                b'"' => self.skip_string()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                b',' | b' ' | b'\t' | b'\n' | b'\r' | b':' => self.at += 1,
                _ => {
                    while self.peek().is_some_and(|byte| !b",]} \t\n\r:".contains(&byte)) {
                        self.at += 1;
                    }
                }
            }
            if depth == 0 {
                return Some(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> Diagnostic {
        *Document::parse(text.as_bytes(), Format::Json, Code::JsonSyntax, &mut Vec::new()).unwrap_err().0
    }

    #[test]
    fn every_syntax_error_has_a_place_and_words() {
        let cases = [
            ("{\"a\": \"one\ntwo\"}", (1, 11), "raw control character"),
            ("{\n  \"a\": \"\\d+\"\n}", (2, 10), "escape that JSON does not have"),
            ("{\"a\": }", (1, 7), "expected value"),
            ("{\"a\": 1 \"b\": 2}", (1, 9), "expected `,` or `}`"),
            ("{\"a\": 1}\n\n<leaked>", (3, 1), "text follows the end"),
            ("{\"a\": [1, 2", (1, 11), "ends in the middle"),
            ("", (1, 1), "ends in the middle"),
            ("{\"ä\": tru}", (1, 10), "expected ident"),
        ];
        for (text, (line, column), words) in cases {
            let found = refusal(text);
            assert_eq!(found.place, Some(Place { line, column }), "{text:?}: {}", found.message);
            assert!(found.message.contains(words), "{text:?}: {}", found.message);
        }
    }

    #[test]
    fn bytes_that_are_not_text_are_refused_where_they_stand() {
        let found =
            Document::parse(b"{\n\"a\": \"\xff\"}", Format::Json, Code::JsonSyntax, &mut Vec::new()).unwrap_err().0;
        assert_eq!((found.code, found.place), (Code::NotUtf8, Some(Place { line: 2, column: 7 })));
    }

    #[test]
    fn a_deep_nest_is_refused_and_does_not_overflow() {
        let deep = "[".repeat(100_000);
        assert!(refusal(&deep).message.contains("recursion limit"));
    }

    #[test]
    fn the_last_of_two_keys_counts_and_is_reported_where_it_stands() {
        let mut out = Vec::new();
        let text = "{\"a\": {\"b\": 1,\n \"b\": 2, \"b\": 3}}";
        let document = Document::parse(text.as_bytes(), Format::Json, Code::JsonSyntax, &mut out).unwrap();
        assert_eq!(document.value()["a"]["b"], 3);
        assert_eq!(out.len(), 1);
        assert_eq!((out[0].code, out[0].place), (Code::DuplicateKey, Some(Place { line: 2, column: 15 })));
    }

    #[test]
    fn a_byte_order_mark_is_passed_over_with_a_warning() {
        let mut out = Vec::new();
        let document = Document::parse("\u{feff}{}".as_bytes(), Format::Json, Code::JsonSyntax, &mut out).unwrap();
        assert!(document.value().is_object());
        assert_eq!(out[0].code, Code::ByteOrderMark);
    }

    #[test]
    fn values_are_found_by_their_path() {
        let text = "{\"x\": [\"}\\\"\", {\"k\\u0065y\": [1, 2.5e3, true]}],\n  \"y\": null}";
        let document = Document::parse(text.as_bytes(), Format::Json, Code::JsonSyntax, &mut Vec::new()).unwrap();
        let path = [At::from("x"), At::Item(1), At::from("key"), At::Item(2)];
        assert_eq!(document.place(&path), Some(Place { line: 1, column: 39 }));
        assert_eq!(document.place(&[At::from("y")]), Some(Place { line: 2, column: 8 }));
        assert_eq!(document.place(&[At::from("z")]), None);
    }
}

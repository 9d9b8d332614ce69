//! JSON as bytes: where the parts of a text are, without changing one of them.
//!
//! A request is forwarded as its client wrote it: the order of keys in a tool's schema is part
//! of what a model reads, and a vendor's cache goes by bytes. So what has to be changed is cut
//! out and put in, and the rest stays. All functions expect text that `serde_json` has read;
//! given other text they answer nothing, and never panic.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// A member of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// The key with its quotes.
    pub(crate) key: Range<usize>,
    /// The value.
    pub(crate) value: Range<usize>,
}

/// The first byte at or after `at` that is no white space.
pub(crate) fn skip_space(text: &[u8], mut at: usize) -> usize {
    while matches!(text.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

/// Where the value that begins at `at` ends.
pub(crate) fn value_end(text: &[u8], at: usize) -> Option<usize> {
    match text.get(at)? {
        b'"' => string_end(text, at),
        b'{' | b'[' => {
            let (mut depth, mut at) = (0_usize, at);
            loop {
                match text.get(at)? {
                    b'"' => {
                        at = string_end(text, at)?;
                        continue;
                    }
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => {
                        depth -= 1;
                        if depth == 0 {
                            return Some(at + 1);
                        }
                    }
                    _ => {}
                }
                at += 1;
            }
        }
        _ => {
            let rest = &text[at..];
            let end = rest.iter().position(|byte| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r'));
            Some(at + end.unwrap_or(rest.len()))
        }
    }
}

fn string_end(text: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// The members of the object that begins at `at`; none if there is no object.
pub(crate) fn members(text: &[u8], at: usize) -> Option<Vec<Member>> {
    let mut found = Vec::new();
    let mut at = open(text, at, b'{')?;
    while text.get(at)? != &b'}' {
        let key = at..string_end(text, at).filter(|_| text[at] == b'"')?;
        at = skip_space(text, key.end);
        if text.get(at)? != &b':' {
            return None;
        }
        let start = skip_space(text, at + 1);
        let value = start..value_end(text, start)?;
        at = next(text, value.end)?;
        found.push(Member { key, value });
    }
    Some(found)
}

/// The elements of the array that begins at `at`; none if there is no array.
pub(crate) fn elements(text: &[u8], at: usize) -> Option<Vec<Range<usize>>> {
    let mut found = Vec::new();
    let mut at = open(text, at, b'[')?;
    while text.get(at)? != &b']' {
        let value = at..value_end(text, at)?;
        if value.is_empty() {
            return None;
        }
        at = next(text, value.end)?;
        found.push(value);
    }
    Some(found)
}

fn open(text: &[u8], at: usize, bracket: u8) -> Option<usize> {
    (text.get(at)? == &bracket).then(|| skip_space(text, at + 1))
}

/// After a member or element: past a comma, or at the closing bracket.
fn next(text: &[u8], at: usize) -> Option<usize> {
    let at = skip_space(text, at);
    match text.get(at)? {
        b',' => Some(skip_space(text, at + 1)),
        b'}' | b']' => Some(at),
        _ => None,
    }
}

/// A key as it is meant, its escapes resolved.
pub(crate) fn key<'a>(text: &'a [u8], member: &Member) -> Cow<'a, str> {
    let quoted = text.get(member.key.clone()).unwrap_or_default();
    if quoted.contains(&b'\\') {
        return serde_json::from_slice(quoted).map_or_else(|_| Cow::Borrowed(""), Cow::Owned);
    }
    let inner = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
    Cow::Borrowed(std::str::from_utf8(inner).unwrap_or_default())
}

/// The value of a member of the object that begins at `at`.
pub(crate) fn find(text: &[u8], at: usize, name: &str) -> Option<Range<usize>> {
    members(text, at)?.into_iter().find(|member| key(text, member) == name).map(|member| member.value)
}

/// Reads a text, and refuses a key that an object has twice, wherever it is: readers differ in
/// which of the two counts, so such a text could be bounded by one of them and billed by the other.
///
/// # Errors
///
/// What is wrong with the text.
pub(crate) fn parse(text: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice::<Unique>(text).map(|unique| unique.0)
}

/// A value whose objects have each key once.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Self)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Unique(element)) = elements.next_element()? {
            list.push(element);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            let Unique(value) = members.next_value()?;
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key `{key}` comes twice in one object")));
            }
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

/// The text with the value at `path` set to `json`; objects on the way are made if they are
/// missing (or `null`). Nothing if the text is no object, or something else is on the way.
pub(crate) fn set(text: &[u8], path: &[&str], json: &str) -> Option<Vec<u8>> {
    let mut at = skip_space(text, 0);
    for (depth, name) in path.iter().enumerate() {
        let last = depth + 1 == path.len();
        match find(text, at, name) {
            Some(value) if last => return Some(splice(text, value, json)),
            Some(value) if text.get(value.clone()) == Some(b"null".as_slice()) => {
                return Some(splice(text, value, &nested(&path[depth + 1..], json)));
            }
            Some(value) => at = value.start,
            None => {
                // Before the first member, or alone.
                let inside = open(text, at, b'{')?;
                let comma = if text.get(inside)? == &b'}' { "" } else { "," };
                let member = format!("{}:{}{comma}", quoted(name), nested(&path[depth + 1..], json));
                return Some(splice(text, at + 1..at + 1, &member));
            }
        }
    }
    None
}

fn nested(path: &[&str], json: &str) -> String {
    path.iter().rev().fold(json.to_owned(), |inner, name| format!("{{{}:{inner}}}", quoted(name)))
}

fn quoted(name: &str) -> String {
    serde_json::Value::from(name).to_string()
}

fn splice(text: &[u8], place: Range<usize>, with: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + with.len());
    out.extend_from_slice(&text[..place.start]);
    out.extend_from_slice(with.as_bytes());
    out.extend_from_slice(&text[place.end..]);
    out
}

/// The insides of all strings of at least `least` bytes, in order; keys among them.
pub(crate) fn long_strings(text: &[u8], least: usize) -> Vec<Range<usize>> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(quote) = text.get(at..).and_then(|rest| memchr::memchr(b'"', rest)) {
        let start = at + quote;
        let Some(end) = string_end(text, start) else { break };
        if end - start >= least + 2 {
            found.push(start + 1..end - 1);
        }
        at = end;
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn set_in(text: &str, path: &[&str], json: &str) -> String {
        String::from_utf8(set(text.as_bytes(), path, json).unwrap()).unwrap()
    }

    #[test]
    fn only_what_is_set_changes() {
        assert_eq!(set_in(r#"{ "b" : 1, "a":[ 1,2 ] }"#, &["b"], "7"), r#"{ "b" : 7, "a":[ 1,2 ] }"#);
        assert_eq!(set_in(r#"{"b":1}"#, &["a", "c"], "true"), r#"{"a":{"c":true},"b":1}"#);
        assert_eq!(set_in("{}", &["a"], "1"), r#"{"a":1}"#);
        assert_eq!(set_in(r#"{"a":null}"#, &["a", "c"], "1"), r#"{"a":{"c":1}}"#);
        assert_eq!(set_in(r#"{"a":{"x":"}"}}"#, &["a", "c"], "1"), r#"{"a":{"c":1,"x":"}"}}"#);
        assert_eq!(set(b"[1]", &["a"], "1"), None);
        assert_eq!(set(br#"{"a":3}"#, &["a", "c"], "1"), None);
    }

    #[test]
    fn a_key_is_found_however_it_is_written() {
        let text = br#"{"m\u0061x":1}"#;
        assert_eq!(find(text, 0, "max"), Some(12..13));
    }

    #[test]
    fn a_key_that_comes_twice_is_refused_at_any_depth() {
        let error = parse(br#"{"a":[{"max":1,"m\u0061x":2}]}"#).unwrap_err().to_string();
        assert!(error.contains("`max` comes twice"), "{error}");
        assert_eq!(parse(br#"{"a":{"b":1},"b":{"a":1.5}}"#).unwrap(), json!({ "a": { "b": 1 }, "b": { "a": 1.5 } }));
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "\\PC{0,12}".prop_map(Value::from),
            "[\"\\\\{}\\[\\],:\n]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 48, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::btree_map("[a-d\"\\\\]{0,3}", inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn setting_does_what_setting_in_a_tree_does(value in values(), pretty: bool) {
            let Value::Object(mut object) = json!({ "x": value, "o": { "v": value } }) else { unreachable!() };
            let text = if pretty { serde_json::to_vec_pretty(&object) } else { serde_json::to_vec(&object) }.unwrap();
            let changed = set(&text, &["o", "new"], "5").unwrap();
            object["o"]["new"] = json!(5);
            prop_assert_eq!(serde_json::from_slice::<Value>(&changed).unwrap(), Value::Object(object));
            prop_assert!(parse(&text).is_ok());
        }

        #[test]
        fn nothing_panics_on_other_text(text in "[\\[\\]{}\",:\\\\a1 ]{0,40}") {
            let bytes = text.as_bytes();
            let _ = (set(bytes, &["a", "b"], "1"), parse(bytes).ok(), long_strings(bytes, 2), elements(bytes, 0));
            let _ = value_end(bytes, 0);
        }
    }
}

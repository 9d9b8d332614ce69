//! Reading the fields of an object, with a diagnostic for each that has another type.

use serde_json::{Map, Value};

use super::diagnostic::{Code, Diagnostic};
use super::json::{At, Document};

/// An object of a document and the way to it.
pub(super) struct Fields<'a> {
    map: Option<&'a Map<String, Value>>,
    path: Vec<At>,
    document: &'a Document<'a>,
}

impl<'a> Fields<'a> {
    /// The fields of an object that stands at `path` of a document; of none if there is
    /// no object there.
    pub(super) const fn new(map: Option<&'a Map<String, Value>>, path: Vec<At>, document: &'a Document<'a>) -> Self {
        Self { map, path, document }
    }

    /// The raw value; `null` is as if it were not there.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map?.get(key).filter(|value| !value.is_null())
    }

    /// The keys.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'a String> {
        self.map.into_iter().flat_map(Map::keys)
    }

    /// A diagnostic at a key of this object.
    pub(super) fn diagnostic(&self, code: Code, key: &str, message: String) -> Diagnostic {
        let mut path = self.path.clone();
        path.push(At::from(key));
        let place = self.document.place(&path).or_else(|| self.document.place(&self.path));
        Diagnostic::new(code, message).at(place)
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        out: &mut Vec<Diagnostic>,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.get(key)?;
        let typed = read(value);
        if typed.is_none() {
            let message = format!("`{key}` takes {expected}, not {}", excerpt(value));
            out.push(self.diagnostic(Code::WrongType, key, message));
        }
        typed
    }

    /// A string.
    pub(super) fn text(&self, key: &str, out: &mut Vec<Diagnostic>) -> Option<String> {
        self.typed(key, "a string", out, |value| value.as_str().map(str::to_owned))
    }

    /// A string that is not blank.
    pub(super) fn filled(&self, key: &str, out: &mut Vec<Diagnostic>) -> Option<String> {
        self.text(key, out).filter(|text| !text.trim().is_empty())
    }

    /// A whole number of at least `least`; `4.0` is one too.
    pub(super) fn whole(&self, key: &str, least: u32, out: &mut Vec<Diagnostic>) -> Option<u32> {
        self.typed(key, &format!("a whole number, {least} or more"), out, |value| {
            let number = value.as_f64()?;
            (number.fract() == 0.0 && number >= f64::from(least) && number <= f64::from(u32::MAX))
                .then_some(number as u32)
        })
    }

    /// A number that is not negative.
    pub(super) fn number(&self, key: &str, out: &mut Vec<Diagnostic>) -> Option<f64> {
        self.typed(key, "a number, zero or more", out, |value| value.as_f64().filter(|number| *number >= 0.0))
    }

    /// True or false.
    pub(super) fn flag(&self, key: &str, out: &mut Vec<Diagnostic>) -> Option<bool> {
        self.typed(key, "true or false", out, Value::as_bool)
    }

    /// A list of strings; one string is a list of one.
    pub(super) fn texts(&self, key: &str, out: &mut Vec<Diagnostic>) -> Vec<String> {
        let read = |value: &Value| match value {
            Value::String(text) => Some(vec![text.clone()]),
            Value::Array(items) => items.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
            _ => None,
        };
        self.typed(key, "a list of strings", out, read).unwrap_or_default()
    }

    /// A list.
    pub(super) fn list(&self, key: &str, out: &mut Vec<Diagnostic>) -> &'a [Value] {
        self.typed(key, "a list", out, |value| value.as_array().map(Vec::as_slice)).unwrap_or_default()
    }

    /// An object within this one; none of its fields are there if it is missing.
    pub(super) fn object(&self, key: &str, out: &mut Vec<Diagnostic>) -> Self {
        let map = self.typed(key, "an object", out, Value::as_object);
        let mut path = self.path.clone();
        path.push(At::from(key));
        Self::new(map, path, self.document)
    }

    /// The objects of a list within this one; other items get a diagnostic.
    pub(super) fn objects(&self, key: &str, out: &mut Vec<Diagnostic>) -> Vec<Self> {
        let mut objects = Vec::new();
        for (index, item) in self.list(key, out).iter().enumerate() {
            let mut path = self.path.clone();
            path.extend([At::from(key), At::Item(index)]);
            match item.as_object() {
                Some(map) => objects.push(Self::new(Some(map), path, self.document)),
                None => {
                    let message = format!("an item of `{key}` is an object, not {}", excerpt(item));
                    out.push(Diagnostic::new(Code::WrongType, message).at(self.document.place(&path)));
                }
            }
        }
        objects
    }
}

/// A value short enough to be shown.
pub(super) fn excerpt(value: &Value) -> String {
    let text = match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        other => other.to_string(),
    };
    if text.chars().count() > 60 { text.chars().take(57).chain("...".chars()).collect() } else { text }
}

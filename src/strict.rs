//! Files of a person's that are read strictly: every key is known or an error with what was
//! probably meant, every value has its type, and every message names file, line and column.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use longhaul_core::money::Money;
use longhaul_core::time::Millis;
use serde_json::{Map, Value};
use toml::de::{DeTable, DeValue};

use crate::{nearest, units};

/// Why a file is refused.
#[derive(Debug, thiserror::Error)]
pub enum StrictError {
    /// It cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Something in it makes no sense.
    #[error("{}:{line}:{column}: {reason}", path.display())]
    At {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// What is wrong, and what was probably meant.
        reason: String,
    },
}

/// A text with the file that it is from.
#[derive(Debug)]
pub struct Source {
    /// The file.
    pub path: PathBuf,
    text: String,
}

/// A table of a source: its keys are known ones.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    source: &'a Source,
    table: &'a DeTable<'a>,
    /// Where the table starts.
    start: usize,
}

impl Source {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub fn read(path: &Path) -> Result<Self, StrictError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| StrictError::Read { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), text })
    }

    /// A text that is there already; `path` is for messages.
    #[must_use]
    pub fn of(path: &Path, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    /// Reads the whole as a table with these keys, and gives it to `read`.
    ///
    /// # Errors
    ///
    /// It is not TOML, a key is not known, or `read` refuses it.
    pub fn table<T>(
        &self,
        known: &[&str],
        read: impl FnOnce(Fields<'_>) -> Result<T, StrictError>,
    ) -> Result<T, StrictError> {
        let table = DeTable::parse(&self.text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            self.at(start, error.message().to_owned())
        })?;
        let fields = Fields { source: self, table: table.get_ref(), start: 0 };
        fields.check(known)?;
        read(fields)
    }

    fn at(&self, offset: usize, reason: String) -> StrictError {
        let (line, column) = nearest::position(&self.text, offset);
        StrictError::At { path: self.path.clone(), line, column, reason }
    }
}

impl<'a> Fields<'a> {
    /// An error at the table itself.
    #[must_use]
    pub fn refuse(&self, reason: String) -> StrictError {
        self.source.at(self.start, reason)
    }

    /// An error at a key of it, or at the table if the key is not there.
    #[must_use]
    pub fn refuse_at(&self, key: &str, reason: impl Display) -> StrictError {
        let start = self.table.get(key).map_or(self.start, |value| value.span().start);
        self.source.at(start, format!("`{key}`: {reason}"))
    }

    /// An error that a key is missing.
    #[must_use]
    pub fn missing(&self, key: &str, what: &str) -> StrictError {
        self.refuse(format!("`{key}` is missing: {what}"))
    }

    fn check(&self, known: &[&str]) -> Result<(), StrictError> {
        for (key, _) in self.table {
            let name = key.get_ref().as_ref();
            if !known.contains(&name) {
                let hint = nearest::hint(name, known, |names| format!("known are {names}"));
                return Err(self.source.at(key.span().start, format!("there is no key `{name}` here; {hint}")));
            }
        }
        Ok(())
    }

    /// The names of its keys.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        let table = self.table;
        table.keys().map(|key| key.get_ref().as_ref())
    }

    /// Whether a key is there.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.table.get(key).is_some()
    }

    fn value(&self, key: &str) -> Option<&'a DeValue<'a>> {
        self.table.get(key).map(|value| value.get_ref())
    }

    fn wrong<T>(&self, key: &str, wanted: &str) -> Result<Option<T>, StrictError> {
        let found = self.value(key).map_or("nothing", DeValue::type_str);
        Err(self.refuse_at(key, format!("expected {wanted}, found {found}")))
    }

    /// A text.
    ///
    /// # Errors
    ///
    /// It is something else.
    pub fn text(&self, key: &str) -> Result<Option<String>, StrictError> {
        match self.value(key) {
            None => Ok(None),
            Some(DeValue::String(text)) => Ok(Some(text.as_ref().to_owned())),
            Some(_) => self.wrong(key, "a text"),
        }
    }

    /// A text that something else is read from.
    ///
    /// # Errors
    ///
    /// It is no text, or cannot be read.
    pub fn read<T, E: Display>(
        &self,
        key: &str,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, StrictError> {
        self.text(key)?.map(|text| read(&text).map_err(|error| self.refuse_at(key, error))).transpose()
    }

    /// An amount of dollars.
    ///
    /// # Errors
    ///
    /// It is no text, or no amount.
    pub fn money(&self, key: &str) -> Result<Option<Money>, StrictError> {
        self.dollars(key, str::parse::<Money>)
    }

    /// What is read from dollars, written as a text: a float is never exact.
    ///
    /// # Errors
    ///
    /// It is no text, or cannot be read.
    pub fn dollars<T, E: Display>(
        &self,
        key: &str,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, StrictError> {
        match self.value(key) {
            Some(DeValue::Float(_) | DeValue::Integer(_)) => {
                self.wrong(key, "dollars as a text, exact by its digits: \"2.50\"")
            }
            _ => self.read(key, read),
        }
    }

    /// A length of time.
    ///
    /// # Errors
    ///
    /// It is no text, or no length of time.
    pub fn duration(&self, key: &str) -> Result<Option<Millis>, StrictError> {
        self.read(key, units::duration)
    }

    /// A whole number from `least` on.
    ///
    /// # Errors
    ///
    /// It is something else, below `least`, or out of range.
    pub fn whole<T: TryFrom<u64>>(&self, key: &str, least: u64) -> Result<Option<T>, StrictError> {
        let wanted = format!("a whole number of at least {least}");
        match self.value(key) {
            None => Ok(None),
            Some(DeValue::Integer(digits)) => {
                let number =
                    u64::from_str_radix(digits.as_str(), digits.radix()).ok().filter(|number| *number >= least);
                let read = number.and_then(|number| T::try_from(number).ok());
                match read {
                    Some(number) => Ok(Some(number)),
                    None => Err(self.refuse_at(key, format!("{digits} is not {wanted} that can be counted"))),
                }
            }
            Some(_) => self.wrong(key, &wanted),
        }
    }

    /// Yes or no.
    ///
    /// # Errors
    ///
    /// It is something else.
    pub fn truth(&self, key: &str) -> Result<Option<bool>, StrictError> {
        match self.value(key) {
            None => Ok(None),
            Some(DeValue::Boolean(truth)) => Ok(Some(*truth)),
            Some(_) => self.wrong(key, "true or false"),
        }
    }

    /// Texts; one text stands for a list of it.
    ///
    /// # Errors
    ///
    /// It is something else.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<String>>, StrictError> {
        match self.value(key) {
            None => Ok(None),
            Some(DeValue::String(text)) => Ok(Some(vec![text.as_ref().to_owned()])),
            Some(DeValue::Array(list)) => {
                let texts: Option<Vec<String>> =
                    list.iter().map(|value| value.get_ref().as_str().map(str::to_owned)).collect();
                match texts {
                    Some(texts) => Ok(Some(texts)),
                    None => self.wrong(key, "a list of texts"),
                }
            }
            Some(_) => self.wrong(key, "a list of texts"),
        }
    }

    /// A table with these keys.
    ///
    /// # Errors
    ///
    /// It is something else, or a key in it is not known.
    pub fn table(&self, key: &str, known: &[&str]) -> Result<Option<Self>, StrictError> {
        let fields = self.open_table(key)?;
        fields.map(|fields| fields.check(known).map(|()| fields)).transpose()
    }

    /// A table with any keys.
    ///
    /// # Errors
    ///
    /// It is something else.
    pub fn open_table(&self, key: &str) -> Result<Option<Self>, StrictError> {
        match self.table.get(key).map(|value| (value.span().start, value.get_ref())) {
            None => Ok(None),
            Some((start, DeValue::Table(table))) => Ok(Some(Fields { source: self.source, table, start })),
            Some(_) => self.wrong(key, "a table"),
        }
    }

    /// A list of tables with these keys.
    ///
    /// # Errors
    ///
    /// It is something else, or a key in one of them is not known.
    pub fn tables(&self, key: &str, known: &[&str]) -> Result<Vec<Self>, StrictError> {
        let list = match self.value(key) {
            None => return Ok(Vec::new()),
            Some(DeValue::Array(list)) => list,
            Some(_) => {
                self.wrong::<()>(key, &format!("a list of tables, [[{key}]]"))?;
                return Ok(Vec::new());
            }
        };
        let mut tables = Vec::new();
        for value in list {
            let DeValue::Table(table) = value.get_ref() else {
                return Err(self.refuse_at(key, format!("expected a list of tables, [[{key}]]")));
            };
            let fields = Fields { source: self.source, table, start: value.span().start };
            fields.check(known)?;
            tables.push(fields);
        }
        Ok(tables)
    }

    /// The whole table as JSON: for fields whose names are a vendor's.
    ///
    /// # Errors
    ///
    /// A value has no place in JSON: a date, or a number that is none.
    pub fn json(&self) -> Result<Map<String, Value>, StrictError> {
        self.table
            .iter()
            .map(|(key, value)| {
                let json = json(value.get_ref()).ok_or_else(|| {
                    self.source.at(value.span().start, format!("`{}` cannot be sent as JSON", key.get_ref()))
                })?;
                Ok((key.get_ref().as_ref().to_owned(), json))
            })
            .collect()
    }
}

fn json(value: &DeValue<'_>) -> Option<Value> {
    match value {
        DeValue::String(text) => Some(Value::String(text.as_ref().to_owned())),
        DeValue::Boolean(truth) => Some(Value::Bool(*truth)),
        DeValue::Integer(digits) => i64::from_str_radix(digits.as_str(), digits.radix()).ok().map(Value::from),
        DeValue::Float(digits) => serde_json::Number::from_f64(digits.as_str().parse().ok()?).map(Value::Number),
        DeValue::Datetime(_) => None,
        DeValue::Array(list) => list.iter().map(|value| json(value.get_ref())).collect::<Option<_>>().map(Value::Array),
        DeValue::Table(table) => table
            .iter()
            .map(|(key, value)| Some((key.get_ref().as_ref().to_owned(), json(value.get_ref())?)))
            .collect::<Option<_>>()
            .map(Value::Object),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(Option<Money>, Option<u32>), StrictError> {
        let source = Source::of(Path::new("f.toml"), text);
        source.table(&["price", "count", "inner"], |fields| {
            fields.table("inner", &["word"])?;
            Ok((fields.money("price")?, fields.whole("count", 1)?))
        })
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        assert_eq!(read("price = \"2.50\"\ncount = 3\n").unwrap(), (Some("2.5".parse().unwrap()), Some(3)));
        for (text, said) in [
            ("\npricee = \"1\"", "f.toml:2:1: there is no key `pricee` here; did you mean `price`?"),
            ("xyzzy = 1", "f.toml:1:1: there is no key `xyzzy` here; known are price, count, inner"),
            ("[inner]\nwrod = 1", "f.toml:2:1: there is no key `wrod` here; did you mean `word`?"),
            (
                "price = 2.5",
                "f.toml:1:9: `price`: expected dollars as a text, exact by its digits: \"2.50\", found float",
            ),
            ("price = nan", "f.toml:1:9: `price`: expected dollars as a text"),
            ("price = \"-1\"", "f.toml:1:9: `price`: `-1` is negative"),
            ("price = \"1e999\"", "f.toml:1:9: `price`: `1e999` is no amount of dollars"),
            ("price = \"NaN\"", "f.toml:1:9: `price`: `NaN` is no amount of dollars"),
            ("count = 0", "f.toml:1:9: `count`: 0 is not a whole number of at least 1"),
            ("count = -1", "f.toml:1:9: `count`: -1 is not"),
            ("count = 99999999999", "f.toml:1:9: `count`: 99999999999 is not"),
            ("count = 99999999999999999999999999", "f.toml:1:9: "),
            ("count = 1.5", "f.toml:1:9: `count`: expected a whole number of at least 1, found float"),
            ("price = [", "f.toml:1:"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.starts_with(said), "{text:?} gave {error:?}");
        }
    }

    #[test]
    fn tables_of_a_vendors_own_words_become_json() {
        let source = Source::of(Path::new("f.toml"), "[p]\ntemperature = 0.5\nstop = [\"a\"]\nthinking = {n = 3}\n");
        let json = source.table(&["p"], |fields| fields.open_table("p")?.expect("a table").json()).unwrap();
        assert_eq!(Value::Object(json), serde_json::json!({"temperature": 0.5, "stop": ["a"], "thinking": {"n": 3}}));
        for text in ["[p]\nx = nan", "[p]\nx = 2020-01-01", "[p]\nx = [inf]"] {
            let source = Source::of(Path::new("f.toml"), text);
            let error = source.table(&["p"], |fields| fields.open_table("p")?.expect("a table").json()).unwrap_err();
            assert!(error.to_string().contains("cannot be sent as JSON"), "{error}");
        }
    }
}

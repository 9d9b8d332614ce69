//! The price table: what models cost, where that is published, and when it was looked at.
//!
//! The table is a file that is compiled in; rows of another file come before its rows. It is read
//! strictly: a price that is missing, negative or a float is an error with its place.

mod read;

use std::path::Path;

use longhaul_core::price::{ImageRule, ModelPrice, Rate};
use serde_json::{Value, json};

use crate::nearest;
use crate::output::{Table, Tone};
use crate::strict::{Source, StrictError};

/// The table that is compiled in.
const BUILT_IN: &str = include_str!("prices.toml");

/// The most names that are suggested for one that is not in the table.
const NAMES_SHOWN: usize = 3;

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What calls are priced with.
    pub price: ModelPrice,
    /// When its source was looked at.
    pub date: String,
    /// Where the price is published.
    pub source: String,
    /// Where it was read, if that was not its source itself: then nobody here has verified it.
    pub by_way_of: Option<String>,
    /// Whether it is of a file, and not of the table that is compiled in.
    pub own: bool,
}

/// The rows, in the order in which they count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriceTable {
    rows: Vec<Row>,
    date: String,
}

impl PriceTable {
    /// The table, with the rows of `file` before its own.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or a row of it makes no sense.
    pub fn load(file: Option<&Path>) -> Result<Self, StrictError> {
        let mut table = read::table(&Source::of(Path::new("prices.toml"), BUILT_IN), false)?;
        if let Some(file) = file {
            let own = read::table(&Source::read(file)?, true)?;
            table.date = format!("{}, after {} of {}", table.date, own.rows.len(), file.display());
            table.rows = own.rows.into_iter().chain(table.rows).collect();
        }
        Ok(table)
    }

    /// What a run says of where its prices are from.
    #[must_use]
    pub fn date(&self) -> &str {
        &self.date
    }

    /// The rows, in order.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The row that counts for a model.
    #[must_use]
    pub fn find(&self, vendor: &str, model: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.price.is_of(vendor, model))
    }

    /// The rows of a vendor, in order.
    pub fn of_vendor<'a>(&'a self, vendor: &'a str) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(move |row| row.price.vendor == vendor)
    }

    /// The names in the table that are most like one that is not, as `VENDOR:MODEL`.
    #[must_use]
    pub fn nearest(&self, vendor: &str, model: &str) -> Vec<String> {
        let names: Vec<(String, &str)> =
            self.rows.iter().map(|row| (row.price.vendor.clone(), row.price.model.trim_end_matches('*'))).collect();
        let mut near = Vec::new();
        // The vendor's own first: the same model of another one has another price.
        let own = names.iter().filter(|(of, _)| of == vendor).map(|(_, model)| *model);
        near.extend(nearest::ranked(model, own).into_iter().map(|near| format!("{vendor}:{near}")));
        for (of, other) in names.iter().filter(|(of, other)| of != vendor && *other == model) {
            near.push(format!("{of}:{other}"));
        }
        near.truncate(NAMES_SHOWN);
        near
    }

    /// The rows whose model or vendor has this in its name, or that fit it; all without one.
    #[must_use]
    pub fn matching(&self, wanted: Option<&str>) -> Vec<&Row> {
        let Some(wanted) = wanted else { return self.rows.iter().collect() };
        let (vendor, model) = wanted.split_once(':').unwrap_or(("", wanted));
        let fits = |row: &&Row| {
            let price = &row.price;
            (vendor.is_empty() || price.vendor == vendor)
                && (price.is_of(&price.vendor, model) || price.model.contains(model) || price.vendor == model)
        };
        self.rows.iter().filter(fits).collect()
    }
}

/// Rows as a table for people: dollars for a million tokens, or for an hour of a call.
#[must_use]
pub fn as_text(rows: &[&Row], colours: bool) -> String {
    let mut table = Table::new(&[
        "vendor",
        "model",
        "context",
        "input",
        "write 5m",
        "write 1h",
        "cached",
        "output",
        "output limit",
        "image",
        "looked at",
        "",
    ]);
    for row in rows {
        let price = &row.price;
        let own = if row.own { "yours" } else { "" };
        let mark = if row.by_way_of.is_some() { "not verified" } else { own };
        let line = |model: &str, context: String, cells: [String; 5], first: bool| {
            let only_first = |text: String| if first { text } else { String::new() };
            let mut line = vec![
                (only_first(price.vendor.clone()), Tone::Plain),
                (model.to_owned(), Tone::Plain),
                (context, Tone::Plain),
            ];
            line.extend(cells.into_iter().map(|cell| (cell, Tone::Plain)));
            line.extend([
                (only_first(price.max_output.to_string()), Tone::Plain),
                (only_first(image(&price.image)), Tone::Dim),
                (only_first(row.date.clone()), Tone::Dim),
                (only_first(mark.to_owned()), Tone::Warn),
            ]);
            line
        };
        match &price.rate {
            Rate::Time { hour } => {
                let by_time = format!("{hour} an hour of a call");
                let nothing = String::new;
                let cells = [by_time, nothing(), nothing(), nothing(), nothing()];
                table.row(line(&price.model, price.context.to_string(), cells, true));
            }
            Rate::Tokens { tiers } => {
                let services = price.services.iter().map(|service| (service.service.name(), &service.tiers));
                for (service, tiers) in std::iter::once(("", tiers)).chain(services) {
                    for (index, tier) in tiers.iter().enumerate() {
                        let until = tiers.get(index + 1).map_or(price.context, |next| next.above);
                        let cells = [tier.input, tier.cache_write, tier.cache_write_long, tier.cache_read, tier.output];
                        let model = match (service, index) {
                            ("", 0) => price.model.clone(),
                            (_, 0) => format!("  {service}"),
                            _ => String::new(),
                        };
                        let first = service.is_empty() && index == 0;
                        table.row(line(&model, format!("to {until}"), cells.map(|amount| amount.to_string()), first));
                    }
                }
            }
        }
    }
    table.render(colours)
}

fn image(rule: &ImageRule) -> String {
    match *rule {
        ImageRule::Area { pixels, most } => format!("1 per {pixels} px, to {most}"),
        ImageRule::Tiles { side, tile, base, most } => format!("{base} + {tile} per {side}x{side}, to {most}"),
        ImageRule::Fixed { tokens } => format!("{tokens}"),
    }
}

/// A row for programs.
#[must_use]
pub fn as_json(row: &Row) -> Value {
    let mut value = serde_json::to_value(&row.price).unwrap_or_default();
    if let Value::Object(fields) = &mut value {
        fields.insert("date".to_owned(), json!(row.date));
        fields.insert("source".to_owned(), json!(row.source));
        fields.insert("by_way_of".to_owned(), json!(row.by_way_of));
        fields.insert("verified".to_owned(), json!(row.by_way_of.is_none()));
        fields.insert("own".to_owned(), json!(row.own));
        fields.insert("unit".to_owned(), json!("billionths of a dollar for a million tokens, or for an hour"));
    }
    value
}

#[cfg(test)]
mod tests {
    use longhaul_core::money::Money;
    use longhaul_core::price::{Service, Usage};
    use longhaul_core::time::Millis;

    use super::*;

    fn own(text: &str) -> Result<PriceTable, StrictError> {
        read::table(&Source::of(Path::new("mine.toml"), text), true)
    }

    const ROW: &str = r#"
[[price]]
vendor = "v"
model = "m"
date = "2026-11-30"
source = "a letter"
input = "1"
cache_write = "1"
cache_write_long = "1"
cache_read = "0.1"
output = "2"
context = 1000
max_output = 100
image = { rule = "fixed", tokens = 10 }
"#;

    #[test]
    fn the_table_that_is_compiled_in_is_sound_and_says_where_it_is_from() {
        let table = PriceTable::load(None).unwrap();
        for row in table.rows() {
            row.price.check().unwrap();
            assert!(row.source.starts_with("https://") && row.date.len() == 10, "{row:?}");
            // An address alone: what was read elsewhere says so in its own place, and is shown.
            assert!(!row.source.contains(' '), "{row:?}");
            let first = table.find(&row.price.vendor, row.price.model.trim_end_matches('*')).unwrap();
            assert_eq!(first.price.model, row.price.model, "an earlier row hides it");
        }
        // The models of the papers' tables that are reached over an API.
        for (vendor, model) in [
            ("openai", "gpt-5.4"),
            ("anthropic", "claude-sonnet-4-6"),
            ("moonshot", "kimi-k2.5"),
            ("gemini", "gemini-3-flash-preview"),
        ] {
            assert!(table.find(vendor, model).is_some(), "{vendor}:{model}");
        }
        assert!(table.find("openai", "gpt-5.4-pro").is_none(), "another model, ten times dearer");
    }

    #[test]
    fn a_call_costs_what_the_vendor_says() {
        let table = PriceTable::load(None).unwrap();
        let row = table.find("anthropic", "claude-sonnet-4-6-20260217").unwrap();
        let usage = Usage { input: 1_000, cache_read: 100_000, output: 1_000, ..Usage::default() };
        // 0.003 + 0.03 + 0.015
        assert_eq!(row.price.cost(&usage, Millis(0)), "0.048".parse().unwrap());
        // Squares of 28 pixels: 69 x 39, shrunk.
        assert_eq!(row.price.image.bound(Some((1920, 1080))), 1600);
        assert_eq!(row.price.image.bound(Some((1280, 720))), 46 * 26);
    }

    #[test]
    fn rows_of_a_file_come_first() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine.toml");
        let mine = ROW.replace("\"v\"", "\"openai\"").replace("\"m\"", "\"gpt-5*\"");
        std::fs::write(&file, format!("date = \"2026-12-01\"\n{mine}")).unwrap();
        let table = PriceTable::load(Some(&file)).unwrap();
        assert!(table.find("openai", "gpt-5.4").unwrap().own);
        assert!(table.date().contains("mine.toml"), "{}", table.date());
    }

    #[test]
    fn what_is_wrong_in_a_row_is_said_with_its_place() {
        own(ROW).unwrap();
        let changed = |from: &str, to: &str| own(&ROW.replace(from, to)).expect_err(to).to_string();
        for (from, to, said) in [
            ("input = \"1\"\n", "", "mine.toml:2:1: `input` is missing"),
            ("input = \"1\"", "input = \"-1\"", "mine.toml:7:9: `input`: `-1` is negative"),
            ("input = \"1\"", "input = 1.5", "mine.toml:7:9: `input`: expected dollars as a text"),
            ("input = \"1\"", "input = \"NaN\"", "`NaN` is no amount of dollars"),
            ("input = \"1\"", "input = \"1e999\"", "`1e999` is no amount of dollars"),
            ("input = \"1\"", "input = \"0.0000000001\"", "more than nine decimals"),
            ("input = \"1\"", "inputs = \"1\"", "there is no key `inputs` here; did you mean `input`?"),
            ("context = 1000", "context = 0", "`context`: 0 is not a whole number of at least 1"),
            ("max_output = 100", "max_output = -5", "`max_output`: -5 is not"),
            ("rule = \"fixed\"", "rule = \"round\"", "`rule`: `round` is no rule"),
            ("tokens = 10", "token = 10", "there is no key `token` here; did you mean `tokens`?"),
            ("vendor = \"v\"\n", "", "`vendor` is missing"),
            ("date = \"2026-11-30\"", "date = \"yesterday\"", "`date`: `yesterday` is no date"),
            ("model = \"m\"", "model = \"m*x\"", "`model`: a `*` stands at the end"),
            ("output = \"2\"", "output = \"2\"\ngpu_hour = \"1\"", "is priced by the token or by time"),
            (
                "context = 1000",
                "context = 1000\ntier = [{above = 0}]",
                "`above`: 0 is not a whole number of at least 1",
            ),
        ] {
            let error = changed(from, to);
            assert!(error.contains(said), "{to:?} gave {error:?}");
        }
    }

    #[test]
    fn a_tier_of_service_is_a_part_of_the_usual_price_or_has_prices_of_its_own() {
        let with = |lines: &str| own(&ROW.replace("context = 1000\n", &format!("context = 1000\n{lines}\n")));
        let table = with("batch = \"50%\"").unwrap();
        let usage = Usage { input: 1_000_000, cache_read: 1_000_000, output: 1_000_000, ..Usage::default() };
        let cost =
            |table: &PriceTable, service| table.find("v", "m").unwrap().price.cost_as(service, &usage, Millis(0));
        // The context of the test's row is small, and no tier depends on it.
        assert_eq!(cost(&table, Some(Service::Batch)), Some("1.55".parse().unwrap()));
        let own_prices = "priority = [{ input = \"3\", cache_write = \"3\", cache_write_long = \"3\", cache_read = \"1\", output = \"5\" }]";
        let table = with(own_prices).unwrap();
        assert_eq!(cost(&table, Some(Service::Priority)), Some("9".parse().unwrap()));
        assert_eq!(cost(&table, Some(Service::Flex)), None);
        let text = as_text(&table.matching(None), false);
        assert!(text.contains("  priority"), "{text}");
        assert_eq!(as_json(table.find("v", "m").unwrap())["services"][0]["service"], json!("priority"));
        for (lines, said) in [
            ("batch = \"half\"", "`half` is no part of the usual price"),
            ("batch = \"0%\"", "`0%` is no part"),
            ("batch = 50", "`batch`: expected a list of tables"),
            ("flex = [{ input = \"1\" }]", "`cache_write` is missing"),
            ("priority = []", "has no tier"),
        ] {
            let error = with(lines).expect_err(lines).to_string();
            assert!(error.contains(said), "{lines} gave {error}");
        }
    }

    #[test]
    fn what_was_not_read_at_its_source_is_shown_as_such() {
        let table = own(&ROW.replace("source = ", "by_way_of = \"a friend\"\nsource = ")).unwrap();
        let row = table.find("v", "m").unwrap();
        assert!(as_text(&[row], false).contains("not verified"));
        let json = as_json(row);
        assert_eq!((&json["verified"], &json["by_way_of"]), (&json!(false), &json!("a friend")));
        let all = PriceTable::load(None).unwrap();
        assert!(all.rows().iter().any(|row| row.by_way_of.is_none()));
    }

    #[test]
    fn hardware_of_ones_own_is_priced_by_the_share_of_a_call() {
        let by_time = r#"
[[price]]
vendor = "my-vllm"
model = "Qwen/Qwen3-VL-4B*"
date = "2026-11-30"
source = "the cluster"
gpu_hour = "2.10"
gpus = 2
parallel = 16
context = 32768
max_output = 8192
image = { rule = "area", pixels = 1024, most = 16384 }
"#;
        let table = own(by_time).unwrap();
        let row = table.find("my-vllm", "Qwen/Qwen3-VL-4B-Instruct").unwrap();
        let hour: Money = "0.2625".parse().unwrap();
        assert_eq!(row.price.rate, Rate::Time { hour });
        let error = own(&by_time.replace("parallel = 16", "parallel = 0")).unwrap_err().to_string();
        assert!(error.contains("`parallel`: 0 is not"), "{error}");
    }

    #[test]
    fn the_nearest_names_are_of_the_same_vendor() {
        let table = PriceTable::load(None).unwrap();
        assert_eq!(table.nearest("anthropic", "claude-sonet-4-6")[0], "anthropic:claude-sonnet-4-6");
        assert_eq!(table.nearest("mine", "gpt-5.4"), ["openai:gpt-5.4"]);
        assert_eq!(table.nearest("mine", "xyzzy"), Vec::<String>::new());
    }
}

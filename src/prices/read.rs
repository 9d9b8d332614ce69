//! Reading a file of prices.

use longhaul_core::money::Money;
use longhaul_core::price::{ImageRule, ModelPrice, Rate, Service, ServicePrice, Tier};

use super::{PriceTable, Row};
use crate::strict::{Fields, Source, StrictError};

/// The prices of a tier.
const PRICES: [&str; 5] = ["input", "cache_write", "cache_write_long", "cache_read", "output"];

/// The keys of a row.
const KEYS: [&str; 20] = [
    "vendor",
    "model",
    "date",
    "source",
    "by_way_of",
    "input",
    "cache_write",
    "cache_write_long",
    "cache_read",
    "output",
    "tier",
    "gpu_hour",
    "gpus",
    "parallel",
    "context",
    "max_output",
    "image",
    "batch",
    "flex",
    "priority",
];

/// Reads a table of prices.
pub(super) fn table(source: &Source, own: bool) -> Result<PriceTable, StrictError> {
    source.table(&["date", "price"], |fields| {
        let rows = fields.tables("price", &KEYS)?;
        let rows = rows.iter().map(|fields| row(fields, own)).collect::<Result<Vec<_>, _>>()?;
        let date = fields.read("date", date)?.unwrap_or_default();
        Ok(PriceTable { rows, date })
    })
}

/// A calendar day, as a table writes it.
fn date(text: &str) -> Result<String, String> {
    text.parse::<jiff::civil::Date>()
        .map(|date| date.to_string())
        .map_err(|_| format!("`{text}` is no date: write \"2026-11-30\""))
}

fn row(fields: &Fields<'_>, own: bool) -> Result<Row, StrictError> {
    let text = |key: &str, what: &str| -> Result<String, StrictError> {
        fields.text(key)?.filter(|text| !text.trim().is_empty()).ok_or_else(|| fields.missing(key, what))
    };
    let vendor = text("vendor", "as the endpoint of the model names its vendor")?;
    let model = text("model", "the model as requests name it, with a `*` at its end for dated versions")?;
    if model.trim_end_matches('*').contains('*') || model.ends_with("**") {
        return Err(fields.refuse_at("model", "a `*` stands at the end, once"));
    }
    let whole = |key: &str, what: &str| -> Result<u64, StrictError> {
        fields.whole(key, 1)?.ok_or_else(|| fields.missing(key, what))
    };
    let rate = rate(fields)?;
    let price = ModelPrice {
        services: services(fields, &rate)?,
        rate,
        image: image(fields)?,
        context: whole("context", "the most tokens of a context; without it no call can be bounded")?,
        max_output: whole("max_output", "the most output tokens of one call")?,
        vendor,
        model,
    };
    price.check().map_err(|error| fields.refuse(error.to_string()))?;
    let looked_at =
        fields.read("date", date)?.ok_or_else(|| fields.missing("date", "when the source was looked at"))?;
    let source = text("source", "where the price is published")?;
    let by_way_of = fields.text("by_way_of")?.filter(|text| !text.trim().is_empty());
    Ok(Row { price, date: looked_at, source, by_way_of, own })
}

/// The prices of other tiers of service: tables of their own, or a part of the usual ones.
fn services(fields: &Fields<'_>, rate: &Rate) -> Result<Vec<ServicePrice>, StrictError> {
    let mut services = Vec::new();
    for service in Service::ALL.into_iter().filter(|service| fields.has(service.name())) {
        let key = service.name();
        let Rate::Tokens { tiers: usual } = rate else {
            return Err(fields.refuse_at(key, "a model that is priced by time has no other price"));
        };
        let tiers = match fields.text(key) {
            Ok(Some(text)) => part_of(&text, usual).map_err(|reason| fields.refuse_at(key, reason))?,
            // It is no text: then it is a list.
            _ => {
                let keys: Vec<&str> = PRICES.into_iter().chain(["above"]).collect();
                let rows = fields.tables(key, &keys)?;
                let read = |row: &Fields<'_>| tier(row, row.whole("above", 0)?.unwrap_or(0));
                rows.iter().map(read).collect::<Result<_, _>>()?
            }
        };
        services.push(ServicePrice { service, tiers });
    }
    Ok(services)
}

/// Prices that are so many percent of these.
fn part_of(text: &str, usual: &[Tier]) -> Result<Vec<Tier>, String> {
    let percent = text.strip_suffix('%').and_then(|digits| digits.parse::<u16>().ok()).filter(|percent| *percent > 0);
    let percent = percent.ok_or_else(|| format!("`{text}` is no part of the usual price: write \"50%\""))?;
    let of = |price: Money| price.scaled_up(u64::from(percent), 100).unwrap_or(Money::MAX);
    let part = |tier: &Tier| Tier {
        above: tier.above,
        input: of(tier.input),
        cache_write: of(tier.cache_write),
        cache_write_long: of(tier.cache_write_long),
        cache_read: of(tier.cache_read),
        output: of(tier.output),
    };
    Ok(usual.iter().map(part).collect())
}

fn rate(fields: &Fields<'_>) -> Result<Rate, StrictError> {
    let by_time = ["gpu_hour", "gpus", "parallel"].into_iter().find(|key| fields.has(key));
    let by_tokens = PRICES.into_iter().chain(["tier"]).find(|key| fields.has(key));
    match (by_time, by_tokens) {
        (Some(time), Some(tokens)) => Err(fields
            .refuse_at(tokens, format!("a model is priced by the token or by time, and `{time}` is there as well"))),
        (Some(_), None) => {
            let gpu_hour =
                fields.money("gpu_hour")?.ok_or_else(|| fields.missing("gpu_hour", "dollars for an hour of one"))?;
            let gpus: u32 = fields.whole("gpus", 1)?.unwrap_or(1);
            let parallel: u32 = fields.whole("parallel", 1)?.unwrap_or(1);
            let hour = gpu_hour.scaled_up(u64::from(gpus), u64::from(parallel));
            hour.map(|hour| Rate::Time { hour })
                .ok_or_else(|| fields.refuse_at("gpu_hour", "is more than can be counted"))
        }
        (None, _) => {
            let mut tiers = vec![tier(fields, 0)?];
            let keys: Vec<&str> = PRICES.into_iter().chain(["above"]).collect();
            for more in fields.tables("tier", &keys)? {
                let above: u64 = more
                    .whole("above", 1)?
                    .ok_or_else(|| more.missing("above", "the tokens of context it starts at"))?;
                tiers.push(tier(&more, above)?);
            }
            Ok(Rate::Tokens { tiers })
        }
    }
}

fn tier(fields: &Fields<'_>, above: u64) -> Result<Tier, StrictError> {
    let price = |key: &str| -> Result<Money, StrictError> {
        fields.money(key)?.ok_or_else(|| {
            fields.missing(
                key,
                "dollars for a million tokens, as a text; write the price of input where there is no other",
            )
        })
    };
    Ok(Tier {
        above,
        input: price("input")?,
        cache_write: price("cache_write")?,
        cache_write_long: price("cache_write_long")?,
        cache_read: price("cache_read")?,
        output: price("output")?,
    })
}

fn image(fields: &Fields<'_>) -> Result<ImageRule, StrictError> {
    let all = ["rule", "pixels", "side", "tile", "base", "most", "tokens"];
    let what = "how many tokens an image is at most, such as { rule = \"fixed\", tokens = 2000 }";
    let open = fields.table("image", &all)?.ok_or_else(|| fields.missing("image", what))?;
    let rule = open.text("rule")?.ok_or_else(|| open.missing("rule", "`area`, `tiles` or `fixed`"))?;
    let known: &[&str] = match rule.as_str() {
        "area" => &["rule", "pixels", "most"],
        "tiles" => &["rule", "side", "tile", "base", "most"],
        "fixed" => &["rule", "tokens"],
        other => return Err(open.refuse_at("rule", format!("`{other}` is no rule: write `area`, `tiles` or `fixed`"))),
    };
    // Now that the rule is known, so are its keys.
    let own = fields.table("image", known)?.unwrap_or(open);
    let whole = |key: &str, least: u64| -> Result<u32, StrictError> {
        own.whole(key, least)?.ok_or_else(|| own.missing(key, &format!("the rule `{rule}` needs it")))
    };
    Ok(match rule.as_str() {
        "area" => ImageRule::Area { pixels: whole("pixels", 1)?, most: whole("most", 1)? },
        "tiles" => ImageRule::Tiles {
            side: whole("side", 1)?,
            tile: whole("tile", 1)?,
            base: whole("base", 0)?,
            most: whole("most", 1)?,
        },
        _ => ImageRule::Fixed { tokens: whole("tokens", 1)? },
    })
}

//! Prices of models: what a call costs by its usage, and the most that it can cost.
//!
//! A [`ModelPrice`] is a row of a price table as a run froze it. Tokens are priced per million,
//! each kind by itself, in tiers by the length of the context; a model served on one's own
//! hardware is priced by the time that its calls take. All arithmetic is in whole numbers and
//! rounds up once per call.

use serde::{Deserialize, Serialize};

use crate::endpoint::is_named;
use crate::money::Money;
use crate::time::Millis;

/// Tokens in the unit of prices.
const MILLION: u128 = 1_000_000;

/// Milliseconds in an hour.
const HOUR_MILLIS: u64 = 3_600_000;

/// What one call used, as the vendor reports it. Each token is in exactly one field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Input that was read anew.
    pub input: u64,
    /// Input that was written into a cache of the shorter kind.
    #[serde(default)]
    pub cache_write: u64,
    /// Input that was written into a cache of the longer kind.
    #[serde(default)]
    pub cache_write_long: u64,
    /// Input that came from a cache.
    #[serde(default)]
    pub cache_read: u64,
    /// Output, thinking included.
    pub output: u64,
}

impl Usage {
    /// All input, wherever it came from: what tiers by context length go by.
    #[must_use]
    pub const fn context(&self) -> u64 {
        self.input
            .saturating_add(self.cache_write)
            .saturating_add(self.cache_write_long)
            .saturating_add(self.cache_read)
    }

    /// All tokens: what a token budget counts.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.context().saturating_add(self.output)
    }

    /// Both together.
    #[must_use]
    pub const fn plus(&self, other: &Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            cache_write: self.cache_write.saturating_add(other.cache_write),
            cache_write_long: self.cache_write_long.saturating_add(other.cache_write_long),
            cache_read: self.cache_read.saturating_add(other.cache_read),
            output: self.output.saturating_add(other.output),
        }
    }
}

/// Prices per million tokens, from a context length on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    /// The tier holds for contexts of more input tokens than this; 0 in the first tier.
    pub above: u64,
    /// Input that is read anew.
    pub input: Money,
    /// Input that is written into a cache of the shorter kind.
    pub cache_write: Money,
    /// Input that is written into a cache of the longer kind.
    pub cache_write_long: Money,
    /// Input that comes from a cache.
    pub cache_read: Money,
    /// Output.
    pub output: Money,
}

impl Tier {
    /// The dearest that a token of input can be.
    fn dearest_input(&self) -> Money {
        self.input.max(self.cache_write).max(self.cache_write_long).max(self.cache_read)
    }
}

/// A tier of service that has prices of its own, where a vendor has such: the same call, later or
/// sooner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// Answered within a day or so, through an interface of its own.
    Batch,
    /// Answered when there is room for it.
    Flex,
    /// Answered before others.
    Priority,
}

impl Service {
    /// Every tier that there is.
    pub const ALL: [Self; 3] = [Self::Batch, Self::Flex, Self::Priority];

    /// The name in price tables, in requests and in answers of vendors.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Flex => "flex",
            Self::Priority => "priority",
        }
    }

    /// The tier of that name, as vendors write it; none is the usual one, or is not known.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        // Gemini writes its words in two ways, and OpenAI has another one for priority.
        let name = name.strip_prefix("SERVICE_TIER_").unwrap_or(name);
        let fast = name.eq_ignore_ascii_case("fast").then_some(Self::Priority);
        Self::ALL.into_iter().find(|service| name.eq_ignore_ascii_case(service.name())).or(fast)
    }
}

/// The prices of a tier of service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePrice {
    /// Which.
    pub service: Service,
    /// By context length, as those of the usual service.
    pub tiers: Vec<Tier>,
}

/// How a model is paid for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum Rate {
    /// By the token.
    Tokens {
        /// At least one, by rising context length, the first from 0 on.
        tiers: Vec<Tier>,
    },
    /// By the time that a call takes: of hardware that is paid by the hour, the share that one
    /// of its parallel calls has.
    Time {
        /// For an hour of one call.
        hour: Money,
    },
}

/// How many tokens an image of a request is at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "rule")]
pub enum ImageRule {
    /// One token for so many pixels, no more than `most` (the vendor shrinks what is larger).
    Area {
        /// Pixels of one token.
        pixels: u32,
        /// The most tokens of one image.
        most: u32,
    },
    /// Squares of `side` pixels, `tile` tokens each, and `base` tokens once; no more than `most`.
    Tiles {
        /// Pixels of a square's side.
        side: u32,
        /// Tokens of a square.
        tile: u32,
        /// Tokens of the image itself.
        base: u32,
        /// The most tokens of one image.
        most: u32,
    },
    /// As many as that, whatever its size.
    Fixed {
        /// Tokens of an image.
        tokens: u32,
    },
}

impl ImageRule {
    /// The most tokens of an image of this size; of any image, if its size is not known.
    #[must_use]
    pub fn bound(&self, size: Option<(u32, u32)>) -> u64 {
        match (*self, size) {
            (Self::Area { pixels, most }, Some((width, height))) => {
                let area = u64::from(width).saturating_mul(u64::from(height));
                area.div_ceil(u64::from(pixels.max(1))).min(u64::from(most))
            }
            (Self::Tiles { side, tile, base, most }, Some((width, height))) => {
                let side = side.max(1);
                let tiles = u64::from(width.div_ceil(side)).saturating_mul(u64::from(height.div_ceil(side)));
                tiles.saturating_mul(u64::from(tile)).saturating_add(u64::from(base)).min(u64::from(most))
            }
            (Self::Area { most, .. } | Self::Tiles { most, .. }, None) => u64::from(most),
            (Self::Fixed { tokens }, _) => u64::from(tokens),
        }
    }
}

/// A row of a price table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelPrice {
    /// Who serves it, as endpoints name their vendor.
    pub vendor: String,
    /// The model as requests name it; a trailing `*` stands for any rest (dated versions).
    pub model: String,
    /// How it is paid for.
    #[serde(flatten)]
    pub rate: Rate,
    /// How many tokens an image is at most.
    pub image: ImageRule,
    /// The largest context that the model takes, in tokens: no input is larger, whatever it
    /// holds.
    pub context: u64,
    /// The most output tokens of one call, where a request does not say.
    pub max_output: u64,
    /// The prices of other tiers of service, each at most once; only of a model by the token.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServicePrice>,
}

/// A price that cannot be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PriceError {
    /// Tokens without a price.
    #[error("the price of {vendor}/{model} has no tier")]
    NoTier {
        /// The vendor.
        vendor: String,
        /// The model.
        model: String,
    },
    /// Tiers that overlap or leave a gap.
    #[error("the tiers of {vendor}/{model} have to start at 0 and rise; `above = {above}` does not")]
    Order {
        /// The vendor.
        vendor: String,
        /// The model.
        model: String,
        /// The tier's start.
        above: u64,
    },
    /// A bound that bounds nothing.
    #[error("the price of {vendor}/{model} needs `{field}` above 0: without it no call can be bounded")]
    NoBound {
        /// The vendor.
        vendor: String,
        /// The model.
        model: String,
        /// The field.
        field: &'static str,
    },
}

impl ModelPrice {
    /// Whether a call of it can be priced and bounded.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), PriceError> {
        let (vendor, model) = (self.vendor.clone(), self.model.clone());
        for (field, value) in [("context", self.context), ("max_output", self.max_output)] {
            if value == 0 {
                return Err(PriceError::NoBound { vendor, model, field });
            }
        }
        let Rate::Tokens { tiers } = &self.rate else { return Ok(()) };
        for tiers in std::iter::once(tiers).chain(self.services.iter().map(|service| &service.tiers)) {
            let Some(first) = tiers.first() else { return Err(PriceError::NoTier { vendor, model }) };
            let wrong = match first.above {
                0 => tiers.windows(2).find(|pair| pair[1].above <= pair[0].above).map(|pair| pair[1].above),
                above => Some(above),
            };
            if let Some(above) = wrong {
                return Err(PriceError::Order { vendor, model, above });
            }
        }
        Ok(())
    }

    /// The prices of a tier of service: its own, or by the token those of the usual one where it is
    /// none. None where the table does not know them.
    fn tiers(&self, service: Option<Service>) -> Option<&[Tier]> {
        match (service, &self.rate) {
            (_, Rate::Time { .. }) => None,
            (None, Rate::Tokens { tiers }) => Some(tiers),
            (Some(wanted), Rate::Tokens { .. }) => {
                self.services.iter().find(|service| service.service == wanted).map(|service| &*service.tiers)
            }
        }
    }

    /// Whether the table says what a call costs in that tier of service.
    #[must_use]
    pub fn serves(&self, service: Service) -> bool {
        matches!(self.rate, Rate::Time { .. }) || self.tiers(Some(service)).is_some()
    }

    /// Whether this row is of a model of that name.
    #[must_use]
    pub fn is_of(&self, vendor: &str, model: &str) -> bool {
        self.vendor == vendor && is_named(&self.model, model)
    }

    /// What a call of the usual service with this usage costs that took `took`; the end of the range
    /// if it is beyond.
    #[must_use]
    pub fn cost(&self, usage: &Usage, took: Millis) -> Money {
        self.cost_as(None, usage, took).unwrap_or(Money::MAX)
    }

    /// What it costs in a tier of service; none if the table does not say.
    #[must_use]
    pub fn cost_as(&self, service: Option<Service>, usage: &Usage, took: Millis) -> Option<Money> {
        if let Rate::Time { hour } = &self.rate {
            return Some(hour.scaled_up(took.0, HOUR_MILLIS).unwrap_or(Money::MAX));
        }
        let context = usage.context();
        let tier = self.tiers(service)?.iter().rev().find(|tier| tier.above == 0 || context > tier.above)?;
        Some(per_million(&[
            (usage.input, tier.input),
            (usage.cache_write, tier.cache_write),
            (usage.cache_write_long, tier.cache_write_long),
            (usage.cache_read, tier.cache_read),
            (usage.output, tier.output),
        ]))
    }

    /// The most that a call can cost that has at most `input` tokens of input, at most `output` of output
    /// over all its choices, and is given up after `limit`. One that asks for a tier of service may be
    /// served as usual, where its vendor has no room there.
    #[must_use]
    pub fn bound_as(&self, service: Option<Service>, input: u64, output: u64, limit: Millis) -> Money {
        if let Rate::Time { hour } = &self.rate {
            return hour.scaled_up(limit.0, HOUR_MILLIS).unwrap_or(Money::MAX);
        }
        let input = input.min(self.context);
        // A later tier may be cheaper by mistake of the table: the dearest that can be reached.
        let usual = self.tiers(None).unwrap_or_default();
        self.tiers(service).map_or(Money::MAX, |asked| {
            let reached = usual.iter().chain(asked).filter(|tier| tier.above == 0 || input > tier.above);
            let cost = |tier: &Tier| per_million(&[(input, tier.dearest_input()), (output, tier.output)]);
            reached.map(cost).max().unwrap_or(Money::MAX)
        })
    }
}

/// The sum of tokens times prices, rounded up once.
fn per_million(parts: &[(u64, Money)]) -> Money {
    let sum = parts
        .iter()
        .try_fold(0_u128, |sum, (tokens, price)| sum.checked_add(u128::from(*tokens) * u128::from(price.nanos())));
    sum.and_then(|sum| u64::try_from(sum.div_ceil(MILLION)).ok()).map_or(Money::MAX, Money::from_nanos)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn dollars(text: &str) -> Money {
        text.parse().unwrap()
    }

    fn tier(above: u64, input: &str, output: &str) -> Tier {
        Tier {
            above,
            input: dollars(input),
            cache_write: dollars(input).scaled_up(5, 4).unwrap(),
            cache_write_long: dollars(input).scaled_up(2, 1).unwrap(),
            cache_read: dollars(input).scaled_up(1, 10).unwrap(),
            output: dollars(output),
        }
    }

    fn price(tiers: Vec<Tier>) -> ModelPrice {
        ModelPrice {
            vendor: "anthropic".to_owned(),
            model: "claude-sonnet-4-6*".to_owned(),
            rate: Rate::Tokens { tiers },
            image: ImageRule::Area { pixels: 750, most: 1600 },
            context: 200_000,
            max_output: 64_000,
            services: Vec::new(),
        }
    }

    fn served(usual: Vec<Tier>, service: Service, tiers: Vec<Tier>) -> ModelPrice {
        ModelPrice { services: vec![ServicePrice { service, tiers }], ..price(usual) }
    }

    #[test]
    fn a_tier_of_service_costs_what_it_says_and_is_bounded_by_the_dearer_of_two() {
        let usage = Usage { input: 1_000_000, output: 1_000_000, ..Usage::default() };
        let flex = served(vec![tier(0, "3", "15")], Service::Flex, vec![tier(0, "1.50", "7.50")]);
        flex.check().unwrap();
        assert_eq!(flex.cost_as(Some(Service::Flex), &usage, Millis(0)), Some(dollars("9")));
        assert_eq!(flex.cost_as(None, &usage, Millis(0)), Some(dollars("18")));
        assert_eq!(flex.cost_as(Some(Service::Priority), &usage, Millis(0)), None, "nobody knows");
        assert!(flex.serves(Service::Flex) && !flex.serves(Service::Batch));
        // It may be served as usual all the same.
        let bound = |price: &ModelPrice, service| price.bound_as(service, 1000, 1000, Millis(0));
        assert_eq!(bound(&flex, Some(Service::Flex)), bound(&flex, None));
        let priority = served(vec![tier(0, "3", "15")], Service::Priority, vec![tier(0, "6", "30")]);
        assert_eq!(bound(&priority, Some(Service::Priority)).nanos(), 2 * bound(&priority, None).nanos());
        assert_eq!(bound(&priority, Some(Service::Flex)), Money::MAX, "what has no price has no bound");
        for (name, service) in
            [("SERVICE_TIER_FLEX", Some(Service::Flex)), ("fast", Some(Service::Priority)), ("auto", None)]
        {
            assert_eq!(Service::named(name), service, "{name}");
        }
        let none = served(vec![tier(0, "3", "15")], Service::Batch, Vec::new());
        assert!(matches!(none.check(), Err(PriceError::NoTier { .. })));
    }

    #[test]
    fn a_price_that_was_frozen_before_there_were_services_looks_the_same() {
        let stored = r#"{"vendor":"v","model":"m","by":"time","hour":1000,"image":{"rule":"fixed","tokens":1},"context":10,"max_output":5}"#;
        let price: ModelPrice = serde_json::from_str(stored).unwrap();
        assert_eq!(serde_json::to_string(&price).unwrap(), stored);
        assert!(price.serves(Service::Priority), "time is time");
    }

    #[test]
    fn a_call_is_priced_by_each_kind_of_token_and_rounded_up_once() {
        let price = price(vec![tier(0, "3", "15")]);
        let usage = Usage { input: 1000, cache_write: 2000, cache_read: 10_000, output: 500, ..Usage::default() };
        // 0.003 + 0.0075 + 0.003 + 0.0075
        assert_eq!(price.cost(&usage, Millis(0)), dollars("0.021"));
        let one = Usage { cache_read: 1, ..Usage::default() };
        assert_eq!(price.cost(&one, Millis(0)), Money::from_nanos(300));
    }

    #[test]
    fn a_long_context_is_priced_whole_by_its_tier() {
        let price = ModelPrice { context: 1_000_000, ..price(vec![tier(0, "3", "15"), tier(200_000, "6", "22.5")]) };
        let at = Usage { input: 200_000, output: 0, ..Usage::default() };
        assert_eq!(price.cost(&at, Millis(0)), dollars("0.6"));
        let above = Usage { input: 200_001, output: 0, ..Usage::default() };
        assert_eq!(price.cost(&above, Millis(0)), dollars("1.200006"));
    }

    #[test]
    fn time_is_priced_by_the_hour_and_bounded_by_its_limit() {
        let price = ModelPrice { rate: Rate::Time { hour: dollars("3.60") }, ..price(Vec::new()) };
        price.check().unwrap();
        assert_eq!(price.cost(&Usage::default(), Millis(1000)), dollars("0.001"));
        assert_eq!(price.bound_as(None, 1, 1, Millis(600_000)), dollars("0.6"));
    }

    #[test]
    fn images_are_bounded_by_the_vendors_formulas() {
        let area = ImageRule::Area { pixels: 750, most: 1600 };
        assert_eq!(area.bound(Some((1024, 768))), 1049);
        assert_eq!(area.bound(Some((1920, 1080))), 1600);
        assert_eq!(area.bound(None), 1600);
        let tiles = ImageRule::Tiles { side: 512, tile: 170, base: 85, most: 1445 };
        assert_eq!(tiles.bound(Some((1024, 1024))), 765);
        assert_eq!(tiles.bound(None), 1445);
    }

    #[test]
    fn a_price_that_bounds_nothing_is_refused() {
        assert!(matches!(price(Vec::new()).check(), Err(PriceError::NoTier { .. })));
        let late = price(vec![tier(5, "1", "1")]);
        assert!(matches!(late.check(), Err(PriceError::Order { above: 5, .. })));
        let twice = price(vec![tier(0, "1", "1"), tier(0, "1", "1")]);
        assert!(matches!(twice.check(), Err(PriceError::Order { above: 0, .. })));
        let endless = ModelPrice { context: 0, ..price(vec![tier(0, "1", "1")]) };
        assert!(matches!(endless.check(), Err(PriceError::NoBound { field: "context", .. })));
    }

    #[test]
    fn a_star_stands_for_dated_versions() {
        let price = price(vec![tier(0, "3", "15")]);
        assert!(price.is_of("anthropic", "claude-sonnet-4-6-20260217"));
        assert!(!price.is_of("anthropic", "claude-sonnet-4-5"));
        assert!(!price.is_of("openai", "claude-sonnet-4-6"));
    }

    proptest! {
        /// Whatever a call uses within its bounds costs no more than its bound.
        #[test]
        fn no_usage_within_the_bounds_costs_more_than_the_bound(
            parts in proptest::array::uniform4(0_u64..150_000),
            output in 0_u64..64_000,
            slack in 0_u64..1000,
        ) {
            let price = ModelPrice { context: 1_000_000, ..price(vec![tier(0, "3", "15"), tier(200_000, "6", "22.5")]) };
            let usage = Usage { input: parts[0], cache_write: parts[1], cache_write_long: parts[2], cache_read: parts[3], output };
            let bound = price.bound_as(None, usage.context() + slack, output + slack, Millis(0));
            prop_assert!(price.cost(&usage, Millis(0)) <= bound);
        }
    }
}

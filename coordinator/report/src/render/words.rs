//! Numbers in words: how rates, amounts and chances are written wherever they are shown.

use longhaul_core::measure::{ClusterBy, Clustered, Rate};
use longhaul_core::money::Money;
use longhaul_core::stats::{Interval, OddsRatio};

/// What stands where there is nothing to say.
pub(super) const NOTHING: &str = "-";

/// A share as percent: `75.0 %`.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Ends of a share in percent: `40.9 to 92.9`.
pub(super) fn ends(interval: Interval) -> String {
    let (low, high) = (format!("{:.1}", interval.low * 100.0), format!("{:.1}", interval.high * 100.0));
    if low == high { low } else { format!("{low} to {high}") }
}

/// A difference of shares in points: `+42.9`.
pub(super) fn points(difference: f64) -> String {
    // No `-0.0`.
    let rounded = (difference * 1000.0).round() / 10.0;
    format!("{:+.1}", if rounded == 0.0 { 0.0 } else { rounded })
}

/// Ends of a difference of shares: `-1.2 to +71.0`.
pub(super) fn point_ends(interval: Interval) -> String {
    let (low, high) = (points(interval.low), points(interval.high));
    if low == high { low } else { format!("{low} to {high}") }
}

/// A plain number with ends: `40.9 to 92.9`.
pub(super) fn plain_ends(interval: Interval) -> String {
    format!("{:.1} to {:.1}", interval.low, interval.high)
}

/// What an interval resampled.
pub(super) fn over(clustered: &Clustered) -> String {
    let what = match (clustered.by, clustered.clusters) {
        (ClusterBy::Env, 1) => "env",
        (ClusterBy::Env, _) => "envs",
        (ClusterBy::Task, 1) => "task",
        (ClusterBy::Task, _) => "tasks",
    };
    format!("over {} {what}", clustered.clusters)
}

/// A p value: never 0, which no test can say.
pub(super) fn chance(p: f64) -> String {
    if p < 0.0001 { "p < 0.0001".to_owned() } else { format!("p = {p:.4}") }
}

/// Dollars: to the cent, and below a dime to four decimals.
pub(super) fn dollars(money: Money) -> String {
    let amount = money.as_dollars();
    if money.is_zero() || amount >= 0.1 { format!("${amount:.2}") } else { format!("${amount:.4}") }
}

/// A count of steps or the like: whole where it is large.
pub(super) fn count(value: f64) -> String {
    if value >= 100.0 || value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

/// Seconds as people say them.
pub(super) fn seconds(value: f64) -> String {
    if value < 120.0 {
        format!("{value:.0} s")
    } else if value < 7200.0 {
        format!("{:.0} min", value / 60.0)
    } else {
        format!("{:.1} h", value / 3600.0)
    }
}

/// Hours of a node.
pub(super) fn hours(value: f64) -> String {
    if value >= 1.0 { format!("{value:.1}") } else { format!("{value:.3}") }
}

/// How much more often, of the pairs with one pass.
pub(super) fn odds(odds: OddsRatio) -> String {
    match odds {
        OddsRatio::Times(times) => format!("{times:.2}"),
        OddsRatio::Infinite => "infinite".to_owned(),
        OddsRatio::Undefined => "undefined".to_owned(),
    }
}

/// A rate as `6 of 8`.
pub(super) fn of(rate: &Rate) -> String {
    format!("{} of {}", rate.hits, rate.of)
}

/// Something that may not be known.
pub(super) fn or_nothing<T>(value: Option<T>, shown: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| NOTHING.to_owned(), shown)
}

/// A count, where there is something to count.
pub(super) fn some(count: u64) -> String {
    if count == 0 { NOTHING.to_owned() } else { count.to_string() }
}

/// `1 task`, `2 tasks`.
pub(super) fn many(count: u64, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_signs_and_digits_enough_and_no_more() {
        assert_eq!((percent(0.75), points(0.4286), points(-0.0001)), ("75.0 %".into(), "+42.9".into(), "+0.0".into()));
        assert_eq!(point_ends(Interval { low: -0.012, high: 0.71 }), "-1.2 to +71.0");
        assert_eq!(point_ends(Interval { low: 0.5, high: 0.5 }), "+50.0");
        assert_eq!((chance(0.0), chance(0.031_25)), ("p < 0.0001".into(), "p = 0.0312".into()));
        let money = |text: &str| dollars(text.parse().unwrap());
        assert_eq!([money("0"), money("12.345"), money("0.0123")], ["$0.00", "$12.35", "$0.0123"]);
        assert_eq!([seconds(59.0), seconds(600.0), seconds(9000.0)], ["59 s", "10 min", "2.5 h"]);
        assert_eq!([count(3.0), count(3.25), count(250.4)], ["3", "3.2", "250"]);
        assert_eq!((many(1, "task"), many(0, "task")), ("1 task".into(), "0 tasks".into()));
    }
}

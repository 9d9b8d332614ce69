//! What had been reached by how much: bands over a budget, as wide as what is not known.

use super::axis::Axis;
use super::scatter::{BOTTOM, HEIGHT, LEFT, RIGHT, TOP, frame};
use super::{colour, dash, disc, figure, number};
use crate::render::markup::Markup;

/// What is known at one budget, in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reach {
    /// The budget.
    pub(crate) at: f64,
    /// What was reached at least.
    pub(crate) low: f64,
    /// What was reached at most.
    pub(crate) high: f64,
}

/// Draws a band for each series by number, in their order, each by rising budget.
pub(crate) fn curves(title: &str, across: &str, down: &str, series: &[Vec<Reach>]) -> Markup {
    let finite = |reach: &&Reach| [reach.at, reach.low, reach.high].iter().all(|value| value.is_finite());
    let x = Axis::over(series.iter().flatten().map(|reach| reach.at), LEFT, RIGHT);
    let y = Axis::percent(BOTTOM, TOP);
    let mut drawn = vec![frame(&x, &y, across, down)];
    for (index, reaches) in series.iter().enumerate() {
        let reaches: Vec<&Reach> = reaches.iter().filter(finite).collect();
        let Some(last) = reaches.last() else { continue };
        let low: Vec<(f64, f64)> = reaches.iter().map(|reach| (x.at(reach.at), y.at(reach.low))).collect();
        let high: Vec<(f64, f64)> = reaches.iter().map(|reach| (x.at(reach.at), y.at(reach.high))).collect();
        let paint = colour(index);
        let around = low.iter().chain(high.iter().rev());
        let band: Vec<String> = around.map(|(x, y)| format!("{},{}", number(*x), number(*y))).collect();
        let line: Vec<String> = low.iter().map(|(x, y)| format!("{},{}", number(*x), number(*y))).collect();
        drawn.push(Markup::void("polygon", &[("points", &band.join(" ")), ("fill", paint), ("opacity", "0.15")]));
        drawn.push(Markup::void(
            "polyline",
            &[("points", &line.join(" ")), ("class", "curve"), ("stroke", paint), ("stroke-dasharray", dash(index))],
        ));
        drawn.push(disc((x.at(last.at), y.at(last.low)), index));
    }
    figure(title, HEIGHT, drawn.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_band_reaches_from_what_is_known_at_least_to_what_may_be() {
        let reach = |at, low, high| Reach { at, low, high };
        let series = [vec![reach(1.0, 10.0, 30.0), reach(2.0, 20.0, 20.0), reach(f64::NAN, 1.0, 1.0)], Vec::new()];
        let drawn = curves("reached", "dollars", "passed %", &series).into_string();
        let y = |share: f64| format!("{:.1}", BOTTOM + share / 100.0 * (TOP - BOTTOM));
        let line = drawn.split("<polyline points=\"").nth(1).unwrap().split('"').next().unwrap();
        assert!(line.contains(&y(10.0)) && line.ends_with(&y(20.0)), "{line}");
        let band = drawn.split("<polygon points=\"").nth(1).unwrap().split('"').next().unwrap();
        assert!(band.contains(&y(30.0)), "{band}");
        assert!(!drawn.contains("NaN") && drawn.matches("<polyline").count() == 1);
    }
}

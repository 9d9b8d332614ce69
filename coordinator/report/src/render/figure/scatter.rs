//! What was reached against what it cost, with the front that nobody beats.

use super::axis::{Axis, short};
use super::{Anchor, WIDTH, disc, figure, label, line, number};
use crate::render::markup::Markup;

/// One point: an agent of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spot {
    /// What it cost.
    pub(crate) x: f64,
    /// What was reached, 0 to 100.
    pub(crate) y: f64,
    /// How far that can be trusted.
    pub(crate) ends: (f64, f64),
    /// Whether no other is both cheaper and better.
    pub(crate) front: bool,
}

pub(super) const LEFT: f64 = 40.0;
pub(super) const RIGHT: f64 = WIDTH - 18.0;
pub(super) const TOP: f64 = 28.0;
pub(super) const BOTTOM: f64 = 284.0;
pub(super) const HEIGHT: f64 = 330.0;

/// Draws points by number, in their order, and the front as a staircase.
pub(crate) fn scatter(title: &str, across: &str, down: &str, spots: &[Spot]) -> Markup {
    let shown = || spots.iter().enumerate().filter(|(_, spot)| spot.x.is_finite() && spot.y.is_finite());
    let x = Axis::over(shown().map(|(_, spot)| spot.x), LEFT, RIGHT);
    let y = Axis::percent(BOTTOM, TOP);
    let mut drawn = vec![frame(&x, &y, across, down)];
    let mut front: Vec<&Spot> = shown().map(|(_, spot)| spot).filter(|spot| spot.front).collect();
    front.sort_by(|a, b| a.x.total_cmp(&b.x));
    if let Some(first) = front.first() {
        let mut path = format!("M {} {}", number(x.at(first.x)), number(BOTTOM));
        for spot in &front {
            path.extend([format!(" H {} V {}", number(x.at(spot.x)), number(y.at(spot.y)))]);
        }
        path.extend([format!(" H {}", number(RIGHT))]);
        drawn.push(Markup::void("path", &[("d", &path), ("class", "front")]));
    }
    for (index, spot) in shown() {
        let at = (x.at(spot.x), y.at(spot.y));
        if spot.ends.0.is_finite() && spot.ends.1.is_finite() {
            drawn.push(line((at.0, y.at(spot.ends.0)), (at.0, y.at(spot.ends.1)), "whisker"));
        }
        drawn.push(disc(at, index));
    }
    figure(title, HEIGHT, drawn.into_iter().collect())
}

/// The axes with their marks and names.
pub(super) fn frame(x: &Axis, y: &Axis, across: &str, down: &str) -> Markup {
    let mut drawn = Vec::new();
    for tick in y.ticks() {
        let at = y.at(tick);
        drawn.push(line((LEFT, at), (RIGHT, at), "grid"));
        drawn.push(label((LEFT - 6.0, at + 4.0), Anchor::End, "tick", &format!("{tick:.0}")));
    }
    for tick in x.ticks() {
        let at = x.at(tick);
        drawn.push(line((at, BOTTOM), (at, BOTTOM + 4.0), "axis"));
        drawn.push(label((at, BOTTOM + 18.0), Anchor::Middle, "tick", &short(tick)));
    }
    drawn.push(line((LEFT, BOTTOM), (RIGHT, BOTTOM), "axis"));
    drawn.push(label((RIGHT, BOTTOM + 38.0), Anchor::End, "said", across));
    drawn.push(label((2.0, 13.0), Anchor::Start, "said", down));
    drawn.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_climbs_over_the_points_that_nobody_beats() {
        let spots = [
            Spot { x: 1.0, y: 20.0, ends: (10.0, 30.0), front: true },
            Spot { x: 2.0, y: 10.0, ends: (5.0, 15.0), front: false },
            Spot { x: 4.0, y: 50.0, ends: (40.0, 60.0), front: true },
            Spot { x: f64::NAN, y: 50.0, ends: (0.0, 0.0), front: true },
        ];
        let drawn = scatter("cost", "dollars", "passed %", &spots).into_string();
        assert_eq!(drawn.matches("<circle").count(), 3);
        let path = drawn.split("d=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!(path.matches('V').count(), 2, "{path}");
        assert!(!drawn.contains("NaN"));
    }
}

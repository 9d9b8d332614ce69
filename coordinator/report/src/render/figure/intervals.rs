//! Intervals side by side: a point with how far it can be trusted, a line for each.

use longhaul_core::text::cut;

use super::axis::Axis;
use super::{Anchor, WIDTH, colour, figure, label, line, number};
use crate::render::markup::Markup;

/// One interval, in percent or points.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bar {
    /// Whose it is.
    pub(crate) name: String,
    /// Its point.
    pub(crate) point: f64,
    /// Its ends.
    pub(crate) ends: (f64, f64),
    /// The point and the ends in words.
    pub(crate) said: String,
}

const ROW: f64 = 40.0;
const LEFT: f64 = 10.0;
const RIGHT: f64 = WIDTH - 14.0;
const FOOT: f64 = 24.0;

/// The most letters of a name beside what is said of it.
const NAME: usize = 34;

/// Draws intervals over an axis from 0 to 100.
pub(crate) fn intervals(title: &str, bars: &[Bar]) -> Markup {
    let axis = Axis::percent(LEFT, RIGHT);
    let rows = bars.len() as f64;
    let bottom = rows * ROW + 4.0;
    let mut drawn: Vec<Markup> = Vec::new();
    for tick in axis.ticks() {
        let x = axis.at(tick);
        drawn.push(line((x, 2.0), (x, bottom), "grid"));
        drawn.push(label((x, bottom + 15.0), Anchor::Middle, "tick", &format!("{tick:.0}")));
    }
    for (index, bar) in bars.iter().enumerate() {
        let top = index as f64 * ROW;
        let y = top + 29.0;
        drawn.push(label((LEFT, top + 15.0), Anchor::Start, "name", &cut(&bar.name, NAME)));
        drawn.push(label((RIGHT, top + 15.0), Anchor::End, "said", &bar.said));
        if [bar.point, bar.ends.0, bar.ends.1].iter().all(|value| value.is_finite()) {
            drawn.push(interval(&axis, bar, y, index));
        }
    }
    figure(title, bottom + FOOT, drawn.into_iter().collect())
}

fn interval(axis: &Axis, bar: &Bar, y: f64, index: usize) -> Markup {
    let (low, high) = (axis.at(bar.ends.0), axis.at(bar.ends.1));
    let (x, top, width) = (number(low), number(y - 3.0), number((high - low).max(1.0)));
    let paint = colour(index);
    let (cx, cy) = (number(axis.at(bar.point)), number(y));
    [
        Markup::void(
            "rect",
            &[("x", &x), ("y", &top), ("width", &width), ("height", "6"), ("fill", paint), ("opacity", "0.35")],
        ),
        Markup::void("circle", &[("cx", &cx), ("cy", &cy), ("r", "5"), ("fill", paint)]),
    ]
    .into_iter()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(point: f64) -> Bar {
        Bar { name: "<b>agent</b>".to_owned(), point, ends: (20.0, 60.0), said: "40 %".to_owned() }
    }

    #[test]
    fn a_point_lies_between_its_ends() {
        let drawn = intervals("rates", &[bar(40.0)]).into_string();
        let width = RIGHT - LEFT;
        assert!(drawn.contains(&format!("cx=\"{:.1}\"", LEFT + 0.4 * width)), "{drawn}");
        assert!(drawn.contains(&format!("x=\"{:.1}\" y=\"26.0\" width=\"{:.1}\"", LEFT + 0.2 * width, 0.4 * width)));
        assert!(drawn.contains("&lt;b&gt;agent&lt;/b&gt;") && !drawn.contains("<b>"));
    }

    #[test]
    fn what_is_no_number_has_a_name_and_no_mark() {
        let drawn = intervals("rates", &[bar(f64::NAN)]).into_string();
        assert!(drawn.contains("agent") && !drawn.contains("circle") && !drawn.contains("NaN"), "{drawn}");
    }
}

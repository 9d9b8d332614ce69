//! Figures as SVG inside the page: small functions from numbers to markup.
//!
//! Colour is never the only sign: series have numbers, too, and lines have dashes of their own.
//! What is no finite number is not drawn.

mod axis;
mod curves;
mod intervals;
mod scatter;

pub(crate) use curves::{Reach, curves};
pub(crate) use intervals::{Bar, intervals};
pub(crate) use scatter::{Spot, scatter};

use super::markup::Markup;

/// Units across of every figure; text of 13 of them stays readable on a phone.
pub(super) const WIDTH: f64 = 480.0;

/// Colours that people who see few colours tell apart, dark enough for thin lines on white.
const COLOURS: [&str; 6] = ["#0072b2", "#c04d00", "#00775a", "#9a4d80", "#7a5c00", "#444444"];

/// Dashes, so that lines are told apart without colours.
const DASHES: [&str; 6] = ["none", "7 3", "2 3", "9 3 2 3", "12 4", "4 4"];

/// The colour of a series, by its number from 0.
pub(crate) fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

fn dash(index: usize) -> &'static str {
    DASHES[index % DASHES.len()]
}

/// A figure: what it shows in words, its height, and what is drawn.
fn figure(title: &str, height: f64, drawn: Markup) -> Markup {
    let view = format!("0 0 {WIDTH} {height}");
    Markup::tag(
        "svg",
        &[("viewBox", view.as_str()), ("role", "img"), ("aria-label", title), ("class", "figure")],
        [Markup::with_text("title", &[], title), drawn],
    )
}

fn number(value: f64) -> String {
    format!("{value:.1}")
}

fn line((x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) -> Markup {
    let (x1, y1, x2, y2) = (number(x1), number(y1), number(x2), number(y2));
    Markup::void("line", &[("x1", &x1), ("y1", &y1), ("x2", &x2), ("y2", &y2), ("class", class)])
}

/// Where a text begins at its place.
#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

fn label((x, y): (f64, f64), anchor: Anchor, class: &str, text: &str) -> Markup {
    let anchor = match anchor {
        Anchor::Start => "start",
        Anchor::Middle => "middle",
        Anchor::End => "end",
    };
    let (x, y) = (number(x), number(y));
    Markup::with_text("text", &[("x", &x), ("y", &y), ("text-anchor", anchor), ("class", class)], text)
}

/// The number of a series on a disc of its colour.
fn disc((x, y): (f64, f64), index: usize) -> Markup {
    let (cx, cy, below) = (number(x), number(y), y + 4.0);
    [
        Markup::void("circle", &[("cx", &cx), ("cy", &cy), ("r", "8.5"), ("fill", colour(index))]),
        label((x, below), Anchor::Middle, "on-disc", &(index + 1).to_string()),
    ]
    .into_iter()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_title_stays_text() {
        let drawn = figure("<script>\u{202e}", 10.0, Markup::text("")).into_string();
        assert!(!drawn.contains("<script>") && drawn.contains("&lt;script&gt;\\u{202e}"), "{drawn}");
    }

    #[test]
    fn series_differ_in_colour_and_dash_as_long_as_there_are_any() {
        let looks: std::collections::BTreeSet<_> = (0..6).map(|index| (colour(index), dash(index))).collect();
        assert_eq!(looks.len(), 6);
        assert_eq!(colour(6), colour(0));
    }
}

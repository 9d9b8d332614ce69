//! Findings as one page: nothing is fetched, nothing runs, and all that was read is escaped.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use longhaul_core::digest::Digest;
use longhaul_core::measure::{At, Curve, Group};
use longhaul_core::money::Money;
use longhaul_core::text::cut;

use super::figure::{Bar, Reach, Spot, colour, curves, intervals, scatter};
use super::markup::Markup;
use super::sheet::{Facts, Sheet};
use super::tables::{self, Cell};
use super::words::{NOTHING, dollars, ends, many, percent, plain_ends};
use crate::findings::Findings;
use crate::measured::Measured;
use crate::picture::thumbnail;
use crate::side::{Side, chosen_failures};

/// Where a last screen is fitted into.
const SCREEN: (usize, usize) = (480, 300);

/// The most bytes of all screens of a page together: it is to be sent by mail.
const MOST_SCREENS: usize = 6 << 20;

/// The most letters of what a verifier says of a failure.
const MOST_WHY: usize = 1500;

/// The most envs of the table of envs.
const MOST_ENVS: usize = 400;

/// What a page may do: show itself.
const POLICY: &str = "default-src 'none'; img-src data:; style-src 'unsafe-inline'";

/// Findings as a page, with at most so many failures; `screens` holds their last screens, as far
/// as they could be read.
#[must_use]
pub fn html(found: &Findings, sides: &[Side], failures: usize, screens: &BTreeMap<Digest, Vec<u8>>) -> String {
    let title = title(found);
    let head = Markup::tag(
        "head",
        &[],
        [
            Markup::void("meta", &[("charset", "utf-8")]),
            Markup::void("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]),
            Markup::void("meta", &[("http-equiv", "Content-Security-Policy"), ("content", POLICY)]),
            Markup::with_text("title", &[], &title),
            Markup::tag("style", &[], [Markup::constant(include_str!("style.css"))]),
        ],
    );
    let mut body = vec![Markup::with_text("h1", &[], &title), dim(&tables::made(found))];
    body.extend(overview(found));
    body.extend(costs(found));
    body.extend(pairs(found));
    body.extend(groups(found));
    body.extend(notes("Left out and odd", tables::notes(found)));
    body.extend(failed(sides, failures, screens));
    let page = Markup::tag("html", &[("lang", "en")], [head, Markup::tag("body", &[], body)]);
    format!("<!DOCTYPE html>\n{}\n", page.into_string())
}

fn title(found: &Findings) -> String {
    let mut names: Vec<&str> = Vec::new();
    for side in &found.sides {
        if !names.contains(&side.run_name.as_str()) {
            names.push(&side.run_name);
        }
    }
    cut(&names.join(", "), 120)
}

fn dim(text: &str) -> Markup {
    Markup::with_text("p", &[("class", "dim")], text)
}

fn heading(text: &str) -> Markup {
    Markup::with_text("h2", &[], text)
}

/// The number of a side on its colour: how figures call it.
fn key(index: usize) -> Markup {
    let style = format!("background:{}", colour(index));
    Markup::with_text("span", &[("class", "key"), ("style", &style)], &(index + 1).to_string())
}

/// A table with a row for each side, under its number.
fn by_side(sheet: &Sheet) -> Markup {
    sheet.html(|number, name| [key(number), Markup::text(" "), Markup::text(name)].into_iter().collect())
}

fn figure(drawn: Markup, caption: &str) -> Markup {
    Markup::tag("figure", &[], [drawn, Markup::with_text("figcaption", &[], caption)])
}

/// The first that is seen: who reached what.
fn overview(found: &Findings) -> Vec<Markup> {
    let rates: Vec<Bar> = found
        .sides
        .iter()
        .filter_map(|side| {
            let rate = side.measures.pass_rate?;
            let interval = rate.wilson?;
            Some(Bar {
                name: side.label.clone(),
                point: rate.value * 100.0,
                ends: (interval.low * 100.0, interval.high * 100.0),
                said: format!("{} ({})", percent(rate.value), ends(interval)),
            })
        })
        .collect();
    let scores: Vec<Bar> = found
        .sides
        .iter()
        .filter_map(|side| {
            let score = side.measures.score?;
            let interval = score.clustered?.interval;
            Some(Bar {
                name: side.label.clone(),
                point: score.value,
                ends: (interval.low, interval.high),
                said: format!("{:.1} ({})", score.value, plain_ends(interval)),
            })
        })
        .collect();
    let mut out = vec![heading("Reached"), by_side(&tables::sides(found))];
    out.extend(notes("Not the same on both sides", tables::differing(found)));
    if !rates.is_empty() {
        out.push(figure(intervals("Pass rates, percent", &rates), "Pass rates in percent, with Wilson's intervals."));
    }
    if !scores.is_empty() {
        out.push(figure(intervals("Mean scores", &scores), "Mean scores of 100, with resampled intervals."));
    }
    out.push(by_side(&tables::reached(found)));
    let judges = tables::judges(found);
    if !judges.rows.is_empty() {
        out.push(Markup::with_text("h3", &[], "Judges"));
        out.push(judges.html(|_, name| Markup::text(name)));
    }
    for side in &found.sides {
        let rounds = tables::rounds(side);
        if !rounds.is_empty() {
            out.push(Markup::with_text("h3", &[], &format!("{}: rounds", side.label)));
            out.push(facts(&rounds));
        }
    }
    out
}

/// What it took, and what was reached for how much.
fn costs(found: &Findings) -> Vec<Markup> {
    let mut out = vec![heading("Used"), by_side(&tables::took(found)), by_side(&tables::ended(found))];
    let agents = &found.comparisons.agents;
    let common = many(found.comparisons.common_tasks, "task");
    let spots: Vec<Spot> = agents
        .iter()
        .map(|agent| {
            let rate = agent.pass_rate;
            let wilson = rate.and_then(|rate| rate.wilson);
            Spot {
                x: agent.dollars.map_or(f64::NAN, Money::as_dollars),
                y: rate.map_or(f64::NAN, |rate| rate.value * 100.0),
                ends: wilson.map_or((f64::NAN, f64::NAN), |ends| (ends.low * 100.0, ends.high * 100.0)),
                front: agent.best_rate_for_money == Some(true),
            }
        })
        .collect();
    if spots.iter().any(|spot| spot.x.is_finite() && spot.x > 0.0 && spot.y.is_finite()) {
        let caption = format!(
            "Pass rate against dollars an episode, over the {common} on which every agent has a verdict. Nobody \
             passes more for less than those on the dashed line. Numbers are those of the tables."
        );
        let drawn = scatter("Pass rate against dollars an episode", "dollars an episode", "passed %", &spots);
        out.push(figure(drawn, &caption));
    }
    let dollars: Vec<&Curve> = agents.iter().map(|agent| &agent.by_dollars).collect();
    let steps: Vec<&Curve> = agents.iter().map(|agent| &agent.by_steps).collect();
    for (curve, title, across) in [
        (dollars, "Passed within so many dollars an episode", "dollars an episode"),
        (steps, "Passed within so many steps an episode", "steps an episode"),
    ] {
        let series: Vec<Vec<Reach>> = curve.iter().map(|curve| reaches(curve)).collect();
        if series.iter().any(|reaches| reaches.iter().any(|reach| reach.at > 0.0)) {
            let caption = format!(
                "{title}, over the same {common}: at least the line, at most the upper end of the band. The band is \
                 what the record does not say of episodes that went on beyond that point."
            );
            out.push(figure(curves(title, across, "passed %", &series), &caption));
        }
    }
    out
}

fn reaches(curve: &Curve) -> Vec<Reach> {
    curve
        .iter()
        .map(|point| Reach {
            at: match point.at {
                At::Dollars(money) => money.as_dollars(),
                At::Steps(steps) => f64::from(steps),
            },
            low: point.low * 100.0,
            high: point.high * 100.0,
        })
        .collect()
}

fn facts(facts: &Facts) -> Markup {
    let rows = facts.iter().map(|(name, said)| {
        Markup::tag(
            "tr",
            &[],
            [Markup::with_text("th", &[("scope", "row")], name.trim()), Markup::with_text("td", &[], said)],
        )
    });
    Markup::tag("div", &[("class", "wide")], [Markup::tag("table", &[], [Markup::tag("tbody", &[], rows)])])
}

/// Each pair, and what all solve together.
fn pairs(found: &Findings) -> Vec<Markup> {
    let mut out = Vec::new();
    if !found.comparisons.pairs.is_empty() {
        out.push(heading("Compared"));
    }
    for pair in &found.comparisons.pairs {
        out.push(Markup::with_text("h3", &[], &format!("{} against {}", pair.a, pair.b)));
        out.push(facts(&tables::pair(pair, found.options.margin)));
    }
    let together = tables::coverage(found);
    if !together.is_empty() {
        out.push(Markup::with_text("h3", &[], "Together"));
        out.push(facts(&together));
    }
    out
}

/// Rates by env, split, difficulty and family.
fn groups(found: &Findings) -> Vec<Markup> {
    let mut out = Vec::new();
    for (title, groups) in [
        ("By split", &found.splits),
        ("By difficulty", &found.difficulties),
        ("By family", &found.families),
        ("By env", &found.envs),
    ] {
        out.extend(heat(found, title, groups));
    }
    out
}

/// A table whose cells are the darker the more passed; the numbers are in them, too.
fn heat(found: &Findings, title: &str, groups: &[Group]) -> Vec<Markup> {
    let rows = tables::grouped(found, groups);
    if rows.is_empty() {
        return Vec::new();
    }
    let cell = |cell: &Option<Cell>| match cell {
        Some(cell) => {
            let (paint, ink) = shade(cell.share);
            let style = format!("background:{paint};color:{ink}");
            Markup::with_text("td", &[("class", "heat"), ("style", &style)], &cell.text())
        }
        None => Markup::with_text("td", &[("class", "heat")], NOTHING),
    };
    let head = found.sides.iter().enumerate().map(|(index, side)| {
        Markup::tag("th", &[("class", "n"), ("scope", "col"), ("title", &side.label)], [key(index)])
    });
    let head = std::iter::once(Markup::with_text("th", &[("scope", "col")], "")).chain(head);
    let lines = rows.iter().take(MOST_ENVS).map(|(name, cells)| {
        let first = Markup::with_text("td", &[("class", "name")], name);
        Markup::tag("tr", &[], std::iter::once(first).chain(cells.iter().map(cell)))
    });
    let head = Markup::tag("thead", &[], [Markup::tag("tr", &[], head)]);
    let table = Markup::tag("table", &[], [head, Markup::tag("tbody", &[], lines)]);
    let mut out = vec![heading(title), Markup::tag("div", &[("class", "wide")], [table])];
    if rows.len() > MOST_ENVS {
        out.push(dim(&format!("{} more are left out.", rows.len() - MOST_ENVS)));
    }
    out
}

/// A colour for a share, and one to write on it: from white to a dark blue.
fn shade(share: f64) -> (String, &'static str) {
    let share = share.clamp(0.0, 1.0);
    let mix = |from: f64, to: f64| (from + (to - from) * share).round();
    let paint = format!("rgb({},{},{})", mix(255.0, 0.0), mix(255.0, 84.0), mix(255.0, 138.0));
    (paint, if share > 0.55 { "#fff" } else { "#1b1b1b" })
}

fn notes(title: &str, notes: Vec<String>) -> Vec<Markup> {
    if notes.is_empty() {
        return Vec::new();
    }
    let items = notes.iter().map(|note| Markup::with_text("li", &[], note));
    vec![Markup::with_text("h3", &[], title), Markup::tag("ul", &[("class", "warn")], items)]
}

/// Failures with their last screens, as far as there is room for them.
fn failed(sides: &[Side], most: usize, screens: &BTreeMap<Digest, Vec<u8>>) -> Vec<Markup> {
    let chosen = chosen_failures(sides, most);
    let all: usize =
        sides.iter().flat_map(|side| &side.episodes).filter(|episode| episode.row.passed() == Some(false)).count();
    if chosen.is_empty() {
        return Vec::new();
    }
    let mut room = MOST_SCREENS;
    let cards = chosen.iter().map(|(side, episode)| {
        let index = sides.iter().position(|one| one.label == side.label).unwrap_or_default();
        card(index, side, episode, episode.last_screen.and_then(|digest| screens.get(&digest)), &mut room)
    });
    let cards = Markup::tag("div", &[("class", "failures")], cards.collect::<Vec<_>>());
    let said = format!("{} of {all} failures, of each agent in turn, the lowest scores first.", chosen.len());
    vec![heading("Failures"), dim(&said), cards]
}

fn card(index: usize, side: &Side, episode: &Measured, screen: Option<&Vec<u8>>, room: &mut usize) -> Markup {
    let row = &episode.row;
    let small = screen.and_then(|png| thumbnail(png, SCREEN.0, SCREEN.1).ok()?.png().ok());
    let picture = match small {
        Some(png) if png.len() <= *room => {
            *room -= png.len();
            let address = format!("data:image/png;base64,{}", BASE64_STANDARD.encode(&png));
            let what = format!("The last screen of {}", row.task);
            Markup::void("img", &[("src", &address), ("alt", &what), ("loading", "lazy")])
        }
        Some(_) => dim("There is no room for its last screen."),
        None => dim("Its last screen is not there."),
    };
    let score = row.score().map(|score| format!("score {score:.0}, ")).unwrap_or_default();
    let ended = row.state.ended_by().map(|by| format!("ended by {by}, ")).unwrap_or_default();
    let cost = row.dollars.filter(|money| !money.is_zero());
    let cost = cost.map(|money| format!(", {}", dollars(money))).unwrap_or_default();
    let said = format!("{score}{ended}{}{cost}", many(u64::from(row.steps), "step"));
    Markup::tag(
        "div",
        &[("class", "failure")],
        [
            Markup::tag(
                "p",
                &[],
                [
                    key(index),
                    Markup::text(" "),
                    Markup::with_text("b", &[], &row.task.to_string()),
                    Markup::text(&format!(" {}", side.label)),
                ],
            ),
            picture,
            dim(&said),
            Markup::with_text("code", &[], &format!("longhaul show {}", row.episode)),
            Markup::with_text("pre", &[], &cut(episode.why.trim(), MOST_WHY)),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shades_can_be_read_on() {
        assert_eq!(shade(0.0), ("rgb(255,255,255)".to_owned(), "#1b1b1b"));
        assert_eq!(shade(2.0), ("rgb(0,84,138)".to_owned(), "#fff"));
    }
}

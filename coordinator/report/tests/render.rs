//! Findings of fixed episodes in every form.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_core::digest::Digest;
use longhaul_core::ids::{EpisodeId, RunId, TaskName};
use longhaul_core::measure::{Aspect, AssertionRow, Options, Progress, RoundKind, RoundRow, Row, State};
use longhaul_core::money::Money;
use longhaul_core::outcome::{EndedBy, FaultClass};
use longhaul_core::time::{Millis, Timestamp};
use longhaul_report::{Findings, Measured, Provenance, RunView, Side, Thumbnail, findings, render};

const HOSTILE: &str = "<script>alert('1')</script>\u{202e}\u{1b}[2J|`&\"";

fn options() -> Options {
    Options { resamples: 500, ..Options::default() }
}

fn run(random: u32) -> RunView {
    RunView {
        id: RunId::new(Timestamp(1_700_000_000_000), random),
        name: "night".to_owned(),
        benchmark: "examples".to_owned(),
        submitted_at: Timestamp(1_700_000_000_000),
        settled_at: None,
        pictures_dropped_at: None,
    }
}

/// An agent's episodes, one for each task: `p` passed, `f` failed, `b` cut off by its budget of
/// dollars, `x` faulted.
fn side(label: &str, marks: &str, cents: u64) -> Side {
    let run = run(1);
    let episodes = marks.chars().zip(0..).map(|(mark, index)| episode(&run, label, mark, index, cents)).collect();
    Side { label: label.to_owned(), agent: label.to_owned(), run, episodes, rejudged: None }
}

fn episode(run: &RunView, agent: &str, mark: char, index: u32, cents: u64) -> Measured {
    let id = EpisodeId { run: run.id, index };
    let verdict =
        |passed, ended_by| State::Verdict { passed, score: Some(if passed { 100.0 } else { 30.0 }), ended_by };
    let state = match mark {
        'p' => verdict(true, EndedBy::Agent),
        'f' => verdict(false, EndedBy::Agent),
        'b' => verdict(false, EndedBy::Budget),
        _ => State::Faulted { class: FaultClass::Display },
    };
    let dollars = Money::from_nanos(cents * 10_000_000 * u64::from(index % 3 + 1));
    let env = if index.is_multiple_of(2) { "calc_env" } else { "paint_env" };
    let row = Row {
        run: run.id.to_string(),
        episode: id.to_string(),
        task: TaskName { env: env.to_owned(), task: format!("task-{index}") },
        splits: BTreeSet::from(["test".to_owned()]),
        difficulty: Some("easy".to_owned()),
        family: None,
        agent: agent.to_owned(),
        sample: 0,
        state,
        caps: None,
        steps: 10 + index,
        actions: 12,
        tokens: None,
        dollars: Some(dollars),
        unconfirmed: Money::ZERO,
        judge_dollars: None,
        time: Some(Millis(60_000)),
        node_time: Some(Millis(90_000)),
        stalls: Some(2),
        resumed: false,
        attempts: 1,
        rounds: Vec::new(),
        progress: vec![Progress { step: 10 + index, dollars: Some(dollars), passed: None }],
    };
    Measured {
        id,
        row,
        why: format!("cell {index} {HOSTILE}"),
        last_screen: Some(Digest::of(b"screen")),
        provenance: Provenance { version: Some(agent.len().to_string()), ..Provenance::default() },
        parts: None,
    }
}

fn two() -> Vec<Side> {
    vec![side("careful", "pppppppppppfffbb", 40), side("hasty", "pfppfffpfffbfffx", 10)]
}

fn found(sides: &[Side]) -> Findings {
    findings(sides, &options())
}

#[test]
fn two_agents_as_text() {
    insta::assert_snapshot!(render::text(&found(&two())));
}

#[test]
fn two_agents_as_a_document_and_a_table() {
    insta::assert_snapshot!(render::markdown(&found(&two())));
    insta::assert_snapshot!(render::csv(&found(&two())));
}

#[test]
fn three_agents_are_corrected_for_their_number_and_looked_at_together() {
    let mut sides = two();
    sides.push(side("idle", "ffffffffffffffff", 0));
    let text = render::text(&found(&sides));
    assert!(text.contains("corrected for 3 comparisons") && text.contains("\ntogether\n"), "{text}");
}

/// The example of the paper: the screen confirms a priority, and the stored record has another.
#[test]
fn what_was_shown_and_not_done_is_told_apart() {
    let mut told = side("told", "f", 10);
    let check = |id: &str, aspect, passed| AssertionRow { id: id.to_owned(), aspect, passed };
    told.episodes[0].row.rounds = vec![
        RoundRow {
            number: 1,
            kind: RoundKind::Open,
            error: None,
            last_step: None,
            assertions: vec![check("entries", Aspect::Visible, true)],
        },
        RoundRow {
            number: 2,
            kind: RoundKind::Revise,
            error: None,
            last_step: None,
            assertions: vec![
                check("confirmed", Aspect::Visible, true),
                check("stored", Aspect::Business, false),
                check("kept", Aspect::Retention, true),
            ],
        },
    ];
    insta::assert_snapshot!(render::text(&found(&[told])));
}

#[test]
fn agents_without_a_common_task_are_said_to_have_none() {
    let mut other = side("hasty", "pf", 10);
    for episode in &mut other.episodes {
        episode.row.task.env = "other_env".to_owned();
    }
    let text = render::text(&found(&[side("careful", "pf", 10), other]));
    assert!(text.contains("there is no common task") && text.contains("not enough episodes to tell"), "{text}");
}

#[test]
fn what_is_wrong_with_episodes_is_named() {
    let mut unsettled = side("careful", "pf", 10);
    unsettled.episodes[1].row.state = State::Unsettled;
    let mut fractions = side("hasty", "pf", 10);
    for episode in &mut fractions.episodes {
        episode.row.state = State::Verdict { passed: true, score: Some(1.0), ended_by: EndedBy::Agent };
    }
    let text = render::text(&found(&[unsettled, fractions]));
    assert!(text.contains("not settled yet") && text.contains("look like 0 to 1"), "{text}");
}

/// Reads a page as strictly as XML: every element is closed in its turn, every attribute quoted.
fn elements(page: &str) -> Vec<String> {
    let mut open: Vec<String> = Vec::new();
    let mut seen = Vec::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>\n").expect("a doctype");
    while let Some(start) = rest.find('<') {
        assert!(!rest[..start].contains('>'), "a stray > in {:?}", &rest[..start]);
        // The one style sheet is text of the program's own.
        let end = rest[start..].find('>').expect("a tag ends") + start;
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "closed in its turn");
            continue;
        }
        let (tag, void) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let name = tag.split(' ').next().expect("a name").to_owned();
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "{name}");
        let mut attributes = &tag[name.len()..];
        while let Some(attribute) = attributes.strip_prefix(' ') {
            let (key, value) = attribute.split_once("=\"").expect("an attribute has a value");
            assert!(key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "{key}");
            attributes = value.split_once('"').expect("a value ends").1;
        }
        assert_eq!(attributes, "", "{name}");
        if name == "style" {
            let end = rest.find("</style>").expect("a style ends");
            rest = &rest[end..];
        }
        seen.push(name.clone());
        if !void {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
    seen
}

#[test]
fn a_page_is_well_formed_whatever_anything_is_called_and_fetches_nothing() {
    let mut sides = two();
    for (number, side) in sides.iter_mut().enumerate() {
        side.label = format!("{HOSTILE}{number}");
        side.agent.clone_from(&side.label);
        side.run.name = HOSTILE.to_owned();
        for episode in &mut side.episodes {
            episode.row.agent.clone_from(&side.label);
            episode.row.task = TaskName { env: HOSTILE.to_owned(), task: format!("{HOSTILE}{}", episode.id.index) };
            episode.row.splits = BTreeSet::from([HOSTILE.to_owned()]);
            episode.row.difficulty = Some(HOSTILE.to_owned());
        }
    }
    let rgb = [10, 120, 200].repeat(1920 * 1080);
    let screen = Thumbnail { width: 1920, height: 1080, rgb, plain: true }.png().expect("a PNG");
    let screens = BTreeMap::from([(Digest::of(b"screen"), screen)]);
    let page = render::html(&found(&sides), &sides, 6, &screens);
    let elements = elements(&page);
    let count = |name: &str| elements.iter().filter(|element| *element == name).count();
    assert_eq!((count("script"), count("link"), count("iframe"), count("a")), (0, 0, 0, 0));
    assert_eq!(count("img"), 6);
    assert!(count("svg") >= 4, "{}", count("svg"));
    assert_eq!(page.matches(" src=\"").count(), page.matches(" src=\"data:image/png;base64,").count());
    for foreign in ["http:", "https:", "\u{202e}", "\u{1b}", "@import", "url("] {
        assert!(!page.contains(foreign), "{foreign}");
    }
}

#[test]
fn a_page_shows_no_more_failures_than_asked_for_of_each_agent_in_turn() {
    let sides = two();
    let page = render::html(&found(&sides), &sides, 4, &BTreeMap::new());
    assert_eq!(page.matches("class=\"failure\"").count(), 4);
    assert_eq!(page.matches("Its last screen is not there.").count(), 4);
    assert!(page.contains("4 of 16 failures"));
    let none = render::html(&found(&sides), &sides, 0, &BTreeMap::new());
    assert!(!none.contains("<h2>Failures"));
}

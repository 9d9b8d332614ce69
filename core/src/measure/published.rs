//! The published table of LiveUIBench, made again by counting: 17 agents, 500 tasks of three families,
//! 10,590 assertions.

use super::testing::{round, with_rounds};
use super::{Aspect, By, Options, RoundKind, Row, Side, Workflow, compare, coverage, coverage_by, workflow};

/// Tasks of one app, of several tools, of a shared world.
const FAMILIES: [(&str, usize); 3] = [("single_app", 302), ("multi_tool", 130), ("shared_world", 68)];

/// The tasks that have 22 assertions; all others have 21: together 10,590.
const LONGER: usize = 90;

/// An agent as it is published: tasks whose open rounds hold, FWR by family and overall, APR; and how many of
/// the tasks that it solves its nearest rival does not, by family, which the table does not say.
type Line = (&'static str, usize, [f64; 3], f64, f64, [usize; 3]);

const TABLE: [Line; 15] = [
    ("Nova Premier", 152, [2.98, 1.54, 0.00], 2.20, 22.74, [0; 3]),
    ("DeepSeek V4 Pro", 317, [9.93, 5.38, 0.00], 7.40, 44.00, [6, 3, 0]),
    ("Gemini 3.8 Flash", 463, [17.55, 3.08, 7.35], 12.40, 65.07, [16, 1, 1]),
    ("Llama 4 Maverick", 27, [0.33, 0.00, 0.00], 0.20, 4.19, [0; 3]),
    ("MiniMax M3", 33, [0.66, 0.00, 0.00], 0.40, 4.62, [0; 3]),
    ("Mistral Medium 3.5", 105, [1.32, 0.77, 0.00], 1.00, 14.83, [0; 3]),
    ("Kimi K3", 395, [20.53, 4.62, 5.88], 14.40, 61.11, [17, 2, 1]),
    ("Nemotron 3 Ultra", 175, [8.61, 1.54, 0.00], 5.60, 24.74, [0; 3]),
    ("GPT-5.6-sol", 483, [16.23, 3.85, 4.41], 11.40, 71.09, [0; 3]),
    ("GPT-5.6-luna", 331, [11.59, 3.85, 2.94], 8.40, 48.59, [0; 3]),
    ("Hunyuan 3", 175, [6.62, 2.31, 0.00], 4.60, 26.33, [0; 3]),
    ("Hunyuan 4 Preview", 108, [3.97, 0.77, 0.00], 2.60, 17.53, [0; 3]),
    ("Grok 4.6", 491, [28.48, 3.85, 10.29], 19.60, 76.61, [0; 3]),
    ("Grok 4.5", 496, [22.19, 3.08, 7.35], 15.20, 73.42, [14, 1, 1]),
    ("GLM-5.2", 329, [13.25, 4.62, 2.94], 9.60, 50.04, [0; 3]),
];

/// The counts of the one that solves most, by family: what another one has beyond them is its own.
const MOST: [usize; 3] = [86, 5, 7];

/// How many a share in percent is of so many.
fn count(percent: f64, of: usize) -> usize {
    (percent * of as f64 / 100.0).round() as usize
}

/// A share in percent, as it is printed.
fn printed(hits: u64, of: u64) -> String {
    format!("{:.2}", 100.0 * hits as f64 / of as f64)
}

/// The episodes of an agent: its solved tasks, then opens that hold, then single assertions, each as many as
/// are published. `alone` moves on by what it has beyond the one that solves most.
fn episodes(line: &Line, alone: &mut [usize; 3]) -> Vec<Row> {
    let (agent, open, rates, _, apr, beyond) = line;
    let mut solved = Vec::new();
    for (family, (_, tasks)) in FAMILIES.iter().enumerate() {
        let passes = count(rates[family], *tasks);
        let first = MOST[family] + alone[family];
        alone[family] += beyond[family];
        let is_solved = |task| task < passes - beyond[family] || (first..first + beyond[family]).contains(&task);
        solved.extend((0..*tasks).map(is_solved));
    }
    let size = |index: usize| if index < LONGER { 22 } else { 21 };
    let mut open = open - solved.iter().filter(|solved| **solved).count();
    let passed: usize = (0..solved.len()).filter(|index| solved[*index]).map(size).sum();
    // Opens that hold are one each; all else is spread over the tasks that fail, and never all of one.
    let mut left = count(*apr, 10_590) - passed - open;
    let named = FAMILIES.iter().flat_map(|(family, tasks)| (0..*tasks).map(move |task| (*family, task)));
    let mut rows = Vec::new();
    for (index, (family, task)) in named.enumerate() {
        let (size, solved) = (size(index), solved[index]);
        let opens = solved || open > 0;
        open -= usize::from(opens && !solved);
        let held = if solved { size - 1 } else { left.min(size - 2) };
        left -= if solved { 0 } else { held };
        let business: Vec<_> = (0..size - 1).map(|number| (Aspect::Business, number < held)).collect();
        let rounds = vec![round(RoundKind::Open, &[(Aspect::Visible, opens)]), round(RoundKind::Submit, &business)];
        let row = with_rounds(agent, &format!("{family}/{task}"), rounds);
        rows.push(Row { family: Some(family.to_owned()), ..row });
    }
    assert_eq!((open, left), (0, 0), "{agent}");
    rows
}

fn all() -> Vec<Vec<Row>> {
    let mut alone = [0; 3];
    let mut agents: Vec<Vec<Row>> = TABLE.iter().map(|line| episodes(line, &mut alone)).collect();
    // Two more finished no task.
    for name in ["another", "one more"] {
        agents.push(episodes(&(name, 0, [0.0; 3], 0.0, 0.0, [0; 3]), &mut [0; 3]));
    }
    agents
}

fn measured<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Workflow {
    let options = Options { resamples: 0, ..Options::default() };
    workflow(&rows.into_iter().collect::<Vec<_>>(), &options).unwrap()
}

#[test]
fn every_line_of_the_published_table_comes_out_of_its_counts() {
    let agents = all();
    for ((name, open, rates, overall, apr, _), rows) in TABLE.iter().zip(&agents) {
        for ((family, tasks), rate) in FAMILIES.iter().zip(rates) {
            let found = measured(rows.iter().filter(|row| row.task.env == *family));
            assert_eq!((found.full.of, printed(found.full.hits, found.full.of)), (*tasks as u64, format!("{rate:.2}")));
        }
        let found = measured(rows);
        assert_eq!(printed(found.full.hits, 500), format!("{overall:.2}"), "{name}");
        let assertions = found.assertions.unwrap();
        assert_eq!((assertions.of, printed(assertions.hits, assertions.of)), (10_590, format!("{apr:.2}")), "{name}");
        assert_eq!(found.open.unwrap().hits, *open as u64, "{name}");
        // A task that fails fails where it is opened, or in what follows.
        assert_eq!(found.stages.get(&RoundKind::Open).copied().unwrap_or_default(), 500 - *open as u64, "{name}");
    }
    let found = measured(agents.iter().flatten());
    assert_eq!((found.full.hits, found.full.of), (575, 17 * 500));
    assert_eq!(found.stages.values().sum::<u64>(), 7_925);
    assert_eq!(found.classes.values().sum::<u64>(), 7_925);
}

#[test]
fn one_published_agent_holds_more_assertions_and_fewer_workflows_than_another() {
    let agents = all();
    let side = |name: &'static str| {
        let index = TABLE.iter().position(|line| line.0 == name).unwrap();
        Side { name, rows: &agents[index] }
    };
    let options = Options { resamples: 20, ..Options::default() };
    let found = compare(&side("Gemini 3.8 Flash"), &side("Kimi K3"), &options).workflow.unwrap();
    assert!(found.order_differs);
    assert!(found.a.full.value < found.b.full.value);
    assert!(found.a.assertions.unwrap().value > found.b.assertions.unwrap().value);
}

#[test]
fn what_all_published_agents_solve_together_is_counted_by_family() {
    let agents = all();
    let rows: Vec<&Row> = agents.iter().flatten().collect();
    let found = coverage(&rows);
    assert_eq!((found.tasks, found.agents[0].solved, found.union, found.nobody.len()), (500, 98, 161, 339));
    let pair = found.best_pair.unwrap();
    assert_eq!((pair.solved, pair.agents), (118, ["Grok 4.6".to_owned(), "Kimi K3".to_owned()]));
    let by_family = coverage_by(&rows, By::Family);
    let counts: Vec<_> = by_family.iter().map(|group| (group.name.as_deref(), group.union, group.tasks)).collect();
    let expected = [(Some("multi_tool"), 12, 130), (Some("shared_world"), 10, 68), (Some("single_app"), 139, 302)];
    assert_eq!(counts, expected);
    assert_eq!(by_family.iter().map(|group| group.nobody).sum::<u64>(), 339);
    assert_eq!(by_family[2].best, 86);
}

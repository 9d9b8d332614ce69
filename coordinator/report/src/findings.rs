//! What is found of several sides: each measured by itself, each pair compared, and in what their
//! tasks, envs and settings differ.

use std::collections::BTreeMap;

use longhaul_core::ids::RunId;
use longhaul_core::measure::{
    By, Comparisons, Finding, Group, GroupCoverage, Measures, Options, Row, Side as Compared, State, clean,
    compare_all, coverage_by, group, measure,
};
use longhaul_core::time::Timestamp;
use serde::Serialize;

use crate::judges::Judges;
use crate::side::{Difference, Side, differences};

/// One side, measured by itself: over all of its episodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SideFound {
    /// What tables call it.
    pub label: String,
    /// The agent's name in its run.
    pub agent: String,
    /// The run.
    pub run: RunId,
    /// The run's name; hostile until escaped.
    pub run_name: String,
    /// When the run was submitted.
    pub submitted_at: Timestamp,
    /// How many episodes it has.
    pub episodes: u64,
    /// What is measured of it.
    pub measures: Measures,
    /// Its faulted episodes by the class of the fault.
    pub faults: BTreeMap<String, u64>,
    /// How far those who judged it agree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judges: Option<Judges>,
    /// Whose verdicts these are, if not those that the run was settled with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejudged: Option<String>,
}

/// A side that was imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Imported {
    /// The side.
    pub side: String,
    /// Where its results were; hostile until escaped.
    pub folder: String,
    /// How many of its episodes were imported.
    pub episodes: u64,
}

/// What is found of several sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Findings {
    /// How intervals and tests were made.
    pub options: Options,
    /// The sides, as they were given.
    pub sides: Vec<SideFound>,
    /// The sides compared: over the tasks that they have in common.
    pub comparisons: Comparisons,
    /// Sides whose tasks, envs and settings nobody knows, since they were imported.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub imported: Vec<Imported>,
    /// In what the common tasks of two sides differ beside the agents.
    pub differences: Vec<Difference>,
    /// What is wrong with the episodes, or left out of measures.
    pub findings: Vec<Finding>,
    /// By env and side; without intervals.
    pub envs: Vec<Group>,
    /// By split and side, where the benchmark has splits.
    pub splits: Vec<Group>,
    /// By difficulty and side, where tasks say how hard they are.
    pub difficulties: Vec<Group>,
    /// By family and side, where tasks have one.
    pub families: Vec<Group>,
    /// What agents solve together of each group of tasks, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub together: Vec<Together>,
}

/// What agents solve together, by groups of tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Together {
    /// What tasks are grouped by.
    pub by: By,
    /// The groups.
    pub groups: Vec<GroupCoverage>,
}

/// Measures and compares sides.
#[must_use]
pub fn findings(sides: &[Side], options: &Options) -> Findings {
    let rows: Vec<Vec<Row>> = sides.iter().map(Side::rows).collect();
    let compared: Vec<Compared<'_>> =
        sides.iter().zip(&rows).map(|(side, rows)| Compared { name: &side.label, rows }).collect();
    let all = clean(rows.iter().flatten());
    let mut findings = all.findings;
    let comparisons = compare_all(&compared, options);
    for finding in comparisons.pairs.iter().flat_map(|pair| &pair.findings) {
        if !findings.contains(finding) {
            findings.push(finding.clone());
        }
    }
    let mut differ = Vec::new();
    for (index, one) in sides.iter().enumerate() {
        differ.extend(sides.iter().skip(index + 1).flat_map(|other| differences(one, other)));
    }
    let plain = Options { resamples: 0, ..options.clone() };
    let grouped = |by: By| {
        let groups = group(&all.rows, &[by, By::Agent], options);
        if groups.iter().all(|group| matches!(group.key.first(), Some(None))) { Vec::new() } else { groups }
    };
    Findings {
        options: options.clone(),
        sides: sides.iter().zip(&rows).map(|(side, rows)| found(side, rows, options)).collect(),
        comparisons,
        imported: sides.iter().filter_map(imported).collect(),
        differences: differ,
        findings,
        envs: group(&all.rows, &[By::Env, By::Agent], &plain),
        splits: grouped(By::Split),
        difficulties: grouped(By::Difficulty),
        families: grouped(By::Family),
        together: if sides.len() < 2 { Vec::new() } else { together(&all.rows) },
    }
}

fn together(rows: &[&Row]) -> Vec<Together> {
    let by = [By::Env, By::Split, By::Difficulty, By::Family];
    let all = by.map(|by| Together { by, groups: coverage_by(rows, by) });
    all.into_iter().filter(|together| together.groups.iter().any(|group| group.name.is_some())).collect()
}

fn imported(side: &Side) -> Option<Imported> {
    let count = side.episodes.iter().filter(|episode| episode.provenance.imported.is_some()).count();
    let (side, folder) = (side.label.clone(), side.run.benchmark.clone());
    (count > 0).then_some(Imported { side, folder, episodes: count as u64 })
}

fn found(side: &Side, rows: &[Row], options: &Options) -> SideFound {
    let mut faults: BTreeMap<String, u64> = BTreeMap::new();
    for row in rows {
        if let State::Faulted { class } = row.state {
            *faults.entry(class.to_string()).or_default() += 1;
        }
    }
    SideFound {
        label: side.label.clone(),
        agent: side.agent.clone(),
        run: side.run.id,
        run_name: side.run.name.clone(),
        submitted_at: side.run.submitted_at,
        episodes: rows.len() as u64,
        measures: measure(&clean(rows).rows, options),
        faults,
        judges: Judges::of(side.episodes.iter().filter_map(|episode| episode.parts.as_deref())),
        rejudged: side.rejudged.clone(),
    }
}

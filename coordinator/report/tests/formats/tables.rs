//! Tables, read with pandas on pyarrow and with DuckDB, against the records of the store.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_core::call::{CallRecord, PurseKind};
use longhaul_core::step::{ActionOutcome, StepRecord};
use longhaul_report::{Attempts, Chosen, ExportError, Format, Trajectories, columns, export};
use serde_json::json;

use crate::python;
use crate::run::{self, HOSTILE, exported, reader, run_id};

#[test]
fn pandas_and_duckdb_find_what_is_in_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = run::store(&folder.path().join("store"));
    let out = folder.path().join("out");
    let format = Format::Parquet { attempts: Attempts::Settling, screenshots: true };
    let done = exported(&store, &format, &out).unwrap();

    // From the records, without a table.
    let episodes = Trajectories::episodes(reader(&store), run_id()).unwrap();
    let mut steps: Vec<StepRecord> = Vec::new();
    let mut calls: Vec<CallRecord> = Vec::new();
    let mut attempts = 0;
    for episode in &episodes {
        steps.extend(Trajectories::steps(reader(&store), episode.attempt.unwrap()).unwrap());
        for attempt in &episode.attempts {
            calls.extend(Trajectories::calls(reader(&store), attempt.id).unwrap().into_iter().map(|(call, _)| call));
            attempts += 1;
        }
    }
    let mut states: BTreeMap<&str, u32> = BTreeMap::new();
    for episode in &episodes {
        *states.entry(episode.state()).or_default() += 1;
    }
    let settled = |judge: bool| {
        let of = calls.iter().filter(|call| (call.purpose.purse() == PurseKind::Judge) == judge);
        of.map(|call| call.settled.nanos()).sum::<u64>()
    };
    let used = |kind: fn(&longhaul_core::price::Usage) -> u64| {
        calls.iter().filter_map(|call| call.usage.as_ref()).map(kind).sum::<u64>()
    };
    let screenshots: BTreeSet<_> = steps.iter().map(|step| step.screen.png).collect();
    let errors = steps.iter().flat_map(|step| &step.outcomes).filter(|o| matches!(o, ActionOutcome::Error(_))).count();
    let nanos = settled(false);
    let expected = json!({
        "rows": {"runs": 1, "episodes": 9, "attempts": attempts, "steps": steps.len(), "calls": calls.len()},
        "states": states,
        "settled_nanos": nanos,
        "settled_dollars": format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000),
        "judge_nanos": settled(true),
        "cost_nanos": nanos,
        "tokens": {
            "input": used(|usage| usage.input), "cache_read": used(|usage| usage.cache_read),
            "cache_write": used(|usage| usage.cache_write), "output": used(|usage| usage.output),
        },
        "steps": steps.iter().filter(|step| step.answer.is_some()).count(),
        "errors": errors,
        "screenshots": screenshots.len(),
        "seed": u64::MAX,
        "text": HOSTILE,
        "actions": steps[4].answer.as_ref().unwrap().actions,
        "unknown_scores": 3,
    });
    let found = python::read("tables.py", &out);
    for (reader, submitted) in [("pandas", "2023-11-14T22:13:20+00:00"), ("duckdb", "2023-11-14 22:13:20")] {
        let mut found = found[reader].clone();
        assert_eq!(found.as_object_mut().unwrap().remove("first_submitted").unwrap(), submitted);
        assert_eq!(found, expected, "{reader}");
    }
    assert_eq!((done.episodes, done.steps), (9, u64::try_from(steps.len()).unwrap()));
    assert_eq!(std::fs::read_dir(out.join("screenshots")).unwrap().count(), screenshots.len());

    // The types are those of the documents.
    for column in columns() {
        let file = &found["files"][column.table];
        let arrow = match column.kind {
            "boolean" => "bool",
            "timestamp(ms, UTC)" => "timestamp[ms, tz=UTC]",
            "decimal(18, 9)" => "decimal128(18, 9)",
            other => other,
        };
        assert_eq!(file["types"][column.name], arrow, "{}.{}", column.table, column.name);
        let nullable = file["nullable"].as_array().unwrap().contains(&json!(column.name));
        assert_eq!(nullable, column.optional, "{}.{}", column.table, column.name);
        assert_eq!(file["codec"], "SNAPPY");
    }
}

#[test]
fn every_attempts_steps_and_no_screenshots_on_demand() {
    let folder = tempfile::tempdir().unwrap();
    let store = run::store(&folder.path().join("store"));
    let out = folder.path().join("out");
    let format = Format::Parquet { attempts: Attempts::All, screenshots: false };
    exported(&store, &format, &out).unwrap();
    assert!(!out.join("screenshots").exists());
    assert_eq!(python::read("tables.py", &out)["pandas"]["rows"]["attempts"], 10);
}

/// The tables of docs/exporting.md are these.
#[test]
fn every_column_is_documented() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/exporting.md");
    let page = std::fs::read_to_string(page).unwrap();
    let expected: Vec<String> = columns()
        .iter()
        .map(|column| {
            let null = if column.optional { " or null" } else { "" };
            format!("| `{}` | {}{null} | {} |", column.name, column.kind, column.about)
        })
        .collect();
    let documented: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    let missing: Vec<&String> = expected.iter().filter(|line| !documented.contains(&line.as_str())).collect();
    assert!(
        missing.is_empty(),
        "docs/exporting.md lacks\n{}",
        missing.iter().map(|l| format!("{l}\n")).collect::<String>()
    );
    for table in ["runs", "episodes", "attempts", "steps", "calls"] {
        assert!(page.contains(&format!("#### `{table}`")), "{table}");
    }
}

#[test]
fn an_agent_that_is_not_there_and_a_run_named_twice_are_said() {
    let folder = tempfile::tempdir().unwrap();
    let store = run::store(&folder.path().join("store"));
    let out = folder.path().join("out");
    let of = |agents: &[&str]| Chosen {
        from: reader(&store),
        run: run_id(),
        agents: agents.iter().map(|agent| (*agent).to_owned()).collect(),
    };
    let format = Format::Parquet { attempts: Attempts::All, screenshots: false };
    let error = export(&[of(&["teacher", "nobody"])], &format, &out).unwrap_err();
    assert_eq!(error.to_string(), format!("run {} has no episode of agent `nobody`", run_id()));
    assert!(matches!(export(&[of(&[]), of(&["teacher"])], &format, &out), Err(ExportError::Twice { .. })));
    let error = export(&[of(&[])], &Format::Jsonl(Attempts::All), &out);
    assert!(error.is_ok(), "{error:?}");
}

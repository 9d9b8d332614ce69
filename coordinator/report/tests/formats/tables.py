"""Reads exported tables with pandas and with DuckDB, and says what each finds in them."""

import json
import sys
from pathlib import Path

import duckdb
import pandas
import pyarrow.parquet

folder = Path(sys.argv[1])
names = ["runs", "episodes", "attempts", "steps", "calls"]
frames = {name: pandas.read_parquet(folder / f"{name}.parquet", dtype_backend="pyarrow") for name in names}
database = duckdb.connect()
for name in names:
    database.execute(f"create view {name} as select * from read_parquet('{folder}/{name}.parquet')")


def query(text):
    return database.execute(text).fetchall()


def files(name):
    file = pyarrow.parquet.ParquetFile(folder / f"{name}.parquet")
    about = json.loads(file.metadata.metadata[b"longhaul.columns"])
    assert set(about) == set(file.schema_arrow.names), name
    return {
        "types": {field.name: str(field.type) for field in file.schema_arrow},
        "nullable": sorted(field.name for field in file.schema_arrow if field.nullable),
        "rows": file.metadata.num_rows,
        "groups": file.metadata.num_row_groups,
        "codec": file.metadata.row_group(0).column(0).compression if file.metadata.num_row_groups else None,
    }


episodes, steps, calls = frames["episodes"], frames["steps"], frames["calls"]
paid = calls[~calls.of_judge]
pandas_found = {
    "rows": {name: len(frame) for name, frame in frames.items()},
    "states": episodes.state.value_counts().to_dict(),
    "settled_nanos": int(paid.settled_nanos.sum()),
    "settled_dollars": str(paid.settled_dollars.sum()),
    "judge_nanos": int(calls[calls.of_judge].settled_nanos.sum()),
    "cost_nanos": int(episodes.cost_nanos.sum()),
    "tokens": {kind: int(calls[f"{kind}_tokens"].sum()) for kind in ("input", "cache_read", "cache_write", "output")},
    "steps": int(episodes.steps.sum()),
    "errors": int(steps.error_count.sum()),
    "screenshots": int(steps.screenshot.nunique()),
    "seed": int(episodes.seed.iloc[0]),
    "first_submitted": frames["runs"].submitted_at.iloc[0].isoformat(),
    "text": steps[(steps.episode == episodes.episode.iloc[0]) & (steps.step == 1)].text.iloc[0],
    "actions": json.loads(steps[(steps.episode == episodes.episode.iloc[0]) & (steps.step == 4)].actions.iloc[0]),
    "unknown_scores": int(episodes.score.isna().sum()),
}
duckdb_found = {
    "rows": {name: query(f"select count(*) from {name}")[0][0] for name in names},
    "states": dict(query("select state, count(*) from episodes group by all")),
    "settled_nanos": int(query("select sum(settled_nanos) from calls where not of_judge")[0][0]),
    "settled_dollars": str(query("select sum(settled_dollars) from calls where not of_judge")[0][0]),
    "judge_nanos": int(query("select sum(settled_nanos) from calls where of_judge")[0][0]),
    "cost_nanos": int(query("select sum(cost_nanos) from episodes")[0][0]),
    "tokens": {
        kind: int(query(f"select sum({kind}_tokens) from calls")[0][0])
        for kind in ("input", "cache_read", "cache_write", "output")
    },
    "steps": int(query("select sum(steps) from episodes")[0][0]),
    "errors": int(query("select sum(error_count) from steps")[0][0]),
    "screenshots": query("select count(distinct screenshot) from steps")[0][0],
    "seed": query("select seed from episodes limit 1")[0][0],
    "first_submitted": query("select (submitted_at at time zone 'UTC')::varchar from runs")[0][0],
    "text": query("select text from steps join (select min(episode) as episode from episodes) using (episode) where step = 1")[0][0],
    "actions": json.loads(
        query("select actions from steps join (select min(episode) as episode from episodes) using (episode) where step = 4")[0][0]
    ),
    "unknown_scores": query("select count(*) from episodes where score is null")[0][0],
}
json.dump(
    {"pandas": pandas_found, "duckdb": duckdb_found, "files": {name: files(name) for name in names}}, sys.stdout
)

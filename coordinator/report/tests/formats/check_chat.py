"""Loads an exported training set as trainers do, and says what is in it."""

import json
import sys
from pathlib import Path

import pyarrow.json
from PIL import Image

folder = Path(sys.argv[1])
# What `datasets.load_dataset("json", ...)` reads a file with: every row has to have one schema.
table = pyarrow.json.read_json(folder / "train.jsonl")
rows = table.to_pylist()
sizes = set()
roles = []
texts = []
for row in rows:
    messages = row["messages"] if "messages" in row else row["prompt"] + row["completion"]
    placeholders = sum(part["type"] == "image" for message in messages for part in message["content"])
    assert placeholders == len(row["images"]), row["episode"]
    assert all(part["type"] in ("image", "text") for message in messages for part in message["content"])
    for path in row["images"]:
        image = Image.open(folder / path)
        image.load()
        sizes.add(image.size)
    roles.append([message["role"] for message in messages])
    texts.append(
        [[part["text"] if part["type"] == "text" else None for part in message["content"]] for message in messages]
    )
named = {path.name for path in folder.glob("images/*")}
used = {Path(path).name for row in rows for path in row["images"]}
json.dump(
    {
        "columns": {field.name: str(field.type) for field in table.schema},
        "rows": len(rows),
        "episodes": [row["episode"] for row in rows],
        "images": [len(row["images"]) for row in rows],
        "roles": roles,
        "texts": texts,
        "sizes": sorted(sizes),
        "stray_files": sorted(named ^ used),
        "about": json.loads((folder / "about.json").read_text()),
    },
    sys.stdout,
)

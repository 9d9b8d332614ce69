"""Fetches text files, for the verifiers of this env."""

import json
import tempfile
from pathlib import Path


def fetch_text(env_info, path):
    """A file of the sandbox as text."""
    target = Path(tempfile.mkdtemp()) / Path(path).name
    env_info["copy_from_env"](path, str(target))
    return target.read_text(encoding="utf-8")


def result(env_info):
    """What export_result.sh found out."""
    return json.loads(fetch_text(env_info, "/tmp/task_result.json"))


def original(verifier, name):
    """A paper as it was: the env's data beside its tasks."""
    return (Path(verifier).parents[2] / "data" / name).read_text(encoding="utf-8")


def verdict(score, notes):
    """What a verifier returns: passed only with all the points."""
    return {"passed": score == 100, "score": score, "feedback": "; ".join(notes)}

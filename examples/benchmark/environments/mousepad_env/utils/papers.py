"""Fetches text files, for the verifiers of this env."""

import json
import tempfile
from pathlib import Path


def fetch(env_info, path):
    """Copies a file out of the sandbox; its local path."""
    target = Path(tempfile.mkdtemp()) / Path(path).name
    env_info["copy_from_env"](path, str(target))
    return target


def result(env_info):
    """What export_result.sh found out."""
    return json.loads(fetch(env_info, "/tmp/task_result.json").read_text(encoding="utf-8"))


def fetch_text(env_info, path):
    """The text of a file in the sandbox."""
    return fetch(env_info, path).read_text(encoding="utf-8")


def original(verifier, name):
    """A paper as it was: the env's data beside its tasks."""
    return (Path(verifier).parents[2] / "data" / name).read_text(encoding="utf-8")


def verdict(score, notes):
    """What a verifier returns: passed only with all the points."""
    return {"passed": score == 100, "score": score, "feedback": "; ".join(notes)}

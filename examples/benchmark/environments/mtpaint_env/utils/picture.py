"""Fetches and compares pictures, for the verifiers of this env."""

import json
import tempfile
from pathlib import Path

from PIL import Image, ImageChops


def fetch(env_info, path):
    """Copies a file out of the sandbox; its local path."""
    target = Path(tempfile.mkdtemp()) / Path(path).name
    env_info["copy_from_env"](path, str(target))
    return target


def result(env_info):
    """What export_result.sh found out."""
    return json.loads(fetch(env_info, "/tmp/task_result.json").read_text(encoding="utf-8"))


def load(path):
    """A picture as RGB."""
    with Image.open(path) as picture:
        return picture.convert("RGB")


def differing(one, other):
    """How many pixels differ; all of them if the sizes do."""
    if one.size != other.size:
        return max(one.width * one.height, other.width * other.height)
    difference = ImageChops.difference(one, other)
    return sum(1 for pixel in difference.getdata() if any(pixel))


def verdict(score, notes):
    """What a verifier returns: passed only with all the points."""
    return {"passed": score == 100, "score": score, "feedback": "; ".join(notes)}

"""Reads workbooks of Gnumeric, which are gzipped XML, for the verifiers of this env."""

import gzip
import json
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

NAMESPACE = {"gnm": "http://www.gnumeric.org/v10.dtd"}


class Workbook:
    """The first sheet of a workbook: what its cells hold, by name ("B4")."""

    def __init__(self, path):
        raw = Path(path).read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        sheet = ElementTree.fromstring(raw).find("gnm:Sheets/gnm:Sheet", NAMESPACE)
        self.texts = {}
        shared = {}
        for cell in sheet.iterfind("gnm:Cells/gnm:Cell", NAMESPACE):
            text = cell.text or ""
            # A formula that several cells share is written once; the others name its id.
            expression = cell.get("ExprID")
            if expression is not None:
                text = shared.setdefault(expression, text) or shared[expression]
            name = f"{_letters(int(cell.get('Col')))}{int(cell.get('Row')) + 1}"
            self.texts[name] = text

    def text(self, cell):
        """What the cell holds: a formula with its =, or its value as text."""
        return self.texts.get(cell, "")

    def is_formula(self, cell):
        """Whether the cell holds a formula."""
        return self.text(cell).startswith("=")

    def number(self, cell):
        """The number in the cell, or None."""
        try:
            return float(self.text(cell))
        except ValueError:
            return None


def _letters(column):
    letters = ""
    column += 1
    while column:
        column, digit = divmod(column - 1, 26)
        letters = chr(ord("A") + digit) + letters
    return letters


def fetch(env_info, path):
    """Copies a file out of the sandbox; its local path."""
    target = Path(tempfile.mkdtemp()) / Path(path).name
    env_info["copy_from_env"](path, str(target))
    return target


def result(env_info):
    """What export_result.sh found out."""
    return json.loads(fetch(env_info, "/tmp/task_result.json").read_text(encoding="utf-8"))


def values(env_info):
    """The values that Gnumeric itself computes for the saved workbook, by cell name."""
    import csv

    table = {}
    with open(fetch(env_info, "/tmp/task_result.csv"), newline="", encoding="utf-8") as file:
        for row, record in enumerate(csv.reader(file)):
            for column, text in enumerate(record):
                table[f"{_letters(column)}{row + 1}"] = text
    return table


def close_to(text, expected):
    """Whether a cell's text is a number within half a cent of the expected one."""
    try:
        return abs(float(text) - expected) < 0.005
    except (TypeError, ValueError):
        return False


def verdict(score, notes):
    """What a verifier returns: passed only with all the points."""
    return {"passed": score == 100, "score": score, "feedback": "; ".join(notes)}

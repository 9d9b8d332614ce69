"""The stored requests, and what was done to them."""

import json
import sqlite3

PLACE = "/var/lib/desk/desk.db"
PRIORITIES = {"Low": "low", "Normal": "medium", "High": "high"}
LABELS = {value: label for label, value in PRIORITIES.items()}
WORKERS = ["Mara", "Tom", "Ines"]


class Store:
    """The store as one of the programs uses it: every save is one operation of that program."""

    def __init__(self, program):
        self.program = program
        self.connection = sqlite3.connect(PLACE, isolation_level=None, timeout=10)
        self.connection.row_factory = sqlite3.Row

    def all(self):
        return [dict(row) for row in self.connection.execute("select * from requests order by id")]

    def one(self, number):
        return dict(self.connection.execute("select * from requests where id = ?", (number,)).fetchone())

    def add(self, fields):
        """Takes a request; its number."""
        fields = {"state": "open", "worker": "", **fields}
        with self.connection:
            self.connection.execute("begin immediate")
            names, places = ", ".join(fields), ", ".join("?" * len(fields))
            added = self.connection.execute(
                f"insert into requests ({names}) values ({places})", tuple(fields.values())
            )
            self.note("add", added.lastrowid, fields)
        return added.lastrowid

    def change(self, number, fields):
        """Changes what differs; whether anything did."""
        with self.connection:
            self.connection.execute("begin immediate")
            before = self.one(number)
            changed = {name: value for name, value in fields.items() if before[name] != value}
            for name, value in changed.items():
                self.connection.execute(f"update requests set {name} = ? where id = ?", (value, number))
            if changed:
                self.note("change", number, {name: [before[name], value] for name, value in changed.items()})
        return bool(changed)

    def note(self, kind, number, fields):
        self.connection.execute(
            "insert into operations (program, kind, record, fields) values (?, ?, ?, ?)",
            (self.program, kind, number, json.dumps(fields, ensure_ascii=False)),
        )

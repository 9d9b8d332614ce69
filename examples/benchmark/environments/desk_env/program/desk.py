"""The front desk: takes requests, shows them, changes them."""

import json
from pathlib import Path

from screen import ENTER, ESCAPE, run
from store import LABELS, PRIORITIES, WORKERS, Store

# What the form for new requests writes for each of its choices; the house may set it.
NEW_REQUEST = Path("/etc/desk/new_request.json")
HEADING = f"  {'No':<4}{'Request':<28}{'Room':<11}{'Priority':<10}{'State':<9}Worker"


def row(request):
    return (
        f"{request['id']:<4}{request['request']:<28.27}{request['room']:<11.10}"
        f"{LABELS[request['priority']]:<10}{request['state']:<9}{request['worker'] or '-'}"
    )


class Desk:
    def __init__(self, screen):
        self.screen, self.store = screen, Store("desk")
        while True:
            key, at = screen.choose("Welcome", "", ["Requests", "New request"], "Up Down choose   Enter open")
            if key in ENTER:
                self.requests() if at == 0 else self.new()

    def requests(self):
        at = 0
        while True:
            requests = self.store.all()
            rows = [row(request) for request in requests]
            keys = "Up Down choose   Enter open   n new   Esc back"
            key, at = self.screen.choose("Requests", HEADING, rows, keys, at, "n")
            if key == ESCAPE:
                return
            self.new() if key == "n" else self.request(requests[at]["id"])

    def new(self):
        fields = [["Request", ""], ["Room", ""], ["Priority", "Low", list(PRIORITIES)]]
        if not self.screen.fill("New request", fields):
            self.screen.message = "Nothing was saved."
            return
        request, room, chosen = (field[1] for field in fields)
        values = json.loads(NEW_REQUEST.read_text()) if NEW_REQUEST.exists() else PRIORITIES
        number = self.store.add({"request": request, "room": room, "priority": values[chosen]})
        self.screen.message = f"Request {number} is taken, with priority {chosen}."
        receipt = [f"  Thank you. Your request has the number {number}.", "", f"  {request}, {room}"]
        self.screen.show(f"Receipt {number}", receipt, "any key: go on")

    def request(self, number):
        while True:
            request = self.store.one(number)
            lines = [
                f"  {'Request':<10}{request['request']}",
                f"  {'Room':<10}{request['room']}",
                f"  {'Priority':<10}{LABELS[request['priority']]}",
                f"  {'State':<10}{request['state']}",
                f"  {'Worker':<10}{request['worker'] or '-'}",
            ]
            key = self.screen.show(f"Request {number}", lines, "c change   Esc back")
            if key == ESCAPE:
                return
            if key == "c":
                self.change(request)

    def change(self, request):
        number = request["id"]
        fields = [
            ["Request", request["request"]],
            ["Room", request["room"]],
            ["Priority", LABELS[request["priority"]], list(PRIORITIES)],
            ["State", request["state"], ["open", "in work", "done"]],
            ["Worker", request["worker"] or "-", ["-", *WORKERS]],
        ]
        if not self.screen.fill(f"Change request {number}", fields):
            self.screen.message = "Nothing was saved."
            return
        text, room, priority, state, worker = (field[1] for field in fields)
        changed = self.store.change(
            number,
            {
                "request": text,
                "room": room,
                "priority": PRIORITIES[priority],
                "state": state,
                "worker": "" if worker == "-" else worker,
            },
        )
        said = f"is saved, with priority {priority}" if changed else "is as it was"
        self.screen.message = f"Request {number} {said}."


run("FRONT DESK", Desk)

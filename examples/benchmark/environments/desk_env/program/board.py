"""The caretaker's board: what is to be done, and who does it. It shows what it last loaded."""

from screen import run
from store import LABELS, WORKERS, Store

STATES = ["open", "in work", "done"]


def row(request):
    return (
        f"{request['id']:<4}{request['state']:<9}{request['request']:<28.27}"
        f"{LABELS[request['priority']]:<8}{request['worker'] or '-'}"
    )


class Board:
    def __init__(self, screen):
        self.screen, self.store = screen, Store("board")
        self.load()
        at = 0
        heading = f"  {'No':<4}{'State':<9}{'Request':<28}{'Prio':<8}Worker"
        while True:
            rows = [row(request) for request in self.requests]
            keys = "Up Down choose   t take   d done   r load again"
            key, at = screen.choose("All rooms", heading, rows, keys, at, "tdr")
            if key == "r":
                self.load()
                screen.message = f"{len(self.requests)} requests are loaded."
            elif key in ("t", "d"):
                number = self.requests[at]["id"]
                self.work(number, key)
                at = next(row for row, request in enumerate(self.requests) if request["id"] == number)

    def load(self):
        self.requests = sorted(self.store.all(), key=lambda request: (STATES.index(request["state"]), request["id"]))

    def work(self, number, key):
        if key == "d":
            self.store.change(number, {"state": "done"})
            self.screen.message = f"Request {number} is done."
        else:
            fields = [["Worker", WORKERS[0], WORKERS]]
            if not self.screen.fill(f"Who takes request {number}?", fields):
                self.screen.message = "Nothing was saved."
                return
            self.store.change(number, {"state": "in work", "worker": fields[0][1]})
            self.screen.message = f"Request {number} is taken by {fields[0][1]}."
        self.load()


run("CARETAKER'S BOARD", Board)

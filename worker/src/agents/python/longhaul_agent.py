"""The Python helper for external agents: JSON lines on the standard streams, as functions.

    from longhaul_agent import Agent, run

    class Mine(Agent):
        def reset(self, task):
            self.task = task["description"]

        def act(self, observation):
            png = observation.png()
            return {"actions": [{"mouse": {"left_click": [10, 20]}}], "text": "...", "done": False}

    run(Mine())

An agent may print: what it prints goes to its standard error. Python 3.8 or later, and nothing
beside its standard library. The protocol is in docs/agents-protocol.md.
"""

import base64
import json
import os
import sys

__all__ = ["Agent", "Observation", "ProtocolError", "run"]


class ProtocolError(Exception):
    """The other side said something that is not in the protocol."""


class Observation:
    """What there is to see after the last actions."""

    def __init__(self, message):
        #: The number of the observation, from 0.
        self.step = message["step"]
        #: The path of the screenshot, a PNG.
        self.path = message["screen"]["path"]
        #: Its size in pixels.
        self.width = message["screen"]["width"]
        self.height = message["screen"]["height"]
        #: One for each action of the last answer: None, or what went wrong.
        self.errors = [None if outcome == "done" else outcome.get("error") for outcome in message["outcomes"]]
        #: What somebody else says to the agent (an audit, a nudge), or None.
        self.told = message.get("told")
        #: Steps and seconds that are left.
        self.left = message.get("left", {})
        #: The round that this is in, from 1, if the task has rounds; else None. `done` ends a round.
        self.round = message.get("round")
        #: What the agent is asked for from now on, where a further round begins; else None.
        self.goal = message.get("goal")

    def png(self):
        """The bytes of the screenshot."""
        with open(self.path, "rb") as file:
            return file.read()

    def base64(self):
        """The same as base64 text."""
        return base64.b64encode(self.png()).decode("ascii")


class Agent:
    """What an agent implements."""

    def reset(self, task):
        """Is called once, with the task: `task`, `description`, `screen`, `seed`, `limits`, `endpoints`."""

    def act(self, observation):
        """Answers an observation: a dict with `actions`, `text` and `done`, or a list of actions."""
        raise NotImplementedError

    def error(self, message):
        """Is told what was wrong with the last answer; `act` is called again with the same observation."""
        print("longhaul: " + message, file=sys.stderr)

    def finish(self, ended_by):
        """Is called when the episode is over; what takes longer than a few seconds is cut off."""


def run(agent, source=None, sink=None):
    """Serves an agent until its episode is over."""
    if source is None and sink is None:
        source = os.fdopen(os.dup(0), "r", encoding="utf-8", newline="\n")
        sink = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
        # What the agent, or a library of it, prints is no message.
        os.dup2(2, 1)
        sys.stdout = sys.stderr
    last = None
    for line in source:
        message = json.loads(line)
        kind = message.get("type")
        if kind == "reset":
            agent.reset({key: value for key, value in message.items() if key != "type"})
        elif kind == "observe":
            last = Observation(message)
            _answer(agent, last, sink)
        elif kind == "error":
            agent.error(message.get("message", ""))
            if last is None:
                raise ProtocolError("an error before the first observation: " + str(message))
            _answer(agent, last, sink)
        elif kind == "done":
            agent.finish(message.get("ended_by"))
            return
        else:
            raise ProtocolError("an unknown message: " + line[:200])


def _answer(agent, observation, sink):
    answer = agent.act(observation)
    if isinstance(answer, list):
        answer = {"actions": answer}
    message = {"type": "act", "step": observation.step}
    message.update({key: answer[key] for key in ("actions", "text", "done") if answer.get(key) is not None})
    sink.write(json.dumps(message) + "\n")
    sink.flush()

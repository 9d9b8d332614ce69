"""Runs a BaseAgent subclass of Gym-Anything as an external agent, unchanged.

    python3 -m longhaul_gym agents.agents.qwen3vl:Qwen3VLAgent '{"model": "Qwen/Qwen3-VL-8B"}'

The class is found on PYTHONPATH, where the agent's own folder is. It is used as Gym-Anything's
`run_single` uses it: made with `agent_args`, told the task by `init`, asked by `step`, ended by
`finish`. What it asks for in one `step` is one step here, with all its groups of actions.

Not the same as there: an observation's `screen` has no `png_b64`; and `action_outputs` of one
step all describe the same screen, since the groups are carried out one after the other without a
look in between.
"""

import importlib
import json
import os
import sys
import tempfile

from longhaul_agent import Agent, run


class GymAgent(Agent):
    """The adapter."""

    def __init__(self, cls, agent_args, save_path):
        self.cls = cls
        self.agent_args = agent_args
        self.save_path = save_path
        self.agent = None
        self.groups = []

    def reset(self, task):
        _show_token()
        if "OPENAI_BASE_URL" in os.environ:
            # What Gym-Anything's own clients of local models read.
            os.environ.setdefault("VLM_BASE_URL", os.environ["OPENAI_BASE_URL"])
        args = dict(self.agent_args)
        args.setdefault("task_name", task["task"].replace("/", "__"))
        self.agent = self.cls(agent_args=args, verbose=False, debug=False)
        self.agent.init(
            task_description=task["description"],
            display_resolution=(task["screen"]["width"], task["screen"]["height"]),
            save_path=self.save_path,
        )

    def act(self, observation):
        for words in (observation.goal, observation.told):
            if words:
                # Its own interface has no words for it but the task.
                self._tell(words)
        shown = {"screen": {"path": observation.path, "resolution": [observation.width, observation.height]}}
        groups = self.agent.step(shown, self._outputs(observation)) or []
        self.groups = [(group.get("tool_id"), list(group.get("actions") or [])) for group in groups]
        actions = [action for _, actions in self.groups for action in actions]
        return {"actions": actions, "done": bool(getattr(self.agent, "done", False))}

    def finish(self, ended_by):
        if self.agent is not None:
            self.agent.finish(info={"reason": ended_by})

    def _outputs(self, observation):
        outputs = []
        errors = iter(observation.errors)
        for tool_id, actions in self.groups:
            failed = [error for error in (next(errors, None) for _ in actions) if error]
            alone = actions[0].get("action", actions[0].get("type")) if len(actions) == 1 else None
            if failed:
                output = {"action": "other", "output": "; ".join(failed)}
            elif alone == "screenshot":
                output = {"action": "screenshot", "output": observation.path}
            elif alone == "wait":
                output = {"action": "wait", "output": "Executed the action"}
            else:
                output = {"action": "other", "output": "Executed the action"}
            output["tool_id"] = tool_id
            outputs.append(output)
        return outputs

    def _tell(self, told):
        if hasattr(self.agent, "task_description"):
            self.agent.task_description = "{}\n\n{}".format(self.agent.task_description, told)
        # A class that is asked to go on is not done.
        if getattr(self.agent, "done", False):
            self.agent.done = False


def _show_token():
    """Gym-Anything's clients of local models send `EMPTY` as their key: the gateway wants its token."""
    token = os.environ.get("LONGHAUL_TOKEN")
    if not token:
        return
    try:
        import openai
    except ImportError:
        return
    made = openai.OpenAI.__init__

    def make(self, *args, **kwargs):
        if kwargs.get("api_key") in (None, "EMPTY"):
            kwargs["api_key"] = token
        made(self, *args, **kwargs)

    openai.OpenAI.__init__ = make


def main(arguments):
    if len(arguments) not in (1, 2) or ":" not in arguments[0]:
        print("usage: python3 -m longhaul_gym MODULE:CLASS [AGENT_ARGS_AS_JSON]", file=sys.stderr)
        return 2
    module, name = arguments[0].split(":", 1)
    agent_args = json.loads(arguments[1]) if len(arguments) == 2 else {}
    sys.path.insert(0, os.getcwd())
    cls = getattr(importlib.import_module(module), name)
    run(GymAgent(cls, agent_args, tempfile.mkdtemp(prefix="episode-")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Runs one verifier of a task and reports what it returned.

Runs inside a sandbox of its own, with the task's files and the trajectory bound
read-only. The episode's live sandbox is reached only through the worker, over a unix
socket: one JSON object a line, and raw pieces after a line that announces them. The
last line that this program sends is the outcome; without it there is no verdict.
"""

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import logging
import math
import os
import shutil
import socket
import sys
import tarfile
import threading
import traceback
import types

PIECE = 256 * 1024
TAIL_CHARS = 4000
MAX_DEPTH = 40

# What the verifier used that is not there; the worker judges the verdict by it.
used = {"judge": False, "unprovided": []}


class Broken(RuntimeError):
    """The worker could not do what the verifier asked for."""


class Worker:
    """The other end of the socket. Verifiers use threads at times: one call at a time."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)
        self.reader = self.socket.makefile("rb")
        self.lock = threading.Lock()

    def _send(self, message):
        self.socket.sendall(json.dumps(message).encode("ascii") + b"\n")

    def _answer(self):
        line = self.reader.readline()
        if not line:
            raise Broken("the worker has gone")
        answer = json.loads(line)
        if "not_found" in answer:
            raise FileNotFoundError(2, "no such file in the environment", answer["not_found"])
        if "error" in answer:
            raise Broken(answer["error"])
        return answer

    def _pieces(self, out):
        while True:
            length = json.loads(self.reader.readline())["piece"]
            if length == 0:
                return
            while length:
                data = self.reader.read(min(length, PIECE))
                if not data:
                    raise Broken("the worker has gone")
                out.write(data)
                length -= len(data)

    def _keep(self, source, target):
        if os.path.isdir(target):
            target = os.path.join(target, os.path.basename(os.fspath(source)))
        try:
            out = open(target, "wb")
        except OSError:
            # Read to its end all the same: the next answer comes after it.
            self._pieces(io.BytesIO())
            raise
        with out:
            self._pieces(out)

    def copy_from_env(self, source, target):
        with self.lock:
            self._send({"op": "copy_from", "path": os.fspath(source)})
            answer = self._answer()
            if answer.get("tree"):
                packed = io.BytesIO()
                self._pieces(packed)
            else:
                self._keep(source, target)
                return
        packed.seek(0)
        os.makedirs(target, exist_ok=True)
        with tarfile.open(fileobj=packed) as archive:
            root = os.path.realpath(target)
            for member in archive:
                place = os.path.realpath(os.path.join(root, member.name))
                inside = place == root or place.startswith(root + os.sep)
                if inside and (member.isfile() or member.isdir()):
                    archive.extract(member, root, set_attrs=False)

    def copy_to_env(self, source, target):
        with open(source, "rb") as data, self.lock:
            self._send({"op": "copy_to", "path": os.fspath(target)})
            while True:
                piece = data.read(PIECE)
                self._send({"piece": len(piece)})
                if not piece:
                    break
                self.socket.sendall(piece)
            self._answer()

    def exec_capture(self, command, *_, **__):
        if isinstance(command, (list, tuple)):
            import shlex

            command = " ".join(shlex.quote(str(part)) for part in command)
        with self.lock:
            self._send({"op": "exec", "command": str(command)})
            return self._answer()["output"]

    def ask(self, prompt, images, max_tokens):
        """The judge's words, and why there are none: one of the two is None."""
        with self.lock:
            self._send({"op": "query", "prompt": prompt, "images": len(images), "max_tokens": max_tokens})
            for image in images:
                for start in range(0, len(image), PIECE):
                    piece = image[start : start + PIECE]
                    self._send({"piece": len(piece)})
                    self.socket.sendall(piece)
                self._send({"piece": 0})
            answer = self._answer()
        return answer.get("text"), answer.get("unanswered")

    def report(self, outcome):
        with self.lock:
            self._send({"op": "outcome", "outcome": outcome})


# --- What verifiers import from the framework that they were written for. ---


# The other end, once it is there: functions that modules import have no other way to it.
the_worker = None


def query_vlm(prompt="", images=None, image=None, max_tokens=2048, *_, **__):
    """Asks the judge of the run, if it has one; answered in the shape that callers look into."""
    wanted = [image] if image is not None else []
    wanted += list(images) if isinstance(images, (list, tuple)) else [images] if images is not None else []
    shown = [data for data in map(picture, wanted) if data]
    try:
        most = max(1, min(int(max_tokens), 1 << 20))
    except (TypeError, ValueError):
        most = 2048
    text, why = the_worker.ask(str(prompt), shown, most) if the_worker else (None, "no judge is configured")
    if text is None:
        used["judge"] = True
        return {"success": False, "response": "", "parsed": {}, "error": "unavailable: %s" % why}
    return {"success": True, "response": text, "parsed": parse_words(text), "error": ""}


def picture(value):
    """The bytes of a picture: a file, bytes, or an image of PIL. What is none is left out."""
    try:
        if isinstance(value, (bytes, bytearray)):
            return bytes(value)
        if hasattr(value, "save"):
            out = io.BytesIO()
            value.save(out, format="PNG")
            return out.getvalue()
        with open(value, "rb") as file:
            return file.read()
    except Exception:
        return None


def parse_words(text):
    """What a model's words hold: JSON as a whole, in a fence, or somewhere, else a yes or no."""
    blocks = text.split("```")[1::2]
    tries = [text] + [block[4:] if block.lower().startswith("json") else block for block in blocks]
    if "{" in text and "}" in text:
        tries.append(text[text.index("{") : text.rindex("}") + 1])
    for candidate in tries:
        try:
            return json.loads(candidate.strip())
        except ValueError:
            continue
    if "[" in text and "]" in text:
        try:
            return {"items": json.loads(text[text.index("[") : text.rindex("]") + 1])}
        except ValueError:
            pass
    parsed = {}
    low = text.lower()
    said = {word: word in low for word in ("yes", "no", "true", "false")}
    if said["yes"] != said["no"]:
        parsed["answer"] = said["yes"]
    elif said["true"] or said["false"]:
        parsed["answer"] = said["true"]
    for level, marks in (
        ("high", ("high confidence", "confident")),
        ("medium", ("medium confidence", "moderate")),
        ("low", ("low confidence", "uncertain")),
    ):
        if any(mark in low for mark in marks):
            parsed["confidence"] = level
            break
    return parsed


def sample_trajectory_frames(traj, n=None, num_samples=None, include_first=True, include_last=True, **_):
    """Evenly spaced frames of the trajectory, the first and the last among them."""
    frames = _frames(traj)
    wanted = n if n is not None else num_samples
    wanted = 3 if wanted is None else max(0, int(wanted))
    if len(frames) <= wanted:
        return list(frames)
    if wanted == 0:
        return []
    low = 0 if include_first else 1
    high = len(frames) - 1 if include_last else len(frames) - 2
    if wanted == 1 or high <= low:
        return [frames[max(high, 0)]]
    picked = sorted({low + round(index * (high - low) / (wanted - 1)) for index in range(wanted)})
    return [frames[index] for index in picked]


def _frames(traj):
    if isinstance(traj, dict):
        frames = [frame for frame in traj.get("frames") or [] if frame]
        final = traj.get("final_screenshot")
        return frames or ([final] if final else [])
    return [item for item in traj or [] if isinstance(item, str)]


def get_final_screenshot(traj, *_, **__):
    """The last picture that the agent left."""
    if isinstance(traj, dict) and traj.get("final_screenshot"):
        return traj["final_screenshot"]
    frames = _frames(traj)
    return frames[-1] if frames else None


def get_first_screenshot(traj, *_, **__):
    """The picture before the first action."""
    if isinstance(traj, dict) and traj.get("first_frame"):
        return traj["first_frame"]
    frames = _frames(traj)
    return frames[0] if frames else None


def copy_file_from_container(source, target, copy_from_env_fn, *_, **__):
    """Copies one file; says whether it went well in place of raising."""
    try:
        copy_from_env_fn(source, target)
    except Exception as error:
        return False, str(error)
    return (True, "") if os.path.exists(target) else (False, "nothing was copied: " + str(source))


def cleanup_verification_environment(folder=None, *_, **__):
    """Removes a folder of copies."""
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


PROVIDED = {
    function.__name__: function
    for function in (
        query_vlm,
        sample_trajectory_frames,
        get_final_screenshot,
        get_first_screenshot,
        copy_file_from_container,
        cleanup_verification_environment,
    )
}


class StandIn(types.ModuleType):
    """A module that has the functions above, and for any other name one that only notes its use."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name in PROVIDED:
            return PROVIDED[name]
        full = self.__name__ + "." + name

        def unprovided(*_, **__):
            used["unprovided"].append(full)
            return {"success": False, "parsed": {}, "error": "unavailable: " + full}

        unprovided.__name__ = name
        return unprovided


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked last, so that modules of the benchmark itself win."""

    NAMES = ("gym_anything", "verification_utils")

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in self.NAMES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


# --- The verdict. ---


class Unusable(Exception):
    """What the verifier returned is no verdict."""


def plain(value, depth=0):
    """The value as JSON can hold it; numbers that JSON does not know become text."""
    if depth > MAX_DEPTH:
        return "..."
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, dict):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    # Scalars and arrays of numpy and its like.
    for name in ("item", "tolist"):
        convert = getattr(value, name, None)
        if callable(convert):
            try:
                return plain(convert(), depth + 1)
            except Exception:
                continue
    return str(value)


def scalar(value):
    """A scalar of numpy as Python's own; anything else as it is."""
    convert = getattr(value, "item", None)
    if callable(convert) and not isinstance(value, (dict, list, str, bytes)):
        try:
            return convert()
        except Exception:
            return value
    return value


def truth(value):
    """Whether the task counts as passed. Only a truth value or a number can say yes."""
    value = scalar(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        if isinstance(value, float) and math.isnan(value):
            raise Unusable("`passed` is not a number")
        return bool(value)
    # `passed = found and right` leaves an empty list or None behind: a no.
    if value is None or (isinstance(value, (str, bytes, list, tuple, dict, set)) and not value):
        return False
    raise Unusable("`passed` is %s, not a truth value" % type(value).__name__)


def verdict(result):
    """Reads what the verifier returned."""
    if not isinstance(result, dict):
        raise Unusable("it returned %s, not a dict" % type(result).__name__)
    if "passed" not in result:
        raise Unusable("what it returned has no `passed`")
    passed = truth(result["passed"])
    outcome = {"kind": "verdict", "passed": passed, "notes": []}
    score = scalar(result.get("score"))
    if score is None:
        outcome["score"] = 100.0 if passed else 0.0
        outcome["notes"].append("the verifier gave no score; it is taken from `passed`")
    elif isinstance(score, (bool, int, float)):
        outcome["score"] = float(score)
        if not math.isfinite(outcome["score"]):
            raise Unusable("its score is %r" % outcome["score"])
    else:
        raise Unusable("its score is %s, not a number" % type(score).__name__)
    feedback = result.get("feedback", "")
    outcome["feedback"] = feedback if isinstance(feedback, str) else json.dumps(plain(feedback))
    outcome["details"] = plain(result)
    return outcome


def is_stub(source, name):
    """Whether the function does nothing but return a constant."""
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            body = [
                part
                for part in node.body
                if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
                and not isinstance(part, (ast.Pass, ast.Import, ast.ImportFrom))
            ]
            if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
                return False
            try:
                ast.literal_eval(body[0].value)
            except ValueError:
                return False
            return True
    return False


def load(job):
    """The function, with the folders importable that the benchmark counts on."""
    task_root, env_root = job["task_root"], job["env_root"]
    path = os.path.join(task_root, job["file"])
    if not os.path.isfile(path):
        raise Unusable("there is no %s in the task's folder" % job["file"])
    with open(path, "rb") as file:
        source = file.read()
    try:
        if is_stub(source, job["function"]):
            raise Unusable("the verifier is a stub: it returns a constant")
    except (SyntaxError, ValueError) as error:
        raise Unusable("%s is not Python: %s" % (job["file"], error)) from None
    folders = [task_root, os.path.dirname(task_root), env_root, os.path.join(env_root, "utils")]
    sys.path[:0] = folders
    sys.meta_path.append(StandInFinder())
    try:
        spec = importlib.util.spec_from_file_location("task_verifier", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules["task_verifier"] = module
        spec.loader.exec_module(module)
    finally:
        # Behind the rest from now on: a late import finds them, and nothing is shadowed.
        del sys.path[: len(folders)]
        sys.path.extend(folders)
    function = getattr(module, job["function"], None)
    if not callable(function):
        raise Unusable("%s has no function `%s`" % (job["file"], job["function"]))
    return function


def outcome_of(job, worker):
    """Runs the verifier; whatever happens becomes an outcome."""
    stage = "the verifier cannot be loaded"
    try:
        function = load(job)
        stage = "the verifier raised"
        env_info = dict(job["env_info"])
        env_info.update(
            copy_from_env=worker.copy_from_env,
            copy_to_env=worker.copy_to_env,
            exec_capture=worker.exec_capture,
            query_vlm=query_vlm,
            sample_trajectory_frames=sample_trajectory_frames,
            get_final_screenshot=get_final_screenshot,
            get_first_screenshot=get_first_screenshot,
        )
        return verdict(function(job["traj"], env_info, job["task_info"]))
    except Unusable as error:
        return {"kind": "unusable", "reason": str(error)}
    except BaseException as error:
        trace = traceback.format_exc()[-TAIL_CHARS:]
        reason = "%s: %s: %s" % (stage, type(error).__name__, error)
        return {"kind": "unusable", "reason": reason[:TAIL_CHARS], "trace": trace}


def main():
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    for step, frame in list(job["traj"].get("step_frames", {}).items()):
        del job["traj"]["step_frames"][step]
        job["traj"]["step_frames"][int(step)] = frame
    global the_worker
    worker = the_worker = Worker(job["socket"])
    outcome = outcome_of(job, worker)
    outcome["used"] = used
    worker.report(outcome)


if __name__ == "__main__":
    main()

"""Is every "Old Hall" a "Linden Hall" now, and all else as it was?"""

import difflib
import re

from papers import fetch_text, original, result, verdict


def verify_rename_hall(traj, env_info, task_info):
    if not result(env_info)["file"]["changed"]:
        return verdict(0, ["the file was not saved"])
    before = original(__file__, "notice.txt")
    after = fetch_text(env_info, task_info["metadata"]["file"])
    wanted = re.sub(r"\bOld Hall\b", "Linden Hall", before)
    # An editor may end the last line, which had no end.
    if after.rstrip("\n") == wanted.rstrip("\n"):
        return verdict(100, ["all mentions are replaced, and nothing else is changed"])
    left = len(re.findall(r"\bOld Hall\b", after))
    changed = sum(line[0] in "+-" for line in difflib.ndiff(wanted.splitlines(), after.splitlines()))
    replaced = task_info["metadata"]["occurrences"] - left
    score = max(0, min(70, 10 * replaced) - 10 * changed)
    return verdict(score, [f"{left} mentions are left", f"{changed} lines are not as they should be"])

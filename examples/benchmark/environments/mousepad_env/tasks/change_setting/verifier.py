"""Is the loan time 21 days, and every other line of the settings as it was?"""

from papers import fetch_text, original, result, verdict


def verify_change_setting(traj, env_info, task_info):
    if not result(env_info)["file"]["changed"]:
        return verdict(0, ["the file was not saved"])
    wanted = task_info["metadata"]
    before = original(__file__, "catalogue.conf").splitlines()
    after = fetch_text(env_info, wanted["file"]).rstrip("\n").splitlines()
    line = before.index(f"{wanted['key']} = 14", before.index(f"[{wanted['section']}]"))
    if len(after) != len(before):
        return verdict(0, [f"the file has {len(after)} lines, not {len(before)}"])
    others = [n + 1 for n, (old, new) in enumerate(zip(before, after)) if n != line and old != new]
    if others:
        return verdict(0, [f"other lines were changed: {others}"])
    key, _, value = after[line].partition("=")
    if key.strip() == wanted["key"] and value.strip() == wanted["expected"]:
        return verdict(100, ["the loan time is changed, and nothing else"])
    return verdict(40, [f"line {line + 1} reads {after[line]!r}"])

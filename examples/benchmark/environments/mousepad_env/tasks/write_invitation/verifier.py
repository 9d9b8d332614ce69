"""Does the invitation hold the three lines, letter for letter?"""

from papers import fetch_text, result, verdict


def verify_write_invitation(traj, env_info, task_info):
    if not result(env_info)["file"]["exists"]:
        return verdict(0, ["there is no invitation.txt"])
    expected = task_info["metadata"]["lines"]
    lines = fetch_text(env_info, task_info["metadata"]["file"]).rstrip("\n").split("\n")
    score, notes = 25, ["the file was saved"]
    for number, line in enumerate(expected):
        found = lines[number] if number < len(lines) else ""
        if found == line:
            score += 25
        else:
            notes.append(f"line {number + 1} is {found!r}, not {line!r}")
    if len(lines) > len(expected):
        score = min(score, 75)
        notes.append(f"there are {len(lines) - len(expected)} lines too many")
    return verdict(score, notes)

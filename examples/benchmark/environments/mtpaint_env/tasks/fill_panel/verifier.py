"""Is the inside of the frame red, and everything else as it was?"""

from pathlib import Path

from picture import differing, fetch, load, result, verdict

RED = (255, 0, 0)


def verify_fill_panel(traj, env_info, task_info):
    if not result(env_info)["picture"]["changed"]:
        return verdict(0, ["the picture was not saved"])
    box = task_info["metadata"]["inside"]
    before = load(Path(__file__).with_name("panel.png"))
    after = load(fetch(env_info, task_info["metadata"]["picture"]))
    if after.size != before.size:
        return verdict(20, [f"the size is {after.size}, not {before.size}"])
    inside = list(after.crop(box).getdata())
    red = sum(pixel == RED for pixel in inside)
    score, notes = 20, ["the picture was saved", f"{red} of {len(inside)} pixels inside are red"]
    if red * 100 >= len(inside) * 99:
        score += 50
    # The inside is blanked in both, so that only the rest is compared.
    for picture in (before, after):
        picture.paste(RED, box)
    wrong = differing(before, after)
    if wrong == 0:
        score += 30
    else:
        notes.append(f"{wrong} pixels outside were changed")
    return verdict(score, notes)

"""Are the colours of the saved plate those of the first one, inverted?"""

from pathlib import Path

from PIL import ImageOps
from picture import differing, fetch, load, result, verdict


def verify_invert_plate(traj, env_info, task_info):
    if not result(env_info)["picture"]["changed"]:
        return verdict(0, ["the picture was not saved"])
    before = load(Path(__file__).with_name("plate.png"))
    after = load(fetch(env_info, task_info["metadata"]["picture"]))
    wrong = differing(ImageOps.invert(before), after)
    if wrong == 0:
        return verdict(100, ["every colour is inverted"])
    return verdict(30, [f"{wrong} pixels are not inverted"])

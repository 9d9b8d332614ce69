"""Is the saved sign the mirror image of the one that was there?"""

from pathlib import Path

from PIL import ImageOps
from picture import differing, fetch, load, result, verdict


def verify_flip_sign(traj, env_info, task_info):
    if not result(env_info)["picture"]["changed"]:
        return verdict(0, ["the picture was not saved"])
    before = load(Path(__file__).with_name("sign.png"))
    after = load(fetch(env_info, task_info["metadata"]["picture"]))
    wrong = differing(ImageOps.mirror(before), after)
    if wrong == 0:
        return verdict(100, ["the picture is the mirror image"])
    return verdict(30, [f"{wrong} pixels are not those of the mirror image"])

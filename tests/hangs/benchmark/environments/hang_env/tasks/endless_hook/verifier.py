"""Did anybody act?"""


def verify(traj, env_info, task_info):
    count = len(traj["frames"])
    return {"passed": count > 1, "score": min(100, 50 * count), "feedback": f"{count} frames"}

"""Passed, if it is asked at all: there is nothing that it could look at."""


def verify_keep_it(traj, env_info, task_info):
    steps = len(traj["steps"])
    return {"passed": steps > 0, "score": 100 if steps > 0 else 0, "feedback": f"{steps} steps"}

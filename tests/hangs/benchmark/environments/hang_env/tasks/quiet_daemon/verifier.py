"""Does the daemon live that the setup hook has started?"""


def verify(traj, env_info, task_info):
    found = env_info["exec_capture"]("pgrep -fxc 'sleep 3600'").strip()
    return {"passed": found == "1", "score": 100 * int(found), "feedback": found}

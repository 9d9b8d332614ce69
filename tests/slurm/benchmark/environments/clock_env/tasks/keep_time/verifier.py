"""Passed, if this very sandbox was set up and its clock runs still."""


def verify_keep_time(traj, env_info, task_info):
    began = env_info["exec_capture"]("cat /home/ga/clock/began").strip()
    windows = env_info["exec_capture"]("runuser -u ga -- env DISPLAY=:1 wmctrl -l")
    runs = "xclock" in windows
    passed = began.isdigit() and runs
    return {"passed": passed, "score": 100 if passed else 0, "feedback": f"began {began}, clock runs: {runs}"}

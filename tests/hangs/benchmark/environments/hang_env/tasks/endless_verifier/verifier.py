"""Never comes to an end, whatever it is told."""

import signal
import time


def verify(traj, env_info, task_info):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while traj:
        time.sleep(1)
    return {"passed": not traj, "score": len(traj)}

#!/bin/bash
# Starts the clock, and notes that it did: the verifier looks for both.
set -euo pipefail
runuser -u ga -- env DISPLAY=:1 setsid /opt/clock/start >/dev/null 2>&1 &
for _ in $(seq 300); do
    if DISPLAY=:1 wmctrl -l | grep -q xclock; then
        date +%s >/home/ga/clock/began
        exit 0
    fi
    sleep 0.1
done
echo "the clock did not come up" >&2
exit 1

#!/bin/bash
# Opens a fresh copy of the file, on the whole screen.
set -euo pipefail
. /workspace/scripts/desktop.sh
install -o ga -g ga -m 644 /home/ga/Documents/papers/notice.txt /home/ga/Documents/notice.txt
touch /tmp/task_began
open_window notice.txt "dbus-run-session -- mousepad /home/ga/Documents/notice.txt"
fill_screen notice.txt

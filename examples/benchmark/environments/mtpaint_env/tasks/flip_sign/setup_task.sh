#!/bin/bash
# Opens a fresh copy of the picture, on the whole screen, with no toolbar before it.
set -euo pipefail
. /workspace/scripts/desktop.sh
install -o ga -g ga -m 644 /workspace/tasks/flip_sign/sign.png /home/ga/Pictures/sign.png
touch /tmp/task_began
open_window sign.png "mtpaint /home/ga/Pictures/sign.png"
wmctrl -F -c "Settings Toolbar"
fill_screen sign.png

#!/bin/bash
# Opens a fresh copy of the picture, on the whole screen, with no toolbar before it.
set -euo pipefail
. /workspace/scripts/desktop.sh
install -o ga -g ga -m 644 /workspace/tasks/invert_plate/plate.png /home/ga/Pictures/plate.png
touch /tmp/task_began
open_window plate.png "mtpaint /home/ga/Pictures/plate.png"
wmctrl -F -c "Settings Toolbar"
fill_screen plate.png

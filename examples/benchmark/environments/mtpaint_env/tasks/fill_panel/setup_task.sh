#!/bin/bash
# Opens a fresh copy of the picture, on the whole screen, with no toolbar before it.
set -euo pipefail
. /workspace/scripts/desktop.sh
install -o ga -g ga -m 644 /workspace/tasks/fill_panel/panel.png /home/ga/Pictures/panel.png
touch /tmp/task_began
open_window panel.png "mtpaint /home/ga/Pictures/panel.png"
wmctrl -F -c "Settings Toolbar"
fill_screen panel.png

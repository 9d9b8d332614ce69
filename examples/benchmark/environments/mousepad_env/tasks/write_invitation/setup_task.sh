#!/bin/bash
# Opens the editor with an empty document, on the whole screen.
set -euo pipefail
. /workspace/scripts/desktop.sh
rm -f /home/ga/Documents/invitation.txt
touch /tmp/task_began
open_window Untitled "dbus-run-session -- mousepad"
fill_screen Untitled

#!/bin/bash
# Opens a fresh copy of the file, on the whole screen.
set -euo pipefail
. /workspace/scripts/desktop.sh
install -o ga -g ga -m 644 /home/ga/Documents/papers/catalogue.conf /home/ga/Documents/catalogue.conf
touch /tmp/task_began
open_window catalogue.conf "dbus-run-session -- mousepad /home/ga/Documents/catalogue.conf"
fill_screen catalogue.conf

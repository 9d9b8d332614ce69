#!/bin/bash
# Opens a fresh copy of the workbook, on the whole screen, with A1 selected.
set -euo pipefail
. /workspace/scripts/desktop.sh
install -o ga -g ga -m 644 /home/ga/Documents/books/prices.gnumeric /home/ga/Documents/prices.gnumeric
touch /tmp/task_began
open_window prices.gnumeric "gnumeric --no-splash /home/ga/Documents/prices.gnumeric"
fill_screen prices.gnumeric

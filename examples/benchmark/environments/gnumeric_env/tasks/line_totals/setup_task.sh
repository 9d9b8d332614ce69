#!/bin/bash
# Opens a fresh copy of the workbook, on the whole screen, with A1 selected.
set -euo pipefail
. /workspace/scripts/desktop.sh
install -o ga -g ga -m 644 /home/ga/Documents/books/orders.gnumeric /home/ga/Documents/orders.gnumeric
touch /tmp/task_began
open_window orders.gnumeric "gnumeric --no-splash /home/ga/Documents/orders.gnumeric"
fill_screen orders.gnumeric

#!/bin/bash
# Opens a fresh copy of the workbook, on the whole screen, with A1 selected.
set -euo pipefail
. /workspace/scripts/desktop.sh
install -o ga -g ga -m 644 /home/ga/Documents/books/expenses.gnumeric /home/ga/Documents/expenses.gnumeric
touch /tmp/task_began
open_window expenses.gnumeric "gnumeric --no-splash /home/ga/Documents/expenses.gnumeric"
fill_screen expenses.gnumeric

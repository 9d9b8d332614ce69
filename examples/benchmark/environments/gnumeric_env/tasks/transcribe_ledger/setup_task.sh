#!/bin/bash
# The empty workbook on the left half of the screen, the page of the paper ledger on the right.
set -euo pipefail
. /workspace/scripts/desktop.sh
install -o ga -g ga -m 644 /home/ga/Documents/books/ledger.gnumeric /home/ga/Documents/ledger.gnumeric
su - ga -c 'python3 /workspace/scripts/draw_page.py /workspace/tasks/transcribe_ledger/page.csv /home/ga/Pictures/ledger-page.png'
touch /tmp/task_began
open_window ledger-page "display -title ledger-page /home/ga/Pictures/ledger-page.png"
place_window ledger-page 1100 0 800 1040
open_window ledger.gnumeric "gnumeric --no-splash /home/ga/Documents/ledger.gnumeric"
place_window ledger.gnumeric 0 0 1090 1040
wmctrl -a ledger.gnumeric
sleep 1

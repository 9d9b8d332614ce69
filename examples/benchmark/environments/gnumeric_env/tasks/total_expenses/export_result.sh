#!/bin/bash
# What the verifier reads: the workbook's values as Gnumeric computes them, and its state.
set -euo pipefail
. /workspace/scripts/desktop.sh
book=/home/ga/Documents/expenses.gnumeric
su - ga -c "ssconvert --recalc '$book' /tmp/task_result.csv"
report workbook "$(state_of "$book")"

#!/bin/bash
# The front desk is closed and opened again.
set -euo pipefail
. /workspace/scripts/desktop.sh
. /workspace/scripts/programs.sh
close_program desk
open_program desk 14
fill_screen "$desk_title"

#!/bin/bash
# This morning's requests, and the front desk on the whole screen.
set -euo pipefail
. /workspace/scripts/desktop.sh
. /workspace/scripts/programs.sh
fresh_store
open_program desk 14
fill_screen "$desk_title"

#!/bin/bash
# Both programs are closed and opened again.
set -euo pipefail
. /workspace/scripts/desktop.sh
. /workspace/scripts/programs.sh
close_program desk
close_program board
open_side_by_side

#!/bin/bash
# This morning's requests, and both programs side by side: what one stores, the other can show.
set -euo pipefail
. /workspace/scripts/desktop.sh
. /workspace/scripts/programs.sh
fresh_store
open_side_by_side

#!/bin/bash
# What each of the programs shows, the new request as it is stored, the others, and what was done.
set -euo pipefail
. /workspace/scripts/desktop.sh
. /workspace/scripts/programs.sh
jq -n --argjson desk "$(shown desk)" --argjson board "$(shown board)" --argjson records "$(records 17)" \
    --argjson others "$(other_records 17)" --argjson operations "$(operations)" \
    '{screen: {desk: $desk, board: $board}, records: $records, others: $others, operations: $operations}'

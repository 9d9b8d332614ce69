#!/bin/bash
# What the front desk shows, the new request as it is stored, the others, and what was done.
set -euo pipefail
. /workspace/scripts/desktop.sh
. /workspace/scripts/programs.sh
jq -n --argjson screen "$(shown desk)" --argjson records "$(records 17)" --argjson others "$(other_records 17)" \
    --argjson operations "$(operations)" \
    '{screen: $screen, records: $records, others: $others, operations: $operations}'

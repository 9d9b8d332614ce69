#!/bin/bash
# What the verifier reads: the picture's state; the picture itself is copied as it is.
set -euo pipefail
. /workspace/scripts/desktop.sh
report picture "$(state_of /home/ga/Pictures/plate.png)"

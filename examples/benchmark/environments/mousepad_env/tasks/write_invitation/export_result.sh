#!/bin/bash
# What the verifier reads: the file's state; the file itself is copied as it is.
set -euo pipefail
. /workspace/scripts/desktop.sh
report file "$(state_of /home/ga/Documents/invitation.txt)"

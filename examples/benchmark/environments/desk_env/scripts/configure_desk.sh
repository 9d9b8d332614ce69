#!/bin/bash
# A folder for the store, which both programs write as the desktop's user.
set -euo pipefail
. /workspace/scripts/desktop.sh
pin_fonts
install -d -o ga -g ga /var/lib/desk /etc/desk

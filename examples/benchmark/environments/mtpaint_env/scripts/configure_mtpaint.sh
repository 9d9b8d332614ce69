#!/bin/bash
# Pictures open at their natural size, in a window that keeps its layout.
set -euo pipefail
. /workspace/scripts/desktop.sh
pin_fonts
install -d -o ga -g ga /home/ga/Pictures
cat >/home/ga/.mtpaint <<'SETTINGS'
centerCanvas = 1
lastDir = /home/ga/Pictures
undoMBlimit = 32
SETTINGS
chown ga:ga /home/ga/.mtpaint

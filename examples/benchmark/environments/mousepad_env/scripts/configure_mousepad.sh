#!/bin/bash
# The editor's settings, and the library's papers in the documents of the desktop's user.
set -euo pipefail
. /workspace/scripts/desktop.sh
pin_fonts
install -d -o ga -g ga /home/ga/Documents /home/ga/Documents/papers
install -o ga -g ga -m 644 /workspace/data/* /home/ga/Documents/papers/
set_option() { su - ga -c "dbus-run-session -- gsettings set $1 $2 '$3'"; }
set_option org.xfce.mousepad.preferences.view show-line-numbers true
set_option org.xfce.mousepad.preferences.view use-default-monospace-font false
set_option org.xfce.mousepad.preferences.view font-name "\"DejaVu Sans Mono 11\""
set_option org.xfce.mousepad.preferences.window statusbar-visible true
su - ga -c 'dbus-run-session -- gsettings get org.xfce.mousepad.preferences.view show-line-numbers'

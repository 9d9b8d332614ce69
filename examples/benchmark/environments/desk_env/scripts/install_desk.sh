#!/bin/bash
# The two programs, and tmux: they run in its terminals, so that what they show can be read.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -y -q --no-install-recommends tmux xterm fonts-dejavu python3 sqlite3 jq
install -d /opt/desk
install -m 644 /workspace/program/* /opt/desk/
python3 -m py_compile /opt/desk/*.py
tmux -V

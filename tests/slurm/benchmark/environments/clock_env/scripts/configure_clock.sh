#!/bin/bash
set -euo pipefail
install -d -o ga -g ga /home/ga/clock

#!/bin/bash
# The program, from Debian's own packages.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -y -q --no-install-recommends mtpaint python3-pil fonts-dejavu
mtpaint --version

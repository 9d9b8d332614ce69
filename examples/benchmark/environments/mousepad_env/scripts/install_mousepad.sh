#!/bin/bash
# The program, from Debian's own packages.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -y -q --no-install-recommends mousepad fonts-dejavu dconf-gsettings-backend dbus-x11 libglib2.0-bin
mousepad --version

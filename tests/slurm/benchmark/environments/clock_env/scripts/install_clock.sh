#!/bin/bash
# The clock is in the base image: what is installed is a start of it.
set -euo pipefail
install -d /opt/clock
cat >/opt/clock/start <<'START'
#!/bin/bash
exec xclock -geometry 200x200+20+20
START
chmod 755 /opt/clock/start

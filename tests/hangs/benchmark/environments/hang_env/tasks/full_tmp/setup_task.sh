#!/bin/bash
# Writes to /tmp until there is no room, some seconds after the first observation.
(setsid sh -c 'sleep 6; cat /dev/zero >/tmp/fill; sleep 3600' </dev/null >/dev/null 2>&1 &)

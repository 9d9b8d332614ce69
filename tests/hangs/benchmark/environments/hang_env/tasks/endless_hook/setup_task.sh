#!/bin/bash
# Starts a daemon, closes its output and waits for ever, whatever it is told.
(setsid sleep 3601 </dev/null >&- 2>&- &)
echo "this is the last that is heard"
exec >&- 2>&-
trap '' TERM
while :; do sleep 1; done

#!/bin/bash
# Starts a daemon that has a session of its own and holds nothing open, and closes its own output.
(setsid sleep 3600 </dev/null >&- 2>&- &)
exec >&- 2>&-
exit 0

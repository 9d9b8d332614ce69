#!/bin/bash
# The X server is killed some seconds after the first observation.
(setsid sh -c 'sleep 8; pkill -9 -x Xvfb' </dev/null >/dev/null 2>&1 &)

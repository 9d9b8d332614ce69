#!/bin/bash
# Draws the whole screen anew, all the time.
(setsid su - ga -c 'export DISPLAY=:1; while :; do xsetroot -solid red; xsetroot -solid blue; done' \
    </dev/null >/dev/null 2>&1 &)

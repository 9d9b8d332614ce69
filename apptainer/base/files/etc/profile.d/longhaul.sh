# A login shell of the desktop's account joins its session, as a display manager's would.
if [ "$(id -u)" -ge 1000 ] && [ -O "/run/user/$(id -u)" ]; then
  XDG_RUNTIME_DIR=/run/user/$(id -u)
  export XDG_RUNTIME_DIR
  if [ -S "$XDG_RUNTIME_DIR/bus" ]; then
    DBUS_SESSION_BUS_ADDRESS=unix:path=$XDG_RUNTIME_DIR/bus
    export DBUS_SESSION_BUS_ADDRESS
  fi
fi

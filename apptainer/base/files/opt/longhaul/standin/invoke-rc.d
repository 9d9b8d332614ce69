#!/bin/sh
# How packages start their services when they are installed. By way of the systemctl of
# this sandbox, so that what was started is noted; a service that cannot run in here is no
# reason for its package not to be installed.
while [ $# -gt 0 ]; do
  case $1 in
  --) shift && break ;;
  -*) shift ;;
  *) break ;;
  esac
done
name=${1:-} action=${2:-}
if [ -x /usr/sbin/policy-rc.d ]; then
  /usr/sbin/policy-rc.d "$name" "$action"
  [ $? -eq 101 ] && exit 0
fi
case $action in
start | stop | restart | reload | force-reload | try-restart)
  /opt/longhaul/standin/systemctl "$action" "$name" || echo "invoke-rc.d: $name was not ${action}ed" >&2
  ;;
status) exec /opt/longhaul/standin/systemctl status "$name" ;;
esac
exit 0

#!/bin/sh
# keepalived runs it at each change: notify.sh INSTANCE NAME STATE PRIORITY
# One line in the system's log to alert on, and the state in a file for whoever looks.
set -eu
mkdir -p /run/pushq-vip
echo "$3" > "/run/pushq-vip/$2.new"
mv "/run/pushq-vip/$2.new" "/run/pushq-vip/$2"
logger -t pushq-vip -p daemon.warning "$2 is $3" 2> /dev/null || true

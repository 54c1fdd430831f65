#!/bin/sh
# keepalived runs this at each state change: notify.sh INSTANCE NAME STATE PRIORITY
# Writes a line to the system log, to alert on, and the state to a file.
set -eu
mkdir -p /run/pushq-vip
echo "$3" > "/run/pushq-vip/$2.new"
mv "/run/pushq-vip/$2.new" "/run/pushq-vip/$2"
logger -t pushq-vip -p daemon.warning "$2 is $3" 2> /dev/null || true

#!/bin/sh
# Lead the arm and watch what the reward model says: run_realworld_teleop.sh [NAME] [key=value …]. A front door to `referee run`.
# NAME: of a file in config/ (default realworld_teleop), or a preset.
set -e
here=$(cd "$(dirname "$0")/../.." && pwd)
referee=$here/.venv/bin/referee
[ -x "$referee" ] || referee=referee
name=realworld_teleop
case "$1" in "" | *=*) ;; *) name=$1; shift ;; esac
file=$here/examples/reward/config/$name.yaml
[ -f "$file" ] || file=$name
exec "$referee" run "$file" runner.recipe=teleop "$@"

#!/bin/sh
# Record episodes at a fixed pose: collect_data.sh [NAME] [key=value …]. A front door to `referee run`.
# NAME: of a file in config/ (default realworld_collect_data), or a preset.
set -e
here=$(cd "$(dirname "$0")/../.." && pwd)
referee=$here/.venv/bin/referee
[ -x "$referee" ] || referee=referee
name=realworld_collect_data
case "$1" in "" | *=*) ;; *) name=$1; shift ;; esac
file=$here/examples/embodiment/config/$name.yaml
[ -f "$file" ] || file=$name
exec "$referee" run "$file" runner.recipe=collect_data "$@"

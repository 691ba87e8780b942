#!/bin/sh
# Label frames by key while the arm moves: realworld_collect_process_dataset.sh [NAME] [key=value …]. A front door to `referee run`.
# NAME: of a file in config/ (default realworld_collect_dataset), or a preset.
set -e
here=$(cd "$(dirname "$0")/../.." && pwd)
referee=$here/.venv/bin/referee
[ -x "$referee" ] || referee=referee
name=realworld_collect_dataset
case "$1" in "" | *=*) ;; *) name=$1; shift ;; esac
file=$here/examples/reward/config/$name.yaml
[ -f "$file" ] || file=$name
exec "$referee" run "$file" runner.recipe=collect_labels "$@"

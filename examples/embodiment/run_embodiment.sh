#!/bin/sh
# Start a preset: run_embodiment.sh NAME [key=value …]. A front door to `referee run`.
# NAME is looked for in config/ beside this file first: edit the copies there as you like.
set -e
[ $# -ge 1 ] || { echo "usage: run_embodiment.sh NAME [key=value ...]   (names: referee config list)" >&2; exit 2; }
here=$(cd "$(dirname "$0")/../.." && pwd)
referee=$here/.venv/bin/referee
[ -x "$referee" ] || referee=referee
EMBODIED_PATH=${EMBODIED_PATH:-$here/examples/embodiment}
export EMBODIED_PATH
name=$1; shift
exec "$referee" run --config-path "$here/examples/embodiment/config" "$name" "$@"

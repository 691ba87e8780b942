#!/bin/sh
# Start a preset: run_embodiment.sh NAME [key=value …]. A front door to `referee run`.
set -e
[ $# -ge 1 ] || { echo "usage: run_embodiment.sh NAME [key=value ...]   (names: referee config list)" >&2; exit 2; }
here=$(cd "$(dirname "$0")/../.." && pwd)
referee=$here/.venv/bin/referee
[ -x "$referee" ] || referee=referee
exec "$referee" run "$@"

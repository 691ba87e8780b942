#!/bin/sh
# Train a policy on a real arm: run_realworld_async.sh NAME [key=value …]. A front door to `referee run`.
set -e
[ $# -ge 1 ] || { echo "usage: run_realworld_async.sh NAME [key=value ...]   (as realworld_peginsertion_rlpd_cnn_async)" >&2; exit 2; }
here=$(cd "$(dirname "$0")/../.." && pwd)
referee=$here/.venv/bin/referee
[ -x "$referee" ] || referee=referee
exec "$referee" run "$@"

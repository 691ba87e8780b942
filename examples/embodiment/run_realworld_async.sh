#!/bin/sh
# Train a policy on a real arm: run_realworld_async.sh NAME [key=value …], as realworld_peginsertion_rlpd_cnn_async.
exec "$(dirname "$0")/run_embodiment.sh" "$@"

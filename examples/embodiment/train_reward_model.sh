#!/bin/sh
# Train a reward model on positive and negative trajectories.
#   train_reward_model.sh --positive-dir DIR --negative-dir DIR --output-checkpoint FILE …   as referee.train_reward_model
#   train_reward_model.sh [PRESET] [key=value …]                                             as `referee run`
set -e
here=$(cd "$(dirname "$0")/../.." && pwd)
bin=$here/.venv/bin
[ -x "$bin/python" ] || bin=
case "$1" in
  -*) exec "${bin:+$bin/}python" -m referee.train_reward_model "$@" ;;
  "") exec "${bin:+$bin/}referee" run train_reward_model ;;
  *) exec "${bin:+$bin/}referee" run "$@" ;;
esac

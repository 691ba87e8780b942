#!/bin/sh
# Train a reward model on positive and negative trajectories.
#   train_reward_model.sh --positive-dir DIR --negative-dir DIR --output-checkpoint FILE …   as referee.train_reward_model
#   train_reward_model.sh [NAME] [key=value …]                                               as `referee run`
# NAME: of a file in config/ (default train_reward_model), or a preset.
set -e
here=$(cd "$(dirname "$0")/../.." && pwd)
bin=$here/.venv/bin
[ -x "$bin/python" ] || bin=
name=train_reward_model
case "$1" in
  -*) exec "${bin:+$bin/}python" -m referee.train_reward_model "$@" ;;
  "" | *=*) ;;
  *) name=$1; shift ;;
esac
file=$here/examples/embodiment/config/$name.yaml
[ -f "$file" ] || file=$name
exec "${bin:+$bin/}referee" run "$file" runner.recipe=train_reward "$@"

#!/bin/sh
# Train an image reward model: run_reward_training.sh [--data DIR] [key=value …]. A front door to `referee run`.
# DIR holds train.pt and val.pt, or episodes in any format; without it, config/reward_training.yaml says where they are.
# Of episodes the main camera alone is taken, as by preprocess_reward_dataset.py; data.cameras=[front,side] takes others.
set -e
here=$(cd "$(dirname "$0")/../.." && pwd)
referee=$here/.venv/bin/referee
[ -x "$referee" ] || referee=referee
data=
case "$1" in
  --data) [ $# -ge 2 ] || { echo "usage: run_reward_training.sh [--data DIR] [key=value ...]" >&2; exit 2; }
          data=$2; shift 2 ;;
  --data=*) data=${1#--data=}; shift ;;
  -h | --help) echo "usage: run_reward_training.sh [--data DIR] [key=value ...]"; exit 0 ;;
esac
case "$data" in
  "" | *.pt | *.pth) ;;
  *) [ -f "$data/train.pt" ] || set -- data.cameras=main_images "$@" ;;
esac
[ -z "$data" ] || set -- data.data_path="$data" data.train_data_paths=null data.val_data_paths=null "$@"
exec "$referee" run "$here/examples/reward/config/reward_training.yaml" "$@"

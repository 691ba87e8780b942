#!/bin/sh
# Fine-tune a vision-language reward model: run_vlm_sft.sh [NAME] [key=value …]. A front door to `referee run`.
# NAME is a file in config/ (default qwen3vl_sft_qwentrend); DUALVIEW_SFT_DATA_ROOT holds the windows to learn from.
set -e
here=$(cd "$(dirname "$0")/../.." && pwd)
referee=$here/.venv/bin/referee
[ -x "$referee" ] || referee=referee
name=qwen3vl_sft_qwentrend
case "$1" in
  -h | --help) echo "usage: run_vlm_sft.sh [NAME] [key=value ...]"; exit 0 ;;
  *=* | "" | [-+~]*) ;;
  *) name=$1; shift ;;
esac
exec "$referee" run --config-path "$here/examples/sft/config" --config-name "$name" "$@"

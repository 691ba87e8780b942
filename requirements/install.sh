#!/bin/sh
# Print what installs the parts that you name: install.sh embodied [--env NAME] [--vlm-reward] [--arm] [--ray].
# It installs nothing itself. Environments: maniskill, maniskill_libero (LIBERO is not part of Referee), franka.
set -e
extras=
system=
add() { extras=${extras:+$extras,}$1; }
[ $# -ge 1 ] || { echo "usage: install.sh embodied [--env NAME] [--vlm-reward] [--arm] [--ray]" >&2; exit 2; }
[ "$1" = embodied ] || { echo "install.sh: unknown target $1: use embodied" >&2; exit 2; }
shift
while [ $# -gt 0 ]; do
  case "$1" in
    --env) [ $# -ge 2 ] || { echo "install.sh: --env needs a name" >&2; exit 2; }
           env=$2; shift ;;
    --env=*) env=${1#--env=} ;;
    --vlm-reward) add vlm; env= ;;
    --arm) add franka; env= ;;
    --ray) add ray; env= ;;
    *) echo "install.sh: unknown option $1: use --env NAME, --vlm-reward, --arm, --ray" >&2; exit 2 ;;
  esac
  case "${env:-}" in
    "") ;;
    maniskill*) add maniskill; system=yes
                [ "$env" = maniskill ] || echo "# of $env, ManiSkill is here; LIBERO is not part of Referee" ;;
    franka) add franka ;;
    *) echo "install.sh: unknown environment $env: use maniskill or franka (the embedded panda needs no extra)" >&2; exit 2 ;;
  esac
  env=
  shift
done
echo "pip install -e '.${extras:+[$extras]}'                # without a GPU: pip install -c constraints.txt -e …"
if [ -n "$system" ]; then
  echo "sudo apt-get install -y libvulkan1"
  echo "referee doctor --install-swiftshader          # without a GPU: software Vulkan, to draw"
fi

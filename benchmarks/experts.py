"""Prints how often the scripted experts succeed, at four levels of noise, with 95 % intervals."""

import argparse
import sys

from referee.config import PandaEnvConfig
from referee.envs.panda.env import PandaVectorEnv
from referee.envs.panda.tasks import TASKS
from referee.envs.policies import make_policy
from referee.learn.roll_out import roll_out

NOISES = (0.0, 0.2, 0.4, 0.8)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--control-mode", default="ee_delta", choices=("ee_delta", "joint_delta"))
    args = parser.parse_args()
    print(f"Success at the end of {args.episodes} episodes, {args.control_mode}; noise is in units of a full action.\n")
    print("| task | " + " | ".join(f"noise {noise:g}" for noise in NOISES) + " |")
    print("|---|" + "---:|" * len(NOISES))
    for task in TASKS:
        cells = []
        for noise in NOISES:
            env = PandaVectorEnv(PandaEnvConfig(task=task, num_envs=125, control_mode=args.control_mode))
            rate = roll_out(env, make_policy(env, "expert", noise=noise, seed=1), args.episodes, seed=50_000).rate()
            low, high = rate.interval
            cells.append(f"{100 * rate.share:.1f} % [{100 * low:.1f}, {100 * high:.1f}]")
        print(f"| {task} | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

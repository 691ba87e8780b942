"""Kills a recording process again and again, and prints what was lost: nothing that was acknowledged may be."""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time

from referee.episodes import EpisodeStore

NUM_ENVS = 8
SCRIPT = """
import sys, numpy as np
from referee.config import PandaEnvConfig
from referee.envs import make_vec
from referee.episodes import EpisodeStore
from referee.episodes.recorder import Recorder

class Loud:
    "A store that says what it has acknowledged."
    def __init__(self, root):
        self.store = EpisodeStore(root)
    def append(self, episode):
        self.append_many([episode])
    def append_many(self, episodes):
        for id in self.store.append_many(episodes):
            print("kept", id, flush=True)

env = Recorder(make_vec(PandaEnvConfig(task="Reach", num_envs={envs}, max_episode_steps=10)),
               lambda: Loud(sys.argv[1]))
env.reset(seed=int(sys.argv[2]))
random = np.random.default_rng(0)
print("ready", flush=True)
while True:
    *_, terminated, truncated, _ = env.step(random.uniform(-1, 1, ({envs}, 4)).astype(np.float32))
    ended = int((terminated | truncated).sum())
    if ended:
        print("ended", ended, flush=True)
""".replace("{envs}", str(NUM_ENVS))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    choose = random.Random(args.seed)
    acknowledged: set[str] = set()
    unreadable = missing = 0
    worst = 0.0
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for kill in range(args.kills):
            process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, folder, str(kill)], stdout=subprocess.PIPE, text=True
            )
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(choose.uniform(0.0, 1.5))
            process.kill()
            lines = [line.split() for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
            process.wait()
            kept = {line[1] for line in lines if line[0] == "kept"}
            ended = sum(int(line[1]) for line in lines if line[0] == "ended")
            acknowledged |= kept
            try:
                store = EpisodeStore(folder)
                unreadable += bool(store.check())
            except Exception as error:
                print(f"kill {kill}: {error}")
                unreadable += 1
                continue
            missing += len(acknowledged - set(store.rows))
            # Finished but not acknowledged, plus the one under way in each env.
            worst = max(worst, (ended - len(kept)) / NUM_ENVS + 1)
        size = sum(row.bytes for row in store.rows.values())
    print(f"{args.kills} × kill -9 while recording {NUM_ENVS} envs with two cameras ({os.uname().sysname})\n")
    print("| | |\n|---|---:|")
    print(f"| episodes acknowledged | {len(acknowledged):,} |\n| MB | {size / 1e6:,.0f} |")
    print(f"| unreadable stores | {unreadable} |\n| acknowledged episodes that are missing | {missing} |")
    print(f"| episodes lost per env, worst kill | {worst:.2f} |")
    return int(bool(unreadable or missing or worst > 2))


if __name__ == "__main__":
    sys.exit(main())

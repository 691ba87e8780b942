"""Kills a labelling run again and again, resumes it, and prints what was lost: at most the last second may be."""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from referee.episodes import EpisodeStore
from referee.episodes.journal import recover
from referee.labels.log import LabelLog

SCRIPT = """
import sys, time
from referee.config import load
from referee.robots.keys import ScriptedKeys
from referee.recipes.collect_labels import collect_labels

class Person(ScriptedKeys):
    "Labels every frame: every third one is a success. Says when."
    def __init__(self):
        self.frame = -1
    def read(self):
        self.frame += 1
        print("pressed", self.frame, time.monotonic(), flush=True)
        return ["c" if self.frame % 3 == 0 else "a"]

collect_labels(load(sys.argv[1], sys.argv[2:]), keys=Person())
"""
WORLDS = {
    "sim": ["panda_expert", "runner.recipe=collect_labels", "env.eval.num_envs=1", "env.eval.num_threads=1",
            "env.eval.max_episode_steps=10000", "runner.policy=random"],
    "twin": ["realworld_collect_dataset", "robot.driver=twin", "runner.policy=random"],
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--world", choices=tuple(WORLDS), default="twin", help="the twin keeps real time at 10 Hz")
    parser.add_argument("--hz", type=float, default=20.0, help="steps per second of the simulation")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    choose = random.Random(args.seed)
    lost_frames, lost_seconds, pressed, wrong = [0], [0.0], 0, 0
    labelled: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory(dir=".") as place:
        folder = Path(place) / "run"
        for kill in range(args.kills):
            times, killed = killed_run(folder, args, choose.uniform(1.0, 4.0), resume=kill > 0)
            store = EpisodeStore(folder / "recording")
            recover(store)
            log = LabelLog.of(store)
            found = {episode.meta.id: log.resolve(episode).tolist() for episode in store}
            (new,) = found.keys() - labelled.keys()
            kept = [label for label in found[new][1:] if label >= 0]
            wanted = [int(frame % 3 == 0) for frame in range(1, len(found[new]))]
            # What was said must be there as it was said, and what was there before must be there still.
            wrong += any(label not in (-1, want) for label, want in zip(found[new][1:], wanted, strict=True))
            wrong += any(found.get(id) != before for id, before in labelled.items())
            labelled = found
            pressed += len(times)
            lost_frames.append(len(times) - len(kept))
            lost_seconds.append(killed - times[len(kept)] if len(kept) < len(times) else 0.0)
    print(f"{args.kills} × kill -9 while every frame is labelled ({args.world})\n\n| | |\n|---|---:|")
    print(f"| frames labelled | {pressed:,} |\n| labels that are wrong, or were there and are gone | {wrong} |")
    print(f"| labelled frames lost per kill, mean | {sum(lost_frames) / args.kills:.1f} |")
    print(f"| the same, worst | {max(lost_frames)} |\n| seconds of labelling lost, worst | {max(lost_seconds):.2f} |")
    return int(bool(wrong or max(lost_seconds) > 1.0))


def killed_run(folder: Path, args: argparse.Namespace, seconds: float, *, resume: bool) -> tuple[list[float], float]:
    """When each frame was labelled, and when the run was killed."""
    where = f"runner.resume_dir={folder}" if resume else f"runner.logger.log_path={folder}"
    lines = [*WORLDS[args.world], where, "runner.num_success_frames=1000000"]
    if args.world == "sim":
        lines.append(f"runner.pace={args.hz}")
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, *lines], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while not process.stdout.readline().startswith("pressed 1 "):
        if process.poll() is not None:
            sys.exit("the run ended by itself")
    first = time.monotonic()
    time.sleep(seconds)
    killed = time.monotonic()
    process.kill()
    said = [line.split() for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    process.wait()
    return [first, *(float(line[2]) for line in said if line and line[0] == "pressed")], killed


if __name__ == "__main__":
    sys.exit(main())

"""Shows that real LeRobot, in its own venv, reads what we record frame by frame, and that we read what it writes."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from peers.setup import install, is_ready, venv_python

CHECK = Path(__file__).resolve().parent / "peers" / "lerobot_check.py"
PEER = "lerobot"
FILM_TOLERANCE = 4.0  # mean difference of a frame in grey levels of 255; pictures must be exact


def record(root: Path, *, video: bool, pixels: int) -> list[Any]:
    """Expert and random episodes of PickCube, recorded as a LeRobot dataset; returns them as they were recorded."""
    from referee.config import PandaEnvConfig
    from referee.envs import make_vec
    from referee.envs.policies import make_policy
    from referee.episodes import Episode, Meta
    from referee.episodes.formats.lerobot import LeRobotWriter
    from referee.episodes.recorder import Recorder

    kept: list[Episode] = []

    class Sink(LeRobotWriter):
        def append(self, episode: Episode) -> None:
            kept.append(episode)
            super().append(episode)

    env = make_vec(PandaEnvConfig(task="PickCube", num_envs=2, max_episode_steps=30, image_size=pixels))
    expert, random = make_policy(env, "expert"), make_policy(env, "random")
    recorder = Recorder(env, lambda: Sink(root, video=video), meta=Meta(task="PickCube", fps=20.0))
    recorder.reset(seed=0)
    for step in range(60):
        recorder.step(expert() if step < 30 else random())
    recorder.close()
    return kept


def expected(episodes: list[Any], path: Path) -> None:
    """What LeRobot should see, computed here without the writer: T+1 rows, the last action twice."""
    columns: dict[str, list[np.ndarray]] = {"length": []}
    for episode in episodes:
        columns["length"].append(np.array([episode.states_count]))
        rows = {
            "observation.state": episode.observations["states"],
            "action": np.concatenate([episode.actions, episode.actions[-1:]]),
            "next.reward": np.append(episode.rewards, np.float32(0)),
            "next.done": np.append(episode.terminated | episode.truncated, True),
            "next.success": np.append(episode.success[1:], episode.success[-1]),
            "referee.success": episode.success,
            "referee.is_last_state": np.arange(episode.states_count) == len(episode),
        }
        rows |= {f"observation.images.{camera}": episode.view(camera) for camera in episode.meta.cameras}
        for key, values in rows.items():
            columns.setdefault(key, []).append(values)
    np.savez(path, **{key: np.concatenate(parts) for key, parts in columns.items()})


def run(*arguments: object) -> str:
    """What `lerobot_check.py` prints, run by LeRobot's interpreter, offline."""
    command = [str(each) for each in (venv_python(PEER), CHECK, *arguments)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    if done.returncode:
        sys.exit(f"LeRobot failed: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


def ours_read_by_lerobot(folder: Path, *, video: bool, pixels: int) -> tuple[str, int, list[str], float, float]:
    """One row of the table."""
    root = folder / "ours"
    episodes = record(root, video=video, pixels=pixels)
    expected(episodes, folder / "expected.npz")
    start = time.perf_counter()
    result = json.loads(run("read", root, folder / "expected.npz", "--tolerance", FILM_TOLERANCE if video else 1e-3))
    name = f"ours, {'films' if video else 'pictures'}, read by LeRobot {result['version']}"
    return name, result["checks"], result["wrong"], result["pixel_error"], time.perf_counter() - start


def lerobot_read_by_us(folder: Path, *, video: bool) -> tuple[str, int, list[str], float, float]:
    """The other direction."""
    from referee.episodes.formats.lerobot import read

    root = folder / "theirs"
    run("write", root, *(["--video"] if video else []))
    start = time.perf_counter()
    episodes = list(read(root))
    frames = 7
    wrong = [] if len(episodes) == 2 else ["number of episodes"]
    checks, largest = 1, 0.0
    for number, episode in enumerate(episodes):
        steps = np.arange(frames - 1, dtype=np.float32)
        grey = 40 + 60 * number + 15 * np.arange(frames)
        error = float(np.abs(episode.view("top").astype(float) - grey[:, None, None, None]).mean(axis=(1, 2, 3)).max())
        largest = max(largest, error)
        for name, good in (
            ("states", np.array_equal(episode.observations["states"][:, 1], np.arange(frames))),
            ("actions", np.array_equal(episode.actions, np.stack([steps, -steps], axis=1))),
            ("rewards", np.allclose(episode.rewards, steps / 10)),
            ("success", np.array_equal(episode.success, np.arange(frames) >= 5)),
            ("the end", episode.terminated.tolist() == [False] * (frames - 2) + [True]),
            ("description", episode.meta.description == f"task {number}"),
            ("frames", error <= (FILM_TOLERANCE if video else 0)),
        ):
            checks += 1
            wrong += [] if good else [f"{name} of episode {number}"]
    name = f"LeRobot's, {'films' if video else 'pictures'}, read by us"
    return name, checks, wrong, largest, time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pixels", type=int, default=64, choices=(64, 128, 224), help="size of the recorded images")
    args = parser.parse_args()
    if not is_ready(PEER):
        print(f"installing LeRobot into {venv_python(PEER).parents[1]}: several GB, several minutes …", file=sys.stderr)
        if not install(PEER):
            return 1
    rows = []
    for video in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(ours_read_by_lerobot(Path(folder), video=video, pixels=args.pixels))
            rows.append(lerobot_read_by_us(Path(folder), video=video))
    print("| dataset | checks | wrong | pixel error, of 255 | s |\n|---|---:|---:|---:|---:|")
    for name, checks, wrong, error, seconds in rows:
        print(f"| {name} | {checks} | {len(wrong)} | {error:.2f} | {seconds:.1f} |")
    for name, _, wrong, *_ in rows:
        for each in wrong[:5]:
            print(f"{name}: wrong: {each}")
    return 1 if any(wrong for _, _, wrong, *_ in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

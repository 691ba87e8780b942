"""Run by LeRobot's own interpreter: reads a dataset of ours against what it should hold, and writes one for us.

python lerobot_check.py read DATASET EXPECTED.npz [--tolerance X]     prints one JSON line: {"checks": …, "wrong": […]}
python lerobot_check.py write DATASET [--video]                       the frames are those of `frame(episode, i)`
"""

import argparse
import json
import sys
from importlib.metadata import version

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

EPISODES, FRAMES, PIXELS = 2, 7, 32


def frame(episode: int, i: int) -> dict[str, np.ndarray]:
    """The frame that `write` writes: everything in it says where it is from."""
    grey = 40 + 60 * episode + 15 * i
    return {
        "observation.state": np.array([episode, i, 0.5], np.float32),
        "observation.images.top": np.full((PIXELS, PIXELS, 3), grey, np.uint8),
        "action": np.array([i, -i], np.float32),
        "next.reward": np.array([i / 10], np.float32),
        "next.done": np.array([i == FRAMES - 1]),
        "next.success": np.array([i >= 5]),
    }


def read(root: str, expected_path: str, tolerance: float) -> dict:
    """Compare every frame with the expected arrays `<key>` and `length`."""
    expected = dict(np.load(expected_path))
    lengths = expected.pop("length")
    dataset = LeRobotDataset("referee/check", root=root, video_backend="pyav")
    wrong: list[str] = []
    checks = 0

    def check(name: str, good: bool) -> None:
        nonlocal checks
        checks += 1
        if not good:
            wrong.append(name)

    check("number of episodes", dataset.num_episodes == len(lengths))
    check("number of frames", len(dataset) == lengths.sum())
    check("lengths of episodes", list(dataset.meta.episodes["length"]) == lengths.tolist())
    check("features", set(expected) <= set(dataset.features))
    check("statistics", set(expected) <= set(dataset.meta.stats))
    largest = 0.0
    for index in range(len(dataset)):
        item = dataset[index]
        for key, values in expected.items():
            mine, theirs = values[index], item[key].numpy()
            if key.startswith("observation.images."):
                theirs = theirs.transpose(1, 2, 0) * 255
                error = float(np.abs(theirs - mine).mean())
                largest = max(largest, error)
                check(f"{key} of frame {index}", error <= tolerance)
            else:
                check(f"{key} of frame {index}", np.array_equal(np.atleast_1d(theirs), np.atleast_1d(mine)))
    first = int(lengths[0])
    windows = LeRobotDataset(
        "referee/check",
        root=root,
        video_backend="pyav",
        delta_timestamps={"action": [0.0, 1 / dataset.fps]},
        episodes=[1],
    )
    pair = windows[0]["action"].numpy()
    check("windows of one episode", np.array_equal(pair, expected["action"][first : first + 2]))
    return {"checks": checks, "wrong": wrong, "pixel_error": largest, "version": version("lerobot")}


def write(root: str, video: bool) -> None:
    """A dataset as LeRobot writes it."""
    shapes = {key: value for key, value in frame(0, 0).items() if not key.startswith("observation.images.")}
    features = {key: {"dtype": str(value.dtype), "shape": value.shape, "names": None} for key, value in shapes.items()}
    features["observation.images.top"] = {
        "dtype": "video" if video else "image",
        "shape": (PIXELS, PIXELS, 3),
        "names": ["height", "width", "channels"],
    }
    dataset = LeRobotDataset.create("referee/check", 10, features, root=root, use_videos=video)
    for episode in range(EPISODES):
        for i in range(FRAMES):
            dataset.add_frame({**frame(episode, i), "task": f"task {episode}"})
        dataset.save_episode()
    dataset.finalize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("read", "write"))
    parser.add_argument("root")
    parser.add_argument("expected", nargs="?")
    parser.add_argument("--tolerance", type=float, default=0.0)
    parser.add_argument("--video", action="store_true")
    args = parser.parse_args()
    if args.what == "write":
        write(args.root, args.video)
    else:
        print(json.dumps(read(args.root, args.expected, args.tolerance)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

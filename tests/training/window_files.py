"""Windows in which the pictures grow brighter, darker or stay as they are: a trend that a tiny model can learn."""

import json
import pickle
from pathlib import Path

import numpy as np

from referee.datasets.windows import LABELS

SLOPES = {"positive": 30, "negative": -30, "unclear": 0}


def write_windows(root: Path, *, train: int = 24, val: int = 12, frames: int = 3, size: int = 32) -> Path:
    """train/ and eval/ with so many windows, each of an episode of its own, as `dataset windows` writes them."""
    random = np.random.default_rng(0)
    for side, count in (("train", train), ("eval", val)):
        (root / side / "pkl").mkdir(parents=True)
        rows = []
        for number in range(count):
            label = LABELS[number % 3]
            path = f"{side}/pkl/{number:06d}_{label}.pkl"
            shape = (frames, size, size, 3)
            light = 128 + SLOPES[label] * (np.arange(frames) - (frames - 1) / 2)[:, None, None, None]
            main = (light + random.normal(0, 5, shape)).clip(0, 255).astype(np.uint8)
            row = {"task": "Light up.", "episode": f"{side}{number}", "start": 0, "stop": frames, "label": label,
                   "change": SLOPES[label] / 100}  # fmt: skip
            (root / path).write_bytes(pickle.dumps({**row, "main_images": main, "extra_view_images": main[:, None]}))
            rows.append(json.dumps({"pkl_path": path, "answer": label, **row}))
        (root / side / "segments.jsonl").write_text("\n".join(rows) + "\n")
    (root / "dataset_info.json").write_text(json.dumps({"version": "referee-windows-1"}))
    return root

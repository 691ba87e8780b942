"""Recordings as other tools write them, for tests: LeRobot, robomimic, HIL-SERL."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from referee.episodes.formats import lerobot_writer
from referee.episodes.formats.frames import encode_picture

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
h5py = pytest.importorskip("h5py")


def foreign(root: Path, *, film: bool = False, **columns: Any) -> Path:
    """Two episodes of three frames, as others write them: no final state, none of our columns."""
    frames = np.arange(6)
    rows: dict[str, Any] = {
        "observation.state": pa.array([[float(i), 0.5] for i in frames], pa.list_(pa.float32(), 2)),
        "action": pa.array([[float(i)] * 2 for i in frames], pa.list_(pa.float64())),
        "next.reward": pa.array(frames / 10, pa.float32()),
        "next.done": pa.array(frames % 3 == 2),
        "next.success": pa.array(frames % 3 == 2),
        "timestamp": pa.array(frames % 3 / 5, pa.float32()),
        "frame_index": pa.array(frames % 3),
        "episode_index": pa.array(frames // 3),
        "index": pa.array(frames),
        "task_index": pa.array(frames // 3),
        **columns,
    }
    features: dict[str, Any] = {
        key: {"dtype": str(np.asarray(column.flatten() if hasattr(column.type, "value_type") else column).dtype),
              "shape": [len(column[0])] if hasattr(column.type, "value_type") else [1], "names": None}
        for key, column in rows.items()
    }  # fmt: skip
    images = np.stack([np.full((16, 16, 3), 30 * i + 20, np.uint8) for i in frames])
    index: dict[str, Any] = {"episode_index": [0, 1], "length": [3, 3], "data/chunk_index": [0, 0],
                             "data/file_index": [0, 0], "tasks": [["push"], ["pull"]]}  # fmt: skip
    key = "observation.images.top"
    if film:
        from referee.episodes.formats.frames import FilmWriter

        path = root / f"videos/{key}/chunk-000/file-000.mp4"
        path.parent.mkdir(parents=True)
        writer = FilmWriter(path, height=16, width=16, fps=5)
        writer.write(images)
        writer.close()
        index |= {f"videos/{key}/chunk_index": [0, 0], f"videos/{key}/file_index": [0, 0],
                  f"videos/{key}/from_timestamp": [0.0, 0.6], f"videos/{key}/to_timestamp": [0.6, 1.2]}  # fmt: skip
    else:
        struct = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        rows[key] = pa.array([{"bytes": encode_picture(image), "path": "x.png"} for image in images], struct)
    features[key] = {"dtype": "video" if film else "image", "shape": [3, 16, 16],
                     "names": ["channels", "height", "width"]}  # fmt: skip
    info = {"codebase_version": "v3.0", "fps": 5, "features": features, "robot_type": None,
            "data_path": lerobot_writer.DATA_PATH, "video_path": lerobot_writer.VIDEO_PATH}  # fmt: skip
    for name, table in {
        "data/chunk-000/file-000.parquet": rows,
        "meta/episodes/chunk-000/file-000.parquet": index,
        "meta/tasks.parquet": {"task": ["push", "pull"], "task_index": [0, 1]},
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(table), root / name)
    (root / "meta/info.json").write_text(json.dumps(info))
    return root


def robomimic(path: Path, *, final: bool, rewards: list[float]) -> Path:
    """One demo of as many rows as rewards."""
    count = len(rewards)
    with h5py.File(path, "w") as file:
        demo = file.create_group("data/demo_0")
        for group in ("obs", "next_obs")[: 1 + final]:
            demo.create_dataset(f"{group}/agentview_image", data=np.zeros((count, 4, 4, 3), np.uint8))
        demo.create_dataset("actions", data=np.zeros((count, 2)))
        demo.create_dataset("rewards", data=np.array(rewards))
    return path


def hil_serl(path: Path, grey: int, *, count: int = 4, pixels: int = 8) -> Path:
    """A file as HIL-SERL's recorder of classifier data writes it: transitions, of success or not by its name."""

    def observation() -> dict[str, Any]:
        return {"front": np.full((1, pixels, pixels, 3), grey, np.uint8), "state": np.zeros((1, 3), np.float32)}

    rows = [
        {"observations": observation(), "actions": np.zeros(2), "next_observations": observation(),
         "rewards": 0, "masks": 1.0, "dones": False}
        for _ in range(count)
    ]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(rows))
    return path

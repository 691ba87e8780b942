"""Writes LeRobotDataset v3.0; `lerobot.py` says what stands where."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from referee import files
from referee.episodes.episode import IMAGES, Episode, EpisodeError
from referee.episodes.formats.frames import FilmWriter, encode_picture
from referee.episodes.formats.lerobot_stats import Stats, merge, number_stats, picture_stats
from referee.optional import require

VERSION = "v3.0"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
INFO, STATS, TASKS = "meta/info.json", "meta/stats.json", "meta/tasks.parquet"
STATE, CAMERA, OBSERVATION, SIGNAL = "observation.state", "observation.images.", "observation.", "complementary_info."
IS_LAST, SUCCESS = "referee.is_last_state", "referee.success"
RECORD = "referee/episode"
"""The column of meta/episodes that holds, as JSON, what LeRobot has no place for: meta, and shapes of arrays."""
BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
DEFAULT_FPS = 20.0
DATA_MB, VIDEO_MB, FILES_PER_CHUNK = 100, 200, 1000
_BUFFERED_EPISODES = 64


class LeRobotWriter:
    """Writes episodes as one dataset; `close` gives it its name.

    Until then everything lies in a hidden folder beside `root`, which is removed when the writer ends without `close`:
    where a kill must lose nothing, record into an `EpisodeStore` and convert. All episodes must have the same arrays;
    the first one says which. `fps` is that of the first episode unless given (20 where nobody knows).
    """

    def __init__(
        self, root: Path | str, fps: float | None = None, video: bool = False, *, robot_type: str | None = None
    ) -> None:
        self._arrow = require("pyarrow", extra="lerobot", what="writing a LeRobot dataset")
        self._parquet = require("pyarrow.parquet", extra="lerobot", what="writing a LeRobot dataset")
        if video:
            require("av", extra="lerobot", what="writing mp4 files")
        self.root = Path(root)
        self.video, self.robot_type, self._fps, self._given_fps = video, robot_type, fps, fps is not None
        if fps is not None and not 0 < fps < 1e6:
            raise EpisodeError(f"fps is {fps}, but must be above 0")
        _refuse_existing(self.root)
        try:
            self.root.absolute().parent.mkdir(parents=True, exist_ok=True)
            self._folder = self.root.absolute().parent / f".{self.root.name}.{os.getpid()}.{secrets.token_hex(4)}"
            self._folder.mkdir()
        except OSError as error:
            raise EpisodeError(f"cannot write {self.root} ({error.strerror})") from error
        self._discard = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._features: dict[str, dict[str, Any]] = {}
        self._tasks: dict[str, int] = {}
        self._stats: dict[str, Stats] = {}
        self._rows: list[dict[str, Any]] = []
        self._index: Any = None
        self._data: Any = None
        self._data_file = 0
        self._films: dict[str, FilmWriter] = {}
        self._film_file: dict[str, int] = {}
        self._episodes = self._frames = 0

    def __enter__(self) -> LeRobotWriter:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def append(self, episode: Episode) -> None:
        """Add an episode; it is part of the dataset once `close` has returned."""
        if not self._discard.alive:
            raise EpisodeError(f"{self.root} is finished: open another writer")
        episode.validate()
        numbers, views = _numbers(episode), _views(episode)
        self._agree(episode, self._describe(numbers, views))
        try:
            self._append(episode, numbers, views)
        except BaseException as error:
            self.abort()  # half an episode may be in the files
            if isinstance(error, OSError):
                raise EpisodeError(f"cannot write {self.root} ({error.strerror or error})") from error
            raise

    def close(self) -> None:
        """Finish all files, flush them to disk and name the dataset."""
        if not self._discard.alive:
            return
        try:
            if not self._episodes:
                raise EpisodeError(f"{self.root} is not written: it has no episodes")
            self._finish()
            _refuse_existing(self.root)
            for path in (*self._folder.rglob("*"), self._folder):
                files.flush(path)
            os.replace(self._folder, self.root)  # over an empty folder, if there is one
            files.flush(self.root.absolute().parent)
        except OSError as error:
            raise EpisodeError(f"cannot write {self.root} ({error.strerror or error})") from error
        finally:
            self.abort()

    def abort(self) -> None:
        """Remove what was written; nothing after `close`."""
        for film in self._films.values():
            film.abandon()
        self._films.clear()
        self._discard()

    # --- one episode ---

    def _append(self, episode: Episode, numbers: dict[str, np.ndarray], views: dict[str, np.ndarray]) -> None:
        n, index = episode.states_count, self._episodes
        task = episode.meta.description or episode.meta.task or "unknown"
        place = np.arange(n)
        numbers |= {
            "timestamp": (place / self.fps).astype(np.float32),
            "frame_index": place,
            "episode_index": np.full(n, index),
            "index": self._frames + place,
            "task_index": np.full(n, self._tasks.setdefault(task, len(self._tasks))),
        }
        row: dict[str, Any] = {
            "episode_index": index,
            "tasks": [task],
            "length": n,
            **self._write_rows(numbers, {} if self.video else views),
            "dataset_from_index": self._frames,
            "dataset_to_index": self._frames + n,
        }
        if self.video:
            for key, frames in views.items():
                row |= self._write_film(key, frames)
        stats = {key: number_stats(values) for key, values in numbers.items()}
        stats |= {key: picture_stats(frames) for key, frames in views.items()}
        for key, each in stats.items():
            row |= {f"stats/{key}/{name}": value.tolist() for name, value in each.items()}
            self._stats[key] = merge(self._stats[key], each) if key in self._stats else each
        self._rows.append(
            {**row, "meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0, RECORD: _record(episode)}
        )
        self._episodes += 1
        self._frames += n
        if len(self._rows) >= _BUFFERED_EPISODES:
            self._write_index()

    @property
    def fps(self) -> float:
        """Of the dataset."""
        return self._fps or DEFAULT_FPS

    def _describe(self, numbers: dict[str, np.ndarray], views: dict[str, np.ndarray]) -> dict[str, dict[str, Any]]:
        """The features of meta/info.json."""
        kind = "video" if self.video else "image"
        pictures = {
            key: {"dtype": kind, "shape": list(frames.shape[1:]), "names": ["height", "width", "channels"]}
            for key, frames in views.items()
        }
        vectors = {
            key: {"dtype": str(values.dtype), "shape": list(values.shape[1:]) or [1], "names": None}
            for key, values in numbers.items()
        }
        return {**pictures, **vectors}

    def _agree(self, episode: Episode, features: dict[str, dict[str, Any]]) -> None:
        """Refuse an episode that does not fit the dataset; the first one shapes it."""
        fps = episode.meta.fps
        if not self._features:
            self._features = features
            self._fps = self._fps or fps
            return
        name = f"episode {episode.meta.id or self._episodes}"
        if fps is not None and not self._given_fps and fps != self.fps:
            raise EpisodeError(f"{name} has {fps:g} frames per second, the dataset {self.fps:g}: write them apart")
        if strange := sorted(features.keys() ^ self._features.keys()):
            has = "has" if strange[0] in features else "lacks"
            raise EpisodeError(f"{name} {has} {strange[0]}, unlike those before: write them into two datasets")
        for key, feature in features.items():
            if feature != self._features[key]:
                ours, theirs = (f"{each['dtype']}{each['shape']}" for each in (feature, self._features[key]))
                raise EpisodeError(f"{name} has {key} as {ours}, those before {theirs}: write them into two datasets")

    def _write_rows(self, numbers: dict[str, np.ndarray], pictures: dict[str, np.ndarray]) -> dict[str, Any]:
        """The rows of an episode into the data file, as one row group; returns where they are."""
        pa = self._arrow
        columns: dict[str, Any] = {}
        for key, frames in pictures.items():
            data = [{"bytes": encode_picture(frame), "path": f"frame-{i:06d}.png"} for i, frame in enumerate(frames)]
            columns[key] = pa.array(data, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
        for key, values in numbers.items():
            flat = pa.array(values.reshape(-1))
            columns[key] = flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
        table = pa.table(columns)
        if self._data is not None and self._data.path.stat().st_size >= DATA_MB * 1e6:
            self._data.close()
            self._data, self._data_file = None, self._data_file + 1
        place = _place(self._data_file)
        if self._data is None:
            path = self._new_file(DATA_PATH.format(**place))
            schema = table.schema.with_metadata({"huggingface": json.dumps({"info": {"features": _hub(table.schema)}})})
            self._data = _Table(self._parquet, path, schema)
        self._data.write(table)
        return {f"data/{name}": value for name, value in place.items()}

    def _write_film(self, key: str, frames: np.ndarray) -> dict[str, Any]:
        """Frames into the camera's film; returns where they are."""
        film = self._films.get(key)
        if film is not None and film.bytes >= VIDEO_MB * 1e6:
            film.close()
            film = None
            self._film_file[key] += 1
        place = _place(self._film_file.setdefault(key, 0))
        if film is None:
            path = self._new_file(VIDEO_PATH.format(video_key=key, **place))
            height, width = frames.shape[1:3]
            film = self._films[key] = FilmWriter(path, height=height, width=width, fps=self.fps)
        start = film.frames
        film.write(frames)
        place |= {"from_timestamp": start / self.fps, "to_timestamp": film.frames / self.fps}
        return {f"videos/{key}/{name}": value for name, value in place.items()}

    # --- the end ---

    def _finish(self) -> None:
        pa = self._arrow
        for key, film in self._films.items():
            film.close()
            self._features[key]["info"] = {
                "video.height": film.height, "video.width": film.width, "video.codec": "h264",
                "video.pix_fmt": film.pix_fmt, "video.is_depth_map": False, "video.fps": _plain(self.fps),
                "video.channels": 3, "has_audio": False,
            }  # fmt: skip
        self._films.clear()
        self._data.close()
        self._write_index()
        self._index.close()
        tasks = pa.table({"task_index": list(self._tasks.values()), "__index_level_0__": list(self._tasks)})
        pandas = {
            "index_columns": ["__index_level_0__"],
            "column_indexes": [],
            "columns": [
                {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64",
                 "metadata": None},
                {"name": None, "field_name": "__index_level_0__", "pandas_type": "unicode", "numpy_type": "object",
                 "metadata": None},
            ],
        }  # fmt: skip
        self._parquet.write_table(tasks.replace_schema_metadata({"pandas": json.dumps(pandas)}), self._folder / TASKS)
        stats = {key: {name: value.tolist() for name, value in each.items()} for key, each in self._stats.items()}
        (self._folder / STATS).write_text(json.dumps(stats, indent=4))
        info = {
            "codebase_version": VERSION,
            "robot_type": self.robot_type,
            "total_episodes": self._episodes,
            "total_frames": self._frames,
            "total_tasks": len(self._tasks),
            "chunks_size": FILES_PER_CHUNK,
            "data_files_size_in_mb": DATA_MB,
            "video_files_size_in_mb": VIDEO_MB,
            "fps": _plain(self.fps),
            "splits": {"train": f"0:{self._episodes}"},
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH if self.video else None,
            "features": {
                **self._features,
                **{key: {"dtype": "float32" if key == "timestamp" else "int64", "shape": [1], "names": None}
                   for key in BOOKKEEPING},
            },
        }  # fmt: skip
        (self._folder / INFO).write_text(json.dumps(info, indent=4))

    def _write_index(self) -> None:
        if self._rows:
            table = self._arrow.Table.from_pylist(self._rows, schema=self._index and self._index.schema)
            if self._index is None:
                self._index = _Table(self._parquet, self._new_file(EPISODES_PATH.format(**_place(0))), table.schema)
            self._index.write(table)
            self._rows = []

    def _new_file(self, name: str) -> Path:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


class _Table:
    """A parquet file that grows by row groups."""

    def __init__(self, parquet: Any, path: Path, schema: Any) -> None:
        self.path, self.schema = path, schema
        self._writer = parquet.ParquetWriter(
            path, schema, compression="snappy", use_dictionary=False, write_page_checksum=True
        )

    def write(self, table: Any) -> None:
        self._writer.write_table(table.cast(self.schema))

    def close(self) -> None:
        self._writer.close()


def _numbers(episode: Episode) -> dict[str, np.ndarray]:
    """The columns of an episode that hold numbers, T+1 rows each: scalars, or vectors."""
    columns: dict[str, np.ndarray] = {}

    def put(key: str, values: np.ndarray) -> None:
        if key in columns:
            raise EpisodeError(f"two arrays would become the LeRobot feature {key}: rename one")
        values = values.reshape(len(values), -1) if values.ndim > 1 else values
        if values.size:  # arrays without elements are only in the record
            columns[key] = np.ascontiguousarray(values[:, 0] if values.shape[1:] == (1,) else values)

    for name, values in episode.observations.items():
        if name not in IMAGES:
            put(STATE if name == "states" else f"{OBSERVATION}{name}", values)
    put("action", np.concatenate([episode.actions, episode.actions[-1:]]))
    put("next.reward", np.append(episode.rewards, np.float32(0)))
    put("next.done", np.append(episode.terminated | episode.truncated, True))
    put("next.terminated", np.append(episode.terminated, False))
    put("next.truncated", np.append(episode.truncated, True))
    if episode.success is not None:
        put("next.success", np.append(episode.success[1:], episode.success[-1]))
        put(SUCCESS, episode.success)
    put(IS_LAST, np.arange(episode.states_count) == len(episode))
    for name, values in episode.signals.items():
        put(f"{SIGNAL}{name}", values)
    return columns


def _views(episode: Episode) -> dict[str, np.ndarray]:
    """The images uint8[T+1,H,W,3] of each camera, by their LeRobot names."""
    views = [episode.observations[IMAGES[0]]] if IMAGES[0] in episode.observations else []
    extra = episode.observations.get(IMAGES[1])
    if extra is not None:
        views += [extra[:, i] for i in range(extra.shape[1])]
        if len(views) == extra.shape[1] and views:
            raise EpisodeError("extra_view_images without main_images cannot be a LeRobot dataset")
    names = episode.meta.cameras or ("main", *(f"extra_{i}" for i in range(len(views) - 1)))
    if len(set(names)) < len(names) or any(not name or "/" in name or "\0" in name for name in names):
        raise EpisodeError(f"the cameras {', '.join(names)} cannot be in a LeRobot dataset: give them plain names")
    return {f"{CAMERA}{name}": view for name, view in zip(names, views, strict=False)}


def _record(episode: Episode) -> str:
    arrays = {
        name: [str(values.dtype), list(values.shape[1:])]
        for name, values in episode.arrays().items()
        if not values.size or name.removeprefix("observations/") not in IMAGES
    }
    return json.dumps({"meta": episode.meta.to_json(), "arrays": arrays})


def _hub(schema: Any) -> dict[str, Any]:
    """The columns as the `datasets` library describes them."""
    features: dict[str, Any] = {}
    for field in schema:
        if hasattr(field.type, "list_size"):
            value = {"dtype": _dtype(field.type.value_type), "_type": "Value"}
            features[field.name] = {"feature": value, "length": field.type.list_size, "_type": "List"}
        elif hasattr(field.type, "get_field_index"):
            features[field.name] = {"_type": "Image"}
        else:
            features[field.name] = {"dtype": _dtype(field.type), "_type": "Value"}
    return features


def _dtype(kind: Any) -> str:
    return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(kind), str(kind))


def _place(number: int) -> dict[str, Any]:
    return {"chunk_index": number // FILES_PER_CHUNK, "file_index": number % FILES_PER_CHUNK}


def _plain(fps: float) -> int | float:
    return int(fps) if float(fps).is_integer() else fps


def _refuse_existing(root: Path) -> None:
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise EpisodeError(f"{root} is there already: choose another folder, or remove it")

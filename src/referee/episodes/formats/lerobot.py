"""LeRobotDataset v3.0: a folder of parquet files, with pictures inside them or mp4 films beside.

A LeRobot row is a frame and the action taken in it. An episode has one state more than it has actions, and that last
state is usually the success: it must not be lost. So T+1 rows are written. The last one is marked by
`referee.is_last_state`; its action repeats the one before (a value that the robot has seen, and that keeps a gripper
closed), its `next.reward` is 0 and its `next.done` true. Other readers see an ordinary dataset; `read` restores the
T+1 states and T actions.

    observation.state, observation.<name>         the states, further observations as vectors
    observation.images.<camera>                   a picture (exact) or a film (H.264, with small losses)
    action, next.reward, next.done, next.terminated, next.truncated, next.success     about the step that follows
    referee.success                               whether this very frame is a success
    complementary_info.<name>                     the episode's signals

Datasets of others have T rows and no final state. They become T states and T-1 actions; the last action is dropped. A
`next.success` of theirs is taken as the label of the frame in the same row. This is a choice: recorders, and versions
of LeRobot's `gym_manipulator`, differ in whether a row shows the frame before or after its step. Where it is the one
before, labels come a frame early; taking them for the next frame would lose the last, often the only success.
`step_success` makes the other choice, or labels by `next.reward`: rows of both stay complete as signals.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from referee.episodes.episode import IMAGES, Episode, EpisodeError, Meta
from referee.episodes.formats.aligned import LAST_ACTION, LEFT_OUT, assemble, ends
from referee.episodes.formats.frames import Film, check_size, decode_picture, naming, stack_views
from referee.episodes.formats.lerobot_writer import (
    BOOKKEEPING,
    CAMERA,
    DATA_PATH,
    INFO,
    IS_LAST,
    OBSERVATION,
    RECORD,
    SIGNAL,
    STATE,
    SUCCESS,
    TASKS,
    VERSION,
    VIDEO_PATH,
    LeRobotWriter,
)
from referee.optional import require

__all__ = ["LeRobotWriter", "read"]

_STEPS = {
    "actions": "action",
    "rewards": "next.reward",
    "terminated": "next.terminated",
    "truncated": "next.truncated",
}
_MAX_JSON = 64 << 20
_MAX_ROWS = 50_000_000
_MAX_EPISODES = 1_000_000
_BATCH_BYTES = 32 << 20
_NUMBERS = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)")


def read(path: Path, *, cameras: Sequence[str] | None = None) -> Iterator[Episode]:
    """The episodes of a dataset folder, in order; with `cameras`, only those views, in that order."""
    dataset = _Dataset(path, cameras)
    return dataset.episodes()


def names(path: Path) -> list[str]:
    """What the episodes of a dataset are called: their index."""
    return [str(row["episode_index"]) for row in _Dataset(path, None)._read_index()]


@dataclass(frozen=True)
class _Feature:
    """A column as meta/info.json describes it."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    depth: bool

    @classmethod
    def of(cls, key: str, values: Any) -> _Feature:
        shape = values.get("shape") if isinstance(values, dict) else None
        if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 1 << 32 for n in shape):
            raise EpisodeError(f"feature {key!r} has no usable shape")
        info = {**(values.get("video_info") or {}), **(values.get("info") or {})}
        depth = bool(info.get("is_depth_map") or info.get("video.is_depth_map"))
        return cls(key, str(values.get("dtype")), tuple(shape), depth)

    @property
    def is_view(self) -> bool:
        """Whether it is a colour picture."""
        return self.dtype in ("image", "video") and len(self.shape) == 3 and 3 in self.shape[::2] and not self.depth

    @property
    def is_numbers(self) -> bool:
        return _NUMBERS.fullmatch(self.dtype) is not None

    @property
    def size(self) -> int:
        """Elements of a row."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def bytes(self) -> int:
        """Of a row, decoded."""
        return self.size * (1 if self.is_view else np.dtype(self.dtype).itemsize)

    @property
    def camera(self) -> str:
        return self.key.removeprefix(CAMERA).removeprefix(OBSERVATION)


class _Dataset:
    """A dataset folder that is read from its first episode to its last."""

    def __init__(self, root: Path, cameras: Sequence[str] | None) -> None:
        require("pyarrow", extra="lerobot", what="reading a LeRobot dataset")
        self.root = root
        with naming(root / INFO):
            self.info = _read_json(root / INFO)
            version = str(self.info.get("codebase_version"))
            if not version.startswith("v3."):
                raise EpisodeError(f"has the version {version}, not {VERSION}: convert it with LeRobot's script first")
            features = self.info.get("features")
            if not isinstance(features, dict) or not isinstance(self.info.get("fps"), int | float):
                raise EpisodeError("lacks features or fps")
            if not 0 < self.info["fps"] < 1e6:
                raise EpisodeError(f"fps is {self.info['fps']}")
            every = [_Feature.of(key, values) for key, values in features.items()]
            if strange := [each.key for each in every if "/" in each.key]:
                raise EpisodeError(f"feature {strange[0]!r} has a slash in its name")
        self.fps = float(self.info["fps"])
        self.cameras = cameras
        self.views = self._choose([each for each in every if each.is_view])
        self.numbers = [each for each in every if each.is_numbers and each.size and each.key != "timestamp"]
        self.skipped = [each.key for each in every if not each.is_view and not each.is_numbers]
        self.tasks = self._read_tasks()
        self._rows: _RowReader | None = None
        self._films: dict[str, _FilmReader] = {}

    def episodes(self) -> Iterator[Episode]:
        """All of them, in the order of their index."""
        for row in self._read_index():
            yield self._episode(row)
        for film in self._films.values():
            film.close()

    def _episode(self, row: dict[str, Any]) -> Episode:
        with naming(self.root / "meta" / "episodes"):
            index, length = _number(row, "episode_index"), _number(row, "length")
            path = self._path(self.info.get("data_path"), DATA_PATH, row, "data/")
        with naming(path):
            if length < 2:
                raise EpisodeError(f"episode {index} has {length} frames, but an episode needs two")
            check_size(length, sum(each.bytes for each in (*self.numbers, *self.views)))
            if self._rows is None or self._rows.path != path:
                self._rows = _RowReader(path, [*self.numbers, *(view for view in self.views if view.dtype == "image")])
            columns = self._rows.take(index, length)
        images: dict[str, np.ndarray] = {}
        for view in self.views:
            if view.dtype == "video":
                images[view.camera] = self._film_frames(view, row, length)
            else:
                images[view.camera] = columns.pop(view.key)
        with naming(path):
            return self._ours(columns, images, row) if IS_LAST in columns else self._theirs(columns, images, row)

    def _ours(self, columns: dict[str, np.ndarray], images: dict[str, np.ndarray], row: dict[str, Any]) -> Episode:
        """T+1 rows, the last of which is marked: everything as it was written."""
        last = columns[IS_LAST]
        if last[:-1].any() or not last[-1]:
            raise EpisodeError(f"episode {row['episode_index']} has its last state in the middle, or none")
        record = json.loads(row[RECORD].as_py() or "{}") if RECORD in row else {}
        if not isinstance(record, dict):
            raise EpisodeError(f"{RECORD} is no JSON object")
        arrays = {f"observations/{name}": value for name, value in _observations(columns, images).items()}
        arrays |= {f"signals/{key.removeprefix(SIGNAL)}": columns[key] for key in columns if key.startswith(SIGNAL)}
        for name, key in _STEPS.items():
            if key in columns:
                arrays[name] = columns[key][:-1]
        if SUCCESS in columns:
            arrays["success"] = columns[SUCCESS]
        meta = Meta.from_json(record["meta"]) if "meta" in record else self._meta(row, columns)
        shapes = record.get("arrays", {"actions": ["float32", [-1]]})
        if self.cameras is not None:
            meta = replace(meta, cameras=tuple(self.cameras))
            shapes = {name: shape for name, shape in shapes.items() if name.removeprefix("observations/") not in IMAGES}
        return Episode.from_arrays(_reshaped(arrays, shapes, len(last)), meta).validate()

    def _theirs(self, columns: dict[str, np.ndarray], images: dict[str, np.ndarray], row: dict[str, Any]) -> Episode:
        """T rows without a final state: T states, and the steps between them."""
        rows = len(columns["episode_index"])
        observations = _observations(columns, images)
        if "states" in observations:
            observations["states"] = observations["states"].reshape(rows, -1).astype(np.float32)
        done, truncated = columns.get("next.done"), columns.get("next.truncated")
        if done is not None and truncated is not None:
            done = done.astype(bool) & ~truncated.astype(bool)
        action, reward, success = (columns.get(key) for key in ("action", "next.reward", "next.success"))
        known = (*BOOKKEEPING, "action")
        return assemble(
            observations,
            self._meta(row, columns),
            actions=None if action is None else action[:-1].reshape(rows - 1, -1).astype(np.float32),
            rewards=None if reward is None else reward[:-1].reshape(rows - 1).astype(np.float32),
            terminated=None if done is None else ends(done.tolist(), rows, "next.done", departures=True),
            truncated=None if truncated is None else ends(truncated.tolist(), rows, "next.truncated", departures=True),
            success=None if success is None else success.astype(bool),
            signals={
                key.removeprefix(SIGNAL): value
                for key, value in columns.items()
                if key not in known and not key.startswith(OBSERVATION)
            },
        )

    def _meta(self, row: dict[str, Any], columns: Mapping[str, np.ndarray]) -> Meta:
        task = int(columns["task_index"][0]) if "task_index" in columns else 0
        return Meta(
            description=str(self.tasks[task].as_py()) if task in self.tasks else "",
            source=str(self.root),
            cameras=tuple(view.camera for view in self.views),
            episode=int(row["episode_index"]),
            fps=self.fps,
            extra={**({"skipped": self.skipped} if self.skipped else {}), LEFT_OUT: LAST_ACTION},
        )

    def _film_frames(self, view: _Feature, row: dict[str, Any], length: int) -> np.ndarray:
        prefix = f"videos/{view.key}/"
        with naming(self.root / "meta" / "episodes"):
            path = self._path(self.info.get("video_path"), VIDEO_PATH, row, prefix, view.key)
        film = self._films.get(view.key)
        start = float(row.get(f"{prefix}from_timestamp", -1))
        if not 0 <= start < 1e9:
            raise EpisodeError(f"{path}: begins at {start} s for an episode, which it cannot")
        if film is None or film.path != path or start < film.seconds:
            if film is not None:
                film.close()
            film = self._films[view.key] = _FilmReader(path, self.fps)
        return film.take(start, length)

    def _read_index(self) -> list[dict[str, Any]]:
        wanted = ["episode_index", "length", "data/chunk_index", "data/file_index"]
        for view in self.views:
            if view.dtype == "video":
                wanted += [f"videos/{view.key}/{name}" for name in ("chunk_index", "file_index", "from_timestamp")]
        rows: list[dict[str, Any]] = []
        for path in self._files("meta/episodes"):
            with naming(path), _parquet(path) as file:
                names = file.schema_arrow.names
                if missing := [name for name in wanted if name not in names]:
                    raise EpisodeError(f"has no column {missing[0]!r}")
                if len(rows) + file.metadata.num_rows > _MAX_EPISODES:
                    raise EpisodeError(f"declares more than {_MAX_EPISODES} episodes")
                some = file.read(columns=wanted, use_threads=False).to_pylist()
                if RECORD in names:
                    some = [{**row, RECORD: text} for row, text in zip(some, _texts(path, RECORD), strict=True)]
                rows += some
        with naming(self.root):
            return sorted(rows, key=lambda row: _number(row, "episode_index"))

    def _read_tasks(self) -> dict[int, Any]:
        """The tasks by their index, as values of the file that `as_py` turns into text."""
        path = self.root / TASKS
        if not path.exists():
            return {}
        with naming(path):
            with _parquet(path) as file:
                names = sorted(file.schema_arrow.names, key=lambda name: name == "task_index")
                if len(names) != 2 or names[1] != "task_index" or file.metadata.num_rows > _MAX_EPISODES:
                    raise EpisodeError("should have two columns, a task and its task_index")
                indices = file.read(columns=names[1:], use_threads=False).column(0).to_pylist()
            return dict(zip(indices, _texts(path, names[0]), strict=True))

    def _files(self, folder: str) -> list[Path]:
        found = sorted((self.root / folder).glob("*/*.parquet"))
        if not found:
            raise EpisodeError(f"{self.root / folder} holds no parquet files: the dataset is not complete")
        return found

    def _path(self, template: Any, usual: str, row: dict[str, Any], prefix: str, key: str = "") -> Path:
        """The file that a template of meta/info.json names; it lies in the dataset's folder."""
        text = template if isinstance(template, str) else usual
        for field in ("chunk_index", "file_index"):
            text = text.replace(f"{{{field}:03d}}", f"{_number(row, prefix + field):03d}")
        path = Path(text.replace("{video_key}", key))
        if path.is_absolute() or ".." in path.parts or "{" in path.name:
            raise EpisodeError(f"the path {template!r} of {INFO} leads elsewhere or is not understood")
        return self.root / path

    def _choose(self, views: list[_Feature]) -> list[_Feature]:
        if self.cameras is None:
            return views
        known = {view.camera: view for view in views}
        if unknown := [name for name in self.cameras if name not in known]:
            raise EpisodeError(f"{self.root} has no camera {unknown[0]!r}: it has {', '.join(known) or 'none'}")
        return [known[name] for name in self.cameras]


class _RowReader:
    """Takes the rows of one episode after the other from a data file."""

    def __init__(self, path: Path, features: list[_Feature]) -> None:
        self.path, self._features = path, features
        self._batches = self._read()
        self._rest: dict[str, np.ndarray] | None = None

    def take(self, index: int, length: int) -> dict[str, np.ndarray]:
        """The next `length` rows, which must be the frames of episode `index`."""
        whole: dict[str, np.ndarray] = {}
        have = 0
        while have < length:
            part = self._rest or next(self._batches, None)
            if part is None:
                raise EpisodeError(f"ends at frame {have} of episode {index}: it is cut off, or not in order")
            stop = min(length, have + len(part["episode_index"]))
            for key, value in part.items():
                whole.setdefault(key, np.empty((length, *value.shape[1:]), value.dtype))[have:stop] = value[
                    : stop - have
                ]
            over = {key: value[stop - have :] for key, value in part.items()}
            self._rest = over if len(over["episode_index"]) else None
            have = stop
        if (whole["episode_index"] != index).any():
            raise EpisodeError(f"has frames of another episode where those of episode {index} should be")
        return whole

    def _read(self) -> Iterator[dict[str, np.ndarray]]:
        """A few rows at a time."""
        keys = [each.key for each in self._features]
        with _parquet(self.path) as file:
            known = [name for name in file.schema_arrow.names if name in keys]
            if missing := [key for key in (*keys, "episode_index") if key not in known]:
                raise EpisodeError(f"has no column {missing[0]!r}")
            _check_counts(file.metadata, {each.key: each.size for each in self._features if each.is_numbers})
            rows = max(1, min(1024, _BATCH_BYTES // max(1, sum(each.bytes for each in self._features))))
            for batch in file.iter_batches(rows, columns=keys, use_threads=False):
                yield {each.key: _column(batch.column(each.key), each) for each in self._features}


class _FilmReader:
    """Takes the frames of one episode after the other from an mp4 file that holds several."""

    def __init__(self, path: Path, fps: float) -> None:
        self.path, self.fps = path, fps
        self._film = Film(path)
        self._frames = iter(self._film)
        self.seconds = 0.0
        """How far it has been read."""

    def take(self, start: float, count: int) -> np.ndarray:
        """uint8[count,H,W,3]: the frames from `start` on."""
        half = 0.5 / self.fps
        with naming(self.path):
            check_size(count, self._film.bytes_per_frame)
            frames = np.empty((count, self._film.height, self._film.width, 3), np.uint8)
            found = 0
            for seconds, frame in self._frames:
                if seconds < start - half:
                    continue
                if abs(seconds - (start + found / self.fps)) > half:
                    raise EpisodeError(f"has no frame at {start + found / self.fps:.3f} s")
                frames[found] = frame
                found += 1
                if found == count:
                    self.seconds = seconds + half
                    return frames
            raise EpisodeError(f"ends after {found} of {count} frames from {start:.3f} s: it is cut off or broken")

    def close(self) -> None:
        self._film.close()


def _observations(columns: Mapping[str, np.ndarray], images: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    named = {key: value for key, value in columns.items() if key.startswith(OBSERVATION)}
    found = {"states": named.pop(STATE)} if STATE in named else {}
    found |= {key.removeprefix(OBSERVATION): value for key, value in named.items()}
    return found | stack_views(images)


def _reshaped(arrays: dict[str, np.ndarray], record: Any, states: int) -> dict[str, np.ndarray]:
    """The arrays in the shapes that they had before they became vectors; those without elements come back."""
    if not isinstance(record, dict):
        raise EpisodeError(f"{RECORD} has no list of arrays")
    for name, (dtype, shape) in record.items():
        if not isinstance(dtype, str) or not _NUMBERS.fullmatch(dtype):
            raise EpisodeError(f"{name} holds {dtype}, but numbers are needed")
        rows = states - (name in ("actions", "rewards", "terminated", "truncated"))
        if name in arrays:
            arrays[name] = arrays[name].astype(dtype, copy=False).reshape(rows, *shape)
        elif 0 in shape:
            arrays[name] = np.zeros((rows, *shape), dtype)
    return arrays


def _column(column: Any, feature: _Feature) -> np.ndarray:
    """A column of a batch as rows of numbers, or of decoded pictures."""
    rows = len(column)
    if column.null_count:
        raise EpisodeError(f"column {feature.key!r} has gaps")
    if feature.is_view:
        height, width = feature.shape[1:] if feature.shape[0] == 3 and feature.shape[2] != 3 else feature.shape[:2]
        pictures = np.empty((rows, height, width, 3), np.uint8)
        for i, data in enumerate(column.field("bytes")):
            if not data.is_valid:
                raise EpisodeError(f"pictures of {feature.key!r} lie outside of the file")
            picture = decode_picture(data.as_py())
            if picture.shape != (height, width, 3):
                raise EpisodeError(f"a picture of {feature.key!r} is not {height}×{width}, as {INFO} says")
            pictures[i] = picture
        return pictures
    while hasattr(column, "flatten") and hasattr(column.type, "value_type"):
        column = column.flatten()
    values = np.asarray(column.to_numpy(zero_copy_only=False))
    if values.dtype.kind not in "biuf" or len(values) != rows * feature.size:
        raise EpisodeError(f"column {feature.key!r} does not hold {feature.size} numbers in each row")
    values = values.astype(feature.dtype, copy=False)
    return values if feature.shape in ((), (1,)) else values.reshape(rows, *feature.shape)


def _parquet(path: Path, dictionary: Sequence[str] = ()) -> Any:
    """An open parquet file whose footer is plausible; `dictionary` names columns of text that may repeat."""
    parquet = require("pyarrow.parquet", extra="lerobot", what="reading a LeRobot dataset")
    file = parquet.ParquetFile(
        path, buffer_size=1 << 20, page_checksum_verification=True, read_dictionary=list(dictionary)
    )
    rows = file.metadata.num_rows
    if not 0 <= rows <= _MAX_ROWS:
        file.close()
        raise EpisodeError(f"declares {rows} rows")
    return file


def _texts(path: Path, name: str) -> Any:
    """A column of text, as values that `as_py` turns into strings: a long text that repeats is in memory once."""
    with _parquet(path, dictionary=[name]) as file:
        return file.read(columns=[name], use_threads=False).column(0)


def _check_counts(metadata: Any, sizes: Mapping[str, int]) -> None:
    """Refuse lists that are longer than the features say, before they are unfolded."""
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        for j in range(group.num_columns):
            column = group.column(j)
            key = max(
                (key for key in sizes if f"{column.path_in_schema}.".startswith(f"{key}.")), key=len, default=None
            )
            if key is not None and column.num_values > group.num_rows * sizes[key]:
                raise EpisodeError(f"column {key!r} has {column.num_values} numbers in {group.num_rows} rows")


def _read_json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _MAX_JSON:
        raise EpisodeError("is too large")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise EpisodeError("is nested too deeply") from error
    if not isinstance(values, dict):
        raise EpisodeError("is not a JSON object")
    return values


def _number(row: Mapping[str, Any], key: str) -> int:
    value = row.get(key)
    if type(value) is not int or not 0 <= value <= _MAX_ROWS:
        raise EpisodeError(f"{key} of an episode is {value!r}")
    return value

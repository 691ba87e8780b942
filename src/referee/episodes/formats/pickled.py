"""Episodes in `.pkl` files, in three layouts. Each file is read by `safe`, so that nothing in it can run.

Frames: `success/episode_000000.pkl`, `failure/episode_000001.pkl`, …, each a dict

    frames     list of {obs, action, reward, done, grasp, success}: a state and the step that led to it (see `aligned`);
               `held` where an arm knows whether it held then
    success    whether any frame is one
    label      the same as 1 or 0

Episode: `rank_0_env_3_episode_12_success.pkl`, …, each a dict

    rank, env_idx, episode_id, success     who recorded it, and whether any state is a success
    observations                           list[T+1] of dicts
    actions, rewards, terminated, truncated      list[T] each; of the last three T+1 are read as well
    infos                                  list[T+1] (or T) of dicts: `success` and further numbers about each state

Data: one `data.pkl` for a whole recording, a list either of episodes as above, or of transitions

    obs, next_obs      or observations, next_observations; both may stand inside a dict `transitions`
    action, reward     or actions, rewards
    done               or dones; terminations and truncations, or terminated and truncated; masks (0 where it ended)
    infos              with `success` or `succeed`, about the state after the step; `held` as above

Transitions are cut into episodes where one is done. Where they hold no flag of success and their rewards are all 0 or
1, as those of an arm are, a reward of 1 says that the state after the step is a success.

Files of our own also hold `meta`, and give back all that the layout has a place for. What observations may look like in
files of others is said in `observations`; what could not be taken over is named in `meta.extra["skipped"]`.
"""

from __future__ import annotations

import itertools
import json
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from referee import files
from referee.episodes.episode import GRASP, HELD, WHOLE_SUCCESS, Episode, EpisodeError, Meta
from referee.episodes.formats import aligned, numbered, observations
from referee.episodes.formats.episode_parts import Parts, load_episodes, parts_of
from referee.episodes.formats.observations import Observed, number
from referee.reading import parse

PROTOCOL = 4
SUCCESS = ("success", "is_success", "succeed", "is_obj_placed")
"""Names under which a success is known."""
_OBS, _NEXT = ("obs", "observations"), ("next_obs", "next_observations")
_ACTION, _REWARD, _INFO = ("action", "actions"), ("reward", "rewards"), ("infos", "info")
_TERMINATED, _TRUNCATED = ("terminated", "terminations", "terminals"), ("truncated", "truncations", "timeouts")
_DONE = ("done", "dones")


def read(path: Path) -> Iterator[Episode]:
    """The episodes of a file, in any of the layouts."""
    return read_files([path])


def read_files(paths: Iterable[Path]) -> Iterator[Episode]:
    """The same of several files, one after the other."""
    return load_episodes(f"{__name__}:parse_parts", paths)


def parse_parts(data: memoryview, path: Path) -> Iterator[Parts]:
    """The episodes in the bytes of a file, as what they are made of."""
    value = parse.pickle_value(data)
    if isinstance(value, dict):
        return iter([parts_of(each) for each in _read(value, path)])  # one; whoever asks sees that it is the last
    return _released(_read(value, path), parse.releaser(data))


def _released(episodes: Iterator[Episode], release: Callable[[], None]) -> Iterator[Parts]:
    """The same episodes; what was read of the file for each is let go of."""
    for episode in episodes:
        release()
        yield parts_of(episode)


def _read(value: Any, path: Path) -> Iterator[Episode]:
    if isinstance(value, dict) and isinstance(value.get("frames"), list):
        yield _of_frames(value, path)
    elif isinstance(value, dict) and isinstance(value.get("observations"), list | tuple):
        yield _of_lists(value, path)
    elif isinstance(value, list | tuple) and value and all(isinstance(each, dict) for each in value):
        if isinstance(value[0].get("observations"), list | tuple) or isinstance(value[0].get("frames"), list):
            for each in value:
                yield from _read(each, path)
        else:
            yield from _of_transitions(value, path)
    else:
        raise EpisodeError("holds no episode: it needs a dict of `frames` or `observations`, or a list of transitions")


def _of_frames(value: Mapping[str, Any], path: Path) -> Episode:
    frames = value["frames"]
    if not all(isinstance(frame, dict) and "obs" in frame for frame in frames):
        raise EpisodeError("has a frame that is no dict with an `obs`")
    own = _own_meta(value)
    observed = observations.stack([frame["obs"] for frame in frames], exact=own is not None)
    success = _labels([frame.get("success") for frame in frames], value)
    told = {name: _labels([frame.get(name) for frame in frames], {}) for name in (GRASP, HELD)}
    terminated, truncated = _ends(frames[1:], None if success is None else success[1:])
    match = re.fullmatch(r"episode_(\d{1,12})\.pkl", path.name)
    meta = own or _meta(observed, path, {"episode_id": int(match[1]) if match else 0}, success, value)
    return _finish(
        aligned.assemble(
            observed.arrays, meta,
            actions=_actions([frame.get("action") for frame in frames[1:]]),
            rewards=_numbers([frame.get("reward") for frame in frames[1:]], "reward"),
            terminated=terminated, truncated=truncated, success=success,
            signals={name: flags for name, flags in told.items() if flags is not None},
        ),
        own,
    )  # fmt: skip


def _of_lists(value: Mapping[str, Any], path: Path) -> Episode:
    frames = value["observations"]
    states = len(frames)
    own = _own_meta(value)
    observed = observations.stack(frames, exact=own is not None)
    lists = {name: _list(value[name], name) for name in ("actions", "rewards", "terminated", "truncated", "infos")
             if value.get(name) is not None}  # fmt: skip
    departures = len(lists.get("actions", ())) == states

    def of_steps(name: str) -> Sequence[Any]:
        return aligned.of_steps(lists[name], states, name, departures=departures)

    def ends(name: str) -> np.ndarray | None:
        said = [_flag(each) or False for each in lists.get(name, ())]
        return aligned.ends(said, states, name, departures=departures) if name in lists else None

    infos = aligned.of_states(lists["infos"], states, "infos") if "infos" in lists else [None] * states
    success = _labels([_of(info, SUCCESS) for info in infos], value)
    signals = _signals(infos, observed, exact=own is not None)
    return _finish(
        aligned.assemble(
            observed.arrays,
            own or _meta(observed, path, value, success, value),
            actions=_actions(of_steps("actions")) if "actions" in lists else None,
            rewards=_numbers(of_steps("rewards"), "rewards") if "rewards" in lists else None,
            terminated=ends("terminated"),
            truncated=ends("truncated"),
            success=success,
            signals=signals,
        ),
        own,
    )


def _of_transitions(rows: Sequence[dict[str, Any]], path: Path) -> Iterator[Episode]:
    rows = [{**row, **row["transitions"]} if isinstance(row.get("transitions"), dict) else row for row in rows]
    begin = 0
    for index, row in enumerate(rows):
        if _is_end(row) or index == len(rows) - 1:
            yield _of_rows(rows[begin : index + 1], path, begin, index + 1)
            begin = index + 1


def _of_rows(rows: Sequence[dict[str, Any]], path: Path, first: int, last: int) -> Episode:
    """The episode of some transitions; without the observation after the last, they are departures."""
    frames = [_of(row, _OBS) for row in rows]
    final = _of(rows[-1], _NEXT)
    if final is not None:
        frames.append(final)
    states, departures = len(frames), final is None
    if states < 2:
        raise EpisodeError(f"transition {first} is an episode of one state: it needs `next_obs`")
    observed = observations.stack(frames)
    kept = aligned.of_steps(rows, states, "transitions", departures=departures)
    rewards = _numbers([_of(row, _REWARD) for row in kept], "rewards")
    said = [_of(_of(row, _INFO), SUCCESS) if _of(row, SUCCESS) is None else _of(row, SUCCESS) for row in kept]
    success = _labels([None, *said], {})
    held = _labels([None, *(_of(_of(row, _INFO), (HELD,)) for row in kept)], {})
    extra: dict[str, Any] = {"transitions": [first, last]}
    if success is None and rewards is not None and np.isin(rewards, (0, 1)).all():
        success, extra["success_from"] = np.concatenate([[False], rewards == 1]), "rewards"
    after = success if success is None else success[1:]
    terminated, truncated = _ends(rows, np.append(after, False) if departures and after is not None else after)
    if terminated is not None and truncated is not None:
        terminated = aligned.ends(terminated.tolist(), states, "terminated", departures=departures)
        truncated = aligned.ends(truncated.tolist(), states, "truncated", departures=departures)
    meta = Meta(source=str(path), cameras=observed.cameras, description=observed.description,
                extra={**extra, **({"skipped": observed.skipped} if observed.skipped else {})})  # fmt: skip
    return aligned.assemble(
        observed.arrays, meta, actions=_actions([_of(row, _ACTION) for row in kept]), rewards=rewards,
        terminated=terminated, truncated=truncated, success=success, signals={} if held is None else {HELD: held},
    )  # fmt: skip


class FramesPickleWriter:
    """Writes `success/episode_000000.pkl` or `failure/…`, numbered on from those that are there; targets count them."""

    def __init__(
        self, save_dir: Path | str, target_success: int | None = None, target_failure: int | None = None
    ) -> None:
        self._folders = {True: Path(save_dir) / "success", False: Path(save_dir) / "failure"}
        self._targets = {True: target_success, False: target_failure}

    def append(self, episode: Episode) -> Path | None:
        """Keep an episode; returns its file once it is safe on disk, or None if there are enough of its kind."""
        if episode.success is None or episode.success_once is None:
            raise EpisodeError("success/ or failure/? Nobody has said which states of the episode are a success")
        kind = episode.success_once
        there = {each: numbered.taken(folder, r"episode_(\d{6,12})\.pkl") for each, folder in self._folders.items()}
        target = self._targets[kind]
        if target is not None and len(there[kind]) >= target:
            return None
        content = frames_of(episode)
        start = max(there[True] + there[False], default=-1) + 1
        names = (f"episode_{index:06d}.pkl" for index in itertools.count(start))
        return numbered.write_new(self._folders[kind], names, lambda path: _dump(path, content))


class EpisodePickleWriter:
    """Writes `rank_0_env_3_episode_12_success.pkl`, …; an episode whose number is taken gets the next free one."""

    def __init__(self, save_dir: Path | str) -> None:
        self.save_dir = Path(save_dir)

    def append(self, episode: Episode) -> Path:
        """Keep an episode; returns its file once it is safe on disk."""
        meta = episode.meta
        begin = f"rank_{meta.rank}_env_{meta.env}_episode_"
        end = "success" if episode.success_once else "fail"
        there = numbered.taken(self.save_dir, rf"{begin}(\d{{1,12}})_(?:success|fail)\.pkl")
        start = meta.episode if meta.episode not in there else there[-1] + 1
        content = lists_of(episode)
        names = (f"{begin}{index}_{end}.pkl" for index in itertools.count(start))
        return numbered.write_new(self.save_dir, names, lambda path: _dump(path, content))


def write_data(path: Path, episodes: Iterable[Episode]) -> None:
    """Write all episodes into one `data.pkl`, one after the other: no more than one is in memory."""
    with files.replacing(path) as temporary, temporary.open("wb") as file:
        file.write(pickle.PROTO + b"\x03" + pickle.EMPTY_LIST + pickle.MARK)
        for episode in episodes:
            # Protocol 3 has no frames and numbers its memo: without PROTO and STOP, one item can follow the other.
            file.write(memoryview(pickle.dumps(lists_of(episode), 3))[2:-1])
        file.write(pickle.APPENDS + pickle.STOP)


def frames_of(episode: Episode) -> dict[str, Any]:
    """An episode as `frames`; the first is the reset state, to which no step has led."""
    grasp, held = episode.signals.get(GRASP), episode.signals.get(HELD)
    frames: list[dict[str, Any]] = []
    for index in range(episode.states_count):
        step = index - 1
        ended = {"terminated": bool(episode.terminated[step]), "truncated": bool(episode.truncated[step])}
        frames.append(
            {
                "obs": _row(episode.observations, index),
                "action": episode.actions[step] if index else None,
                "reward": float(episode.rewards[step]) if index else 0.0,
                "done": bool(index) and any(ended.values()),
                "grasp": None if grasp is None else bool(grasp[index]),
                "success": None if episode.success is None else bool(episode.success[index]),
                **({} if held is None else {"held": bool(held[index])}),
                **(ended if index else {"terminated": False, "truncated": False}),
            }
        )
    once = episode.success_once
    return {"frames": frames, "success": once, "label": int(bool(once)), "meta": episode.meta.to_json()}


def lists_of(episode: Episode) -> dict[str, Any]:
    """An episode as one list per field."""
    signals = {name: array for name, array in episode.signals.items() if name not in SUCCESS}
    if episode.success is not None:
        signals["success"] = episode.success
    return {
        "rank": episode.meta.rank,
        "env_idx": episode.meta.env,
        "episode_id": episode.meta.episode,
        "success": episode.success_once,
        "observations": [_row(episode.observations, index) for index in range(episode.states_count)],
        "actions": list(episode.actions),
        "rewards": episode.rewards.tolist(),
        "terminated": episode.terminated.tolist(),
        "truncated": episode.truncated.tolist(),
        "infos": [_row(signals, index) for index in range(episode.states_count)],
        "meta": episode.meta.to_json(),
    }


def _row(arrays: Mapping[str, np.ndarray], index: int) -> dict[str, Any]:
    return {name: array[index] for name, array in arrays.items()}


def _dump(path: Path, content: Any) -> None:
    with path.open("wb") as file:
        pickle.dump(content, file, PROTOCOL)


def _own_meta(value: Mapping[str, Any]) -> Meta | None:
    """The meta in a file of our own."""
    if not isinstance(value.get("meta"), dict):
        return None
    try:
        return Meta.from_json(json.loads(json.dumps(value["meta"], allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise EpisodeError(f"meta holds more than plain values ({str(error)[:100]})") from None
    except EpisodeError as error:
        raise EpisodeError(str(error)[:200]) from None


def _finish(episode: Episode, own: Meta | None) -> Episode:
    """In a file of our own nothing is missing that the episode had."""
    return episode if own is None else replace(episode, meta=own).validate()


def _meta(
    observed: Observed, path: Path, ids: Mapping[str, Any], success: np.ndarray | None, value: Mapping[str, Any]
) -> Meta:
    def count(name: str) -> int:
        return ids[name] if type(ids.get(name)) is int and 0 <= ids[name] < 2**48 else 0

    extra: dict[str, Any] = {"skipped": observed.skipped} if observed.skipped else {}
    whole = _flag(value.get("success"))
    if whole is not None and (success is None or (whole and not success.any())):
        extra[WHOLE_SUCCESS] = whole
    return Meta(
        source=str(path), rank=count("rank"), env=count("env_idx"), episode=count("episode_id"),
        cameras=observed.cameras, description=observed.description, extra=extra,
    )  # fmt: skip


def _labels(said: Sequence[Any], value: Mapping[str, Any]) -> np.ndarray | None:
    """bool[T+1] of flags about the states; an episode that as a whole was none has no success in any state."""
    flags = [_flag(each) for each in said]
    if all(flag is None for flag in flags) and _flag(value.get("success")) is False:
        return np.zeros(len(flags), bool)
    return None if all(flag is None for flag in flags) else aligned.labels(flags)


def _signals(infos: Sequence[Any], observed: Observed, *, exact: bool) -> dict[str, np.ndarray]:
    """Numbers that stand in the infos of all states; of truth values the reset state may have none."""
    signals: dict[str, np.ndarray] = {}
    dicts = [info if isinstance(info, dict) else {} for info in infos]
    for name in dict.fromkeys(name for info in dicts for name in info):
        if name in (SUCCESS[:1] if exact else SUCCESS):
            continue
        values = [info.get(name) for info in dicts]
        if values[0] is None and all(isinstance(each, bool | np.bool_) for each in values[1:]):
            values[0] = False
        usable = isinstance(name, str) and name and "/" not in name
        array = None
        if usable and all(isinstance(each, bool | int | float | np.ndarray | np.generic) for each in values):
            arrays = [np.asarray(each) for each in values]
            if len({each.shape for each in arrays}) == 1 and all(each.dtype.kind in "biuf" for each in arrays):
                array = np.stack(arrays)
        if array is None:
            observed.skipped.append(f"infos/{str(name)[:100]}")
        else:
            signals[name] = array
    return signals


def _actions(values: Sequence[Any]) -> np.ndarray | None:
    """f32[T,a], or None where nobody says what the actions were."""
    if all(value is None for value in values):
        return None
    rows = [observations.numbers(value, "actions").reshape(-1) for value in values]
    if len({len(row) for row in rows}) > 1:
        raise EpisodeError("actions change their width from step to step")
    return observations.float32(np.stack(rows))


def _numbers(values: Sequence[Any], name: str) -> np.ndarray | None:
    """f32[T], or None where there are none."""
    if all(value is None for value in values):
        return None
    return observations.float32(np.array([number(value, name) for value in values]))


def _ends(rows: Sequence[Mapping[str, Any]], success: np.ndarray | None) -> tuple[np.ndarray | None, np.ndarray | None]:
    """`terminated` and `truncated` of rows. A mere `done` terminates at a success and truncates elsewhere."""
    if _all_have(rows, _TERMINATED) and _all_have(rows, _TRUNCATED):
        return _flags(rows, _TERMINATED), _flags(rows, _TRUNCATED)
    if not _all_have(rows, _DONE):
        return None, None
    done = _flags(rows, _DONE)
    if _all_have(rows, ("masks",)):
        final = ~_flags(rows, ("masks",))
    elif success is not None:
        final = success
    else:
        return None, None
    return done & final, done & ~final


def _all_have(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> bool:
    return all(_of(row, names) is not None for row in rows)


def _flags(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> np.ndarray:
    return np.array([_flag(_of(row, names)) or False for row in rows], bool)


def _is_end(row: Mapping[str, Any]) -> bool:
    if any(_flag(_of(row, names)) for names in (_DONE, _TERMINATED, _TRUNCATED)):
        return True
    return row.get("masks") is not None and not _flag(row["masks"])


def _flag(value: Any) -> bool | None:
    """A truth value, which may come as a number or an array of one."""
    return None if value is None else number(value, "a flag") >= 0.5


def _of(row: Any, names: Sequence[str]) -> Any:
    """The first of those names that a dict has, or None."""
    if not isinstance(row, dict):
        return None
    return next((row[name] for name in names if row.get(name) is not None), None)


def _list(value: Any, name: str) -> Sequence[Any]:
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
        return list(value)
    raise EpisodeError(f"{name} is no list")

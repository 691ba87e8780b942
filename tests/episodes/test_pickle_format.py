"""`.pkl` episodes in three layouts: round trips of ours, and files of others against values written down by hand."""

import itertools
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from episodes.examples import assert_same, episodes, make_episode
from referee.episodes import Episode, EpisodeError
from referee.episodes.formats import pickled
from referee.episodes.formats.pickled import EpisodePickleWriter, FramesPickleWriter, write_data


def dump(path: Path, value: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol))
    return path


def read(path: Path) -> Episode:
    (episode,) = pickled.read(path)
    return episode


def picture(level: int, pixels: int = 4) -> np.ndarray:
    return np.full((pixels, pixels, 3), level, np.uint8)


# -- round trips -------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(episode=episodes())
def test_lists_hold_everything(tmp_path_factory: pytest.TempPathFactory, episode: Episode) -> None:
    folder = tmp_path_factory.mktemp("lists")
    assert_same(read(EpisodePickleWriter(folder).append(episode)), episode)
    unlabelled = replace(episode, success=None)
    assert_same(read(EpisodePickleWriter(folder).append(unlabelled)), unlabelled)
    write_data(folder / "data.pkl", [episode, unlabelled])
    first, second = pickled.read(folder / "data.pkl")
    assert_same(first, episode)
    assert_same(second, unlabelled)


@settings(deadline=None, max_examples=25)
@given(episode=episodes())
def test_frames_hold_all_but_other_signals(tmp_path_factory: pytest.TempPathFactory, episode: Episode) -> None:
    path = FramesPickleWriter(tmp_path_factory.mktemp("frames")).append(episode)
    assert path is not None and path.parent.name == ("success" if episode.success_once else "failure")
    assert_same(read(path), replace(episode, signals={"grasp": episode.signals["grasp"]}))


def test_odd_shapes_come_back(tmp_path: Path) -> None:
    episode = make_episode(4)
    episode = replace(
        episode,
        observations={"one": np.arange(5.0).reshape(5, 1, 1), "flat": np.arange(5, dtype=np.int16)},
        actions=np.zeros((4, 0), np.float32),
        signals={"force": np.ones((5, 2, 3), np.float16)},
        meta=replace(episode.meta, cameras=(), id="a", extra={"missing": ["actions"]}),
    )
    assert_same(read(EpisodePickleWriter(tmp_path).append(episode)), episode)


def test_lists_are_as_documented(tmp_path: Path) -> None:
    episode = make_episode(3, success_from=2, rank=1, env=3, episode=12)
    path = EpisodePickleWriter(tmp_path).append(episode)
    assert path.name == "rank_1_env_3_episode_12_success.pkl"
    value = pickle.loads(path.read_bytes())
    assert (value["rank"], value["env_idx"], value["episode_id"], value["success"]) == (1, 3, 12, True)
    lengths = {name: len(values) for name, values in value.items() if isinstance(values, list)}
    assert lengths == {
        "observations": 4, "actions": 3, "rewards": 3, "terminated": 3, "truncated": 3, "infos": 4,
    }  # fmt: skip
    assert [info["success"] for info in value["infos"]] == [False, False, True, True]
    np.testing.assert_array_equal(value["observations"][2]["main_images"], episode.observations["main_images"][2])
    assert value["observations"][0]["extra_view_images"].shape == (1, 8, 8, 3)
    assert value["truncated"] == [False, False, True]


def test_frames_are_as_documented(tmp_path: Path) -> None:
    episode = make_episode(3, success_from=None)
    path = FramesPickleWriter(tmp_path).append(episode)
    assert path == tmp_path / "failure" / "episode_000000.pkl"
    value = pickle.loads(path.read_bytes())
    assert value["success"] is False and value["label"] == 0 and len(value["frames"]) == 4
    first, second, *_, last = value["frames"]
    assert {"obs", "action", "reward", "done", "grasp", "success"} <= first.keys()
    assert first["action"] is None and not first["done"] and last["done"]
    # A frame is a state and the step that led to it.
    np.testing.assert_array_equal(second["action"], episode.actions[0])
    np.testing.assert_array_equal(second["obs"]["states"], episode.observations["states"][1])
    assert second["reward"] == episode.rewards[0] and second["grasp"] == episode.signals["grasp"][1]
    assert FramesPickleWriter(tmp_path).append(replace(episode, signals={})) == path.with_name("episode_000001.pkl")
    assert pickle.loads(path.with_name("episode_000001.pkl").read_bytes())["frames"][1]["grasp"] is None
    assert read(path.with_name("episode_000001.pkl")).signals == {}


def test_numbers_go_on_and_targets_count_what_is_there(tmp_path: Path) -> None:
    good, bad = make_episode(2, success_from=1, pixels=0), make_episode(2, success_from=None, pixels=0)
    first = FramesPickleWriter(tmp_path)
    assert [path.name[8:14] for path in map(first.append, [good, bad, good]) if path] == ["000000", "000001", "000002"]
    again = FramesPickleWriter(tmp_path, target_success=2, target_failure=2)
    assert again.append(good) is None
    assert again.append(bad) == tmp_path / "failure" / "episode_000003.pkl"
    assert again.append(bad) is None
    with pytest.raises(EpisodeError, match="Nobody has said"):
        again.append(replace(good, success=None))
    assert not list(tmp_path.rglob(".*"))


def test_no_episode_replaces_another(tmp_path: Path) -> None:
    good, bad = make_episode(2, episode=4), make_episode(2, episode=4, success_from=None, seed=1)
    names = [EpisodePickleWriter(tmp_path).append(each).name for each in (good, bad, good, make_episode(2, env=1))]
    assert names == [
        "rank_0_env_0_episode_4_fail.pkl", "rank_0_env_0_episode_5_fail.pkl", "rank_0_env_0_episode_6_fail.pkl",
        "rank_0_env_1_episode_0_fail.pkl",
    ]  # fmt: skip


def test_data_is_written_one_by_one(tmp_path: Path) -> None:
    alive: list[int] = []

    def source() -> Any:
        for index in range(3):
            alive.append(index)
            yield make_episode(2, seed=index)

    write_data(tmp_path / "data.pkl", source())
    value = pickle.loads((tmp_path / "data.pkl").read_bytes())  # Python's own reader understands it
    assert len(value) == 3 and value[2]["actions"][1].shape == (3,)
    with pytest.raises(ZeroDivisionError):
        write_data(tmp_path / "data.pkl", (make_episode(2, seed=1 // (1 - index)) for index in range(3)))
    assert len(list(pickled.read(tmp_path / "data.pkl"))) == 3 and [*tmp_path.iterdir()] == [tmp_path / "data.pkl"]


# -- files of others: frames -------------------------------------------------------------------------------------------


def frames(count: int = 4, **changes: Callable[[int], object]) -> list[dict[str, object]]:
    usual: dict[str, Callable[[int], object]] = {
        "obs": lambda i: {"main_images": picture(i), "states": np.full(2, i, np.float64)},
        "action": lambda i: np.full(3, i, np.float32),
        "reward": lambda i: 0.5 * i,
        "done": lambda i: i == count - 1,
        "grasp": lambda i: i == 2,
        "success": lambda i: i == count - 1,
    }
    return [{name: make(i) for name, make in (usual | changes).items()} for i in range(count)]


def test_frames_of_others_are_arrivals(tmp_path: Path) -> None:
    episode = read(dump(tmp_path / "episode_000007.pkl", {"frames": frames(), "success": True, "label": 1}))
    assert len(episode) == 3
    assert episode.observations["main_images"][:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert episode.observations["states"].dtype == np.float32
    assert episode.actions[:, 0].tolist() == [1, 2, 3]  # what led to frame 0 is not an action between two states
    assert episode.rewards.tolist() == [0.5, 1.0, 1.5]
    assert episode.success is not None and episode.success.tolist() == [False, False, False, True]
    assert episode.signals["grasp"].tolist() == [False, False, True, False]
    assert episode.terminated.tolist() == [False, False, True] and not episode.truncated.any()
    assert episode.meta.episode == 7 and episode.meta.extra == {}


def test_done_without_success_is_a_truncation(tmp_path: Path) -> None:
    value = {"frames": frames(success=lambda i: torch.tensor([False])), "success": False, "label": 0}
    episode = read(dump(tmp_path / "x.pkl", value))
    assert not episode.terminated.any() and episode.truncated.tolist() == [False, False, True]


def test_frames_without_labels(tmp_path: Path) -> None:
    bare = [{"obs": frame["obs"]} for frame in frames()]
    failed = read(dump(tmp_path / "x.pkl", {"frames": bare, "success": False}))
    assert failed.success is not None and not failed.success.any()  # no state of a failed episode is a success
    done = read(dump(tmp_path / "x.pkl", {"frames": bare, "success": True}))
    assert done.success is None and done.meta.extra["success"] is True  # but which of these is, nobody says
    assert done.meta.extra["missing"] == ["actions", "rewards", "terminated", "truncated", "success"]
    assert done.actions.shape == (3, 0) and done.truncated.tolist() == [False, False, True]


# -- files of others: lists --------------------------------------------------------------------------------------------


def listed(states: int = 4, *, steps: int = 3, entries: int | None = None, **changes: object) -> dict[str, object]:
    """An episode in lists; `entries` of all but observations and actions."""
    entries = steps if entries is None else entries
    offset = entries - steps  # 1 where entry 0 belongs to the reset
    return {
        "rank": 2, "env_idx": 1, "episode_id": 5, "success": True, "step": 99,
        "observations": [{"main_images": picture(i), "states": torch.full((2,), float(i))} for i in range(states)],
        "actions": [torch.full((3,), float(i)) for i in range(steps)],
        "rewards": [torch.tensor(10.0 * (i - offset + 1)) for i in range(entries)],
        "terminated": [np.bool_(i == entries - 1) for i in range(entries)],
        "truncated": [torch.tensor(False) for _ in range(entries)],
        "infos": [{} if offset and not i else {"success": torch.tensor([i >= 2 + offset]), "is_grasped": i > 1, "x": {}}
                  for i in range(entries)],
        **changes,
    }  # fmt: skip


@pytest.mark.parametrize("entries", [3, 4])
@pytest.mark.parametrize("protocol", [2, 5])
def test_lists_of_others_with_or_without_an_entry_for_the_reset(tmp_path: Path, entries: int, protocol: int) -> None:
    episode = read(dump(tmp_path / "x.pkl", listed(entries=entries), protocol))
    assert len(episode) == 3 and episode.actions[:, 0].tolist() == [0, 1, 2]
    assert episode.rewards.tolist() == [10, 20, 30]
    assert episode.terminated.tolist() == [False, False, True] and not episode.truncated.any()
    assert episode.success is not None and episode.success.tolist() == [False, False, False, True]
    assert episode.observations["states"][:, 0].tolist() == [0, 1, 2, 3]
    assert episode.signals["is_grasped"].dtype == np.bool_ and not episode.signals["is_grasped"][0]
    assert (episode.meta.rank, episode.meta.env, episode.meta.episode) == (2, 1, 5)
    assert episode.meta.extra == {"skipped": ["infos/x"]}


def test_as_many_actions_as_observations_are_departures(tmp_path: Path) -> None:
    value = listed(4, steps=4, infos=[{"is_obj_placed": i >= 2} for i in range(4)])
    value["terminated"], value["truncated"] = [False] * 3 + [True], [False] * 4
    episode = read(dump(tmp_path / "x.pkl", value))
    assert len(episode) == 3
    assert episode.actions[:, 0].tolist() == [0, 1, 2] and episode.rewards.tolist() == [10, 20, 30]
    assert episode.success is not None and episode.success.tolist() == [False, False, True, True]
    assert episode.terminated.tolist() == [False, False, True]  # the end is kept, though its step is not


def test_a_state_without_label_leaves_the_episode_unlabelled(tmp_path: Path) -> None:
    infos = [{"success": False}, {"success": False}, {}, {"success": True}]
    assert read(dump(tmp_path / "x.pkl", listed(infos=infos))).success is None
    assert read(dump(tmp_path / "x.pkl", listed(infos=[{}, *infos[1:2] * 3]))).success is not None


def test_stacked_arrays_are_lists_too(tmp_path: Path) -> None:
    value = listed(actions=np.arange(9.0).reshape(3, 3), rewards=np.ones(3), terminated=np.zeros(3, bool))
    episode = read(dump(tmp_path / "x.pkl", value))
    assert episode.actions.dtype == np.float32 and episode.actions[2].tolist() == [6, 7, 8]


# -- observations of others --------------------------------------------------------------------------------------------

FLOATS = np.full((3, 4, 4), 0.5, np.float32)


@pytest.mark.parametrize(
    ("image", "level"),
    [
        (picture(9), 9),
        (picture(9)[None], 9),
        (np.moveaxis(picture(9), -1, 0), 9),
        (torch.from_numpy(np.moveaxis(picture(9), -1, 0)[None].copy()), 9),
        (FLOATS, 128),
        (FLOATS[None].astype(np.float64), 128),
        (torch.full((4, 4, 3), 0.5, dtype=torch.bfloat16), 128),
        (np.moveaxis(FLOATS, 0, -1), 128),
        (picture(9).astype(np.int64), 9),
    ],
)
def test_pictures_become_uint8(tmp_path: Path, image: object, level: int) -> None:
    value = listed(observations=[{"main_images": image}] * 4)
    images = read(dump(tmp_path / "x.pkl", value)).observations["main_images"]
    assert images.dtype == np.uint8 and images.shape == (4, 4, 4, 3) and (images == level).all()


@pytest.mark.parametrize(
    "image", [picture(0) * 1.0 + 200, picture(0) * np.nan, picture(0)[..., :2], picture(0)[0], "text", None]
)
def test_what_is_no_picture_is_refused(tmp_path: Path, image: object) -> None:
    with pytest.raises(EpisodeError, match=r"x\.pkl: main_images"):
        read(dump(tmp_path / "x.pkl", listed(observations=[{"main_images": image}] * 4)))


def test_views_and_cameras(tmp_path: Path) -> None:
    def observed(observation: object) -> Episode:
        return read(dump(tmp_path / "x.pkl", listed(observations=[observation] * 4)))

    views = np.stack([picture(1), picture(2)])
    for extra in (views, views[None], np.moveaxis(views, -1, 1) / 255):
        episode = observed({"main_images": picture(0), "extra_view_images": extra})
        assert episode.observations["extra_view_images"].shape == (4, 2, 4, 4, 3)
        assert episode.observations["extra_view_images"][3, 1, 0, 0].tolist() == [2, 2, 2] and not episode.meta.cameras
    one = observed({"main_images": picture(0), "extra_view_images": picture(1)})
    assert one.observations["extra_view_images"].shape == (4, 1, 4, 4, 3)
    named = observed({"state": np.zeros((1, 7)), "wrist": picture(1)[None], "side": picture(2)[None]})
    assert named.meta.cameras == ("wrist", "side") and named.observations["state"].shape == (4, 7)
    assert (named.view("side") == 2).all() and (named.view("wrist") == 1).all()
    inside = observed({"images": {"top": picture(3), "near": picture(4, 8)}, "agent": {"qpos": np.zeros(7)}})
    assert inside.meta.cameras == ("top",) and inside.observations["near"].shape == (4, 8, 8, 3)
    assert inside.observations["agent.qpos"].shape == (4, 7)
    alone = observed(np.arange(5.0))
    assert alone.observations["states"].shape == (4, 5)
    text = observed({"states": [0.0, 1.0], "task_descriptions": ["Pick it."], "note": "x", "nothing": None})
    assert text.meta.description == "Pick it." and text.meta.extra["skipped"][:2] == ["note", "nothing"]


# -- files of others: data.pkl -----------------------------------------------------------------------------------------


def transitions(lengths: list[int], **names: str) -> list[dict[str, Any]]:
    """Transitions of episodes in which each state shows its own number, with tensors of a batch of one."""
    rows: list[dict[str, Any]] = []

    def observation(level: int) -> dict[str, object]:
        return {"states": torch.full((1, 2), float(level)), "main_images": picture(level % 256)[None]}

    for number, length in enumerate(lengths):
        for step in range(length):
            here = 100 * number + step
            rows.append(
                {
                    names.get("obs", "obs"): observation(here),
                    names.get("next", "next_obs"): observation(here + 1),
                    names.get("action", "action"): torch.full((1, 3), float(here)),
                    "rewards": torch.tensor([[float(step == length - 1)]]),
                    "dones": torch.tensor([[step == length - 1]]),
                }
            )
    return rows


@pytest.mark.parametrize("nested", [True, False])
def test_transitions_are_cut_where_they_are_done(tmp_path: Path, nested: bool) -> None:
    rows = transitions([3, 1, 2])
    if nested:
        rows = [{"transitions": {key: row.pop(key) for key in ("obs", "next_obs")}, **row} for row in rows]
    first, second, third = pickled.read(dump(tmp_path / "data.pkl", rows))
    assert [len(each) for each in (first, second, third)] == [3, 1, 2]
    # The observation after the last action belongs to its own episode.
    assert first.observations["states"][:, 0].tolist() == [0, 1, 2, 3]
    assert second.observations["states"][:, 0].tolist() == [100, 101]
    assert third.actions[:, 0].tolist() == [200, 201] and third.actions.shape == (2, 3)
    assert first.success is not None and first.success.tolist() == [False, False, False, True]
    assert first.meta.extra["success_from"] == "rewards" and first.meta.extra["transitions"] == [0, 3]
    assert first.terminated.tolist() == [False, False, True] and not first.truncated.any()
    assert first.observations["main_images"].shape == (4, 4, 4, 3)


def test_transitions_of_other_names(tmp_path: Path) -> None:
    rows = transitions([2, 2], obs="observations", next="next_observations", action="actions")
    for index, row in enumerate(rows):
        row |= {"masks": 0.0 if index == 1 else 1.0, "rewards": -0.3, "infos": {"succeed": index == 1}}
        row["infos"]["held"] = index == 2
    first, second = pickled.read(dump(tmp_path / "data.pkl", rows))
    assert first.signals["held"].tolist() == [False] * 3 and second.signals["held"].tolist() == [False, True, False]
    assert first.terminated.tolist() == [False, True] and second.truncated.tolist() == [False, True]
    assert first.success is not None and first.success.tolist() == [False, False, True]
    assert second.success is not None and not second.success.any()
    np.testing.assert_allclose(first.rewards, -0.3)


def test_transitions_that_are_not_done_at_the_end(tmp_path: Path) -> None:
    rows = transitions([3])[:2]
    for row in rows:
        row["rewards"] = 0.25
    (episode,) = pickled.read(dump(tmp_path / "data.pkl", rows))
    assert len(episode) == 2 and episode.success is None  # dense rewards do not say what a success is
    assert episode.truncated.tolist() == [False, True] and "success" in episode.meta.extra["missing"]


def test_transitions_without_next_observations_are_departures(tmp_path: Path) -> None:
    rows = transitions([4])
    for row in rows:
        del row["next_obs"]
        row |= {"terminations": row["dones"], "truncations": torch.zeros(1, 1), "rewards": 1.0}
    (episode,) = pickled.read(dump(tmp_path / "data.pkl", rows))
    assert len(episode) == 3 and episode.actions[:, 0].tolist() == [0, 1, 2]
    assert episode.terminated.tolist() == [False, False, True]
    with pytest.raises(EpisodeError, match="needs `next_obs`"):
        list(pickled.read(dump(tmp_path / "data.pkl", rows[:1])))


def test_shared_observations_are_not_a_bomb(tmp_path: Path) -> None:
    rows = transitions([50])
    for before, row in itertools.pairwise(rows):
        before["next_obs"] = row["obs"]
    (episode,) = pickled.read(dump(tmp_path / "data.pkl", rows))
    assert episode.observations["states"][:, 0].tolist() == list(range(51))


# -- broken files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"observations": 3}, "holds no episode"),
        ({}, "holds no episode"),
        ([], "holds no episode"),
        ([1, 2], "holds no episode"),
        ("text", "holds no episode"),
        ({"frames": []}, "no observations"),
        ({"frames": [{"obs": {}}] * 3}, "no observations"),
        ({"frames": [{"action": 1}]}, "no dict with an `obs`"),
        ({"frames": frames(1)}, "one state only"),
        ({"frames": frames(obs=lambda i: {"states": np.zeros(i + 1)})}, "states changes its shape"),
        ({"frames": frames(obs=lambda i: {"main_images": picture(0, i + 1)})}, "change their size at frame 1"),
        ({"frames": frames(obs=lambda i: {f"a{i}": 1.0})}, "frame 1 has no a0"),
        ({"frames": frames(action=lambda i: np.zeros(i))}, "actions change their width"),
        ({"frames": frames(action=lambda i: None if i == 2 else 1.0)}, "actions holds a NoneType"),
        ({"frames": frames(reward=lambda i: "much")}, "reward holds a str"),
        ({"frames": frames(success=lambda i: np.zeros(2))}, "holds 2 numbers where one is needed"),
        (listed(rewards=[1.0] * 5), "rewards has 5 entries for 4 observations: 3 or 4 are needed"),
        (listed(actions=[1.0] * 2), "actions has 2 entries"),
        (listed(infos=[{}]), "infos has 1 entries"),
        (listed(terminated=3), "terminated is no list"),
        (listed(observations=[3] * 4), "an observation is a int"),
        (listed(meta={"id": 3}), "id of an episode is 3"),
        (listed(meta={"task": "x"}, observations=[{"main_images": np.zeros((4, 4))}] * 4), "main_images must be uint8"),
        ([listed(), 3], "holds no episode"),
        ([{"obs": {"states": 1.0}, "next_obs": {"other": 1.0}, "dones": True}], "frame 1 has no states"),
    ],
)
def test_broken_episodes_are_named(tmp_path: Path, value: object, reason: str) -> None:
    path = dump(tmp_path / "episode_000003.pkl", value)
    with pytest.raises(EpisodeError) as error:
        list(pickled.read(path))
    assert str(error.value).startswith(f"{path}: ") and reason in str(error.value)

"""HDF5 in robomimic's layout: the final state is kept where there is one, and nothing outside of the file is opened."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from referee.episodes import EpisodeError
from referee.episodes.formats.detect import read_any
from referee.episodes.formats.hdf5 import read

h5py = pytest.importorskip("h5py")
ROWS = 4


def demo(data: Any, name: str, *, final: bool = True, first: int = 0, **compression: Any) -> Any:
    """A group of four rows whose values say where they are from."""
    group = data.create_group(name)
    rows = np.arange(first, first + ROWS)
    images = np.broadcast_to(10 * rows[:, None, None, None], (ROWS, 6, 8, 3)).astype(np.uint8)
    for place, shift in (("obs", 0), *((("next_obs", 1),) if final else ())):
        group.create_dataset(f"{place}/front_image", data=images + 10 * shift, **compression)
        group.create_dataset(f"{place}/wrist_image", data=images + 10 * shift + 1)
        group.create_dataset(f"{place}/eef_pos", data=np.stack([rows + shift, -rows - shift], axis=1).astype(float))
        group.create_dataset(f"{place}/gripper", data=100.0 + rows + shift)
    group.create_dataset("actions", data=np.stack([rows, rows], axis=1) / 10)
    group.create_dataset("rewards", data=(rows == first + ROWS - 1).astype(float))
    group.create_dataset("dones", data=(rows == first + ROWS - 1).astype(int))
    return group


def make(path: Path, change: Callable[[Any], Any] | None = None, **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        group = demo(file.create_group("data"), "demo_0", **options)
        if change is not None:
            change(group)
    return path


def test_next_obs_gives_the_final_state(tmp_path: Path) -> None:
    (episode,) = read(make(tmp_path / "a.hdf5", compression="gzip"))
    assert len(episode) == 4 and episode.states_count == 5
    assert episode.view("front_image")[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40]
    assert episode.view("wrist_image")[:, 0, 0, 0].tolist() == [1, 11, 21, 31, 41]
    wanted = [[0, 0, 100], [1, -1, 101], [2, -2, 102], [3, -3, 103], [4, -4, 104]]
    assert episode.observations["states"].tolist() == wanted and episode.observations["states"].dtype == np.float32
    assert episode.meta.extra["states"] == [["eef_pos", 2], ["gripper", 1]]
    np.testing.assert_allclose(episode.actions, np.arange(4)[:, None] / 10 * [1, 1])
    assert episode.rewards.tolist() == [0, 0, 0, 1] and episode.terminated.tolist() == [False] * 3 + [True]
    assert episode.success is None and "success" in episode.meta.extra["missing"]


def test_without_it_the_last_action_is_dropped(tmp_path: Path) -> None:
    (episode,) = read(make(tmp_path / "a.hdf5", final=False))
    assert len(episode) == 3 and episode.view("front_image")[:, 0, 0, 0].tolist() == [0, 10, 20, 30]
    np.testing.assert_allclose(episode.actions[:, 0], [0, 0.1, 0.2])
    assert episode.rewards.tolist() == [0, 0, 0] and episode.terminated.tolist() == [False, False, True]


def test_demos_in_the_order_of_their_numbers_with_labels(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        for k in (10, 2):
            demo(file.require_group("data"), f"demo_{k}", first=k)
    labels = tmp_path / "l.csv"
    labels.write_text("episode,start,end,success\ndemo_10,3,4,1\n")
    second, tenth = read_any(path, labels=labels)
    assert (second.meta.extra["name"], tenth.meta.extra["name"]) == ("demo_2", "demo_10")
    assert second.success is None and tenth.success is not None
    assert tenth.success.tolist() == [False, False, False, True, True]
    assert tenth.observations["states"][0, 0] == 10
    labels.write_text("episode,frame,success\ndemo_3,1,1\n")
    with pytest.raises(EpisodeError, match=r"l\.csv: line 2 is about 'demo_3', but the episodes are demo_2, demo_10"):
        read_any(path, labels=labels)
    labels.write_text("episode,frame,success\ndemo_2,5,1\n")
    with pytest.raises(EpisodeError, match=r"l\.csv: line 2 is about frame 5 of 'demo_2', whose frames are 0 to 4"):
        list(read_any(path, labels=labels))


def test_cameras_can_be_chosen(tmp_path: Path) -> None:
    path = make(tmp_path / "a.hdf5")
    (episode,) = read(path, cameras=["wrist_image"])
    assert episode.meta.cameras == ("wrist_image",) and "extra_view_images" not in episode.observations
    with pytest.raises(EpisodeError, match="no camera 'top': it has front_image, wrist_image"):
        list(read(path, cameras=["top"]))


def test_what_is_missing_and_what_was_skipped_is_named(tmp_path: Path) -> None:
    def change(group: Any) -> None:
        del group["actions"], group["dones"]
        group["obs/depth"] = np.zeros((ROWS, 6, 8, 1), np.float32)

    (episode,) = read(make(tmp_path / "a.hdf5", change))
    assert episode.actions.shape == (4, 0) and episode.truncated.tolist() == [False] * 3 + [True]
    assert {"actions", "terminated"} <= set(episode.meta.extra["missing"])
    assert episode.meta.extra["skipped"] == ["depth"]


# --- broken and hostile files ---


def external_link(group: Any) -> None:
    del group["obs/front_image"]
    group["obs/front_image"] = h5py.ExternalLink("/etc/hostname", "/x")


def soft_link(group: Any) -> None:
    del group["actions"]
    group["actions"] = h5py.SoftLink("/data/demo_0/obs/eef_pos")


def external_data(group: Any) -> None:
    del group["rewards"]
    group.create_dataset("rewards", (ROWS,), np.uint8, external=[("/etc/passwd", 0, ROWS)])


def virtual_data(group: Any) -> None:
    layout = h5py.VirtualLayout((ROWS,), np.float64)
    layout[:] = h5py.VirtualSource("/tmp/other.hdf5", "x", (ROWS,))
    del group["rewards"]
    group.create_virtual_dataset("rewards", layout)


def huge(group: Any) -> None:
    del group["obs/front_image"]
    group.create_dataset("obs/front_image", (ROWS, 100_000, 100_000, 3), np.uint8, chunks=(1, 64, 64, 3))


def long(group: Any) -> None:
    for key in list(group["obs"]):
        del group["obs"][key]
    group.create_dataset("obs/x", (1 << 40, 1), np.uint8, chunks=(1024, 1))


def text(group: Any) -> None:
    del group["actions"]
    group["actions"] = ["a"] * ROWS


def few(group: Any) -> None:
    del group["actions"]
    group["actions"] = np.zeros((2, 2))


def uneven(group: Any) -> None:
    group["obs/more"] = np.zeros((3, 2))


def nothing(group: Any) -> None:
    del group["obs"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (external_link, "front_image is a link, which is not followed"),
        (soft_link, "actions is a link, which is not followed"),
        (external_data, "keeps its data in other files"),
        (virtual_data, "keeps its data in other files"),
        (huge, "GiB"),
        (long, "too many for one episode"),
        (text, "actions holds object, but numbers are needed"),
        (few, r"actions has \[2, 2\], which does not fit 5 states"),
        (uneven, "different numbers of rows"),
        (nothing, "has no obs"),
    ],
)
def test_what_is_not_as_it_must_be_is_refused(tmp_path: Path, change: Callable[[Any], None], message: str) -> None:
    path = make(tmp_path / "a.hdf5", change)
    with pytest.raises(EpisodeError, match=message) as caught:
        list(read(path))
    assert f"{path}/data/demo_0" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("part", [0.0, 0.01, 0.5, 0.99])
def test_half_a_file_is_refused(tmp_path: Path, part: float) -> None:
    path = make(tmp_path / "a.hdf5")
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(EpisodeError, match=r"a\.hdf5"):
        list(read(path))


@pytest.mark.parametrize("name", ["nothing.hdf5", "."])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(EpisodeError, match="cannot be read"):
        read(tmp_path / name)


def test_a_file_without_demos_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["other"] = 1
    with pytest.raises(EpisodeError, match=r"a\.hdf5: has no data"):
        read(tmp_path / "a.hdf5")


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_no_bytes_can_do_more_than_be_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.hdf5"
    whole = tmp_path_factory.getbasetemp() / "whole.hdf5"
    if not whole.exists():
        make(whole, compression="gzip")
    content = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    with contextlib.suppress(EpisodeError):  # anything else that is raised fails the test
        list(read(path))


def test_the_task_is_carried_over(tmp_path: Path) -> None:
    def describe(group: Any) -> None:
        group.parent.attrs["env_args"] = '{"env_name": "Lift", "type": 1}'
        group.parent.attrs["problem_info"] = '{"language_instruction": "lift the cube"}'

    (episode,) = read(make(tmp_path / "a.hdf5", describe))
    assert (episode.meta.task, episode.meta.description) == ("Lift", "lift the cube")

    def describe_each(group: Any) -> None:
        describe(group)
        group.attrs["ep_meta"] = '{"lang": "lift it higher"}'

    (episode,) = read(make(tmp_path / "b.hdf5", describe_each))
    assert episode.meta.description == "lift it higher"

    def babble(group: Any) -> None:
        group.parent.attrs["env_args"] = "{broken"
        group.parent.attrs["problem_info"] = 3
        group.attrs["ep_meta"] = "[1]"

    (episode,) = read(make(tmp_path / "c.hdf5", babble))
    assert (episode.meta.task, episode.meta.description) == ("", "")

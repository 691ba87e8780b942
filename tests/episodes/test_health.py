"""Pictures that show nothing, single labels and unreadable files are told, with how many of how many."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from episodes.examples import make_episode
from referee.episodes import Episode, EpisodeStore
from referee.episodes.health import BLACK, PLAIN, STILL, Health, blank_fault, picture_faults
from referee.episodes.writer import BackgroundWriter


def with_view(episode: Episode, camera: int, pictures: np.ndarray) -> Episode:
    """The same with other pictures of its main camera (0) or of another one."""
    observations = {name: array.copy() for name, array in episode.observations.items()}
    if camera:
        observations["extra_view_images"][:, camera - 1] = pictures
    else:
        observations["main_images"][:] = pictures
    return replace(episode, observations=observations)


def test_each_fault_is_told_of_its_camera() -> None:
    good = make_episode(9, extra_views=2)
    assert picture_faults(good) == {}
    assert picture_faults(make_episode(pixels=0)) == {}
    assert picture_faults(with_view(good, 0, np.zeros(1, np.uint8))) == {"front": BLACK}
    noise = np.random.default_rng(0).integers(0, 8, (10, 8, 8, 3), dtype=np.uint8)
    assert picture_faults(with_view(good, 2, noise)) == {"wrist": BLACK}
    assert picture_faults(with_view(good, 1, 130 + noise // 2)) == {"side": PLAIN}
    assert picture_faults(with_view(good, 1, good.observations["main_images"][0])) == {"side": STILL}


def test_one_good_picture_does_not_hide_the_black_ones() -> None:
    pictures = np.zeros((40, 8, 8, 3), np.uint8)
    pictures[0] = 200 * np.eye(8, dtype=np.uint8)[..., None]
    assert picture_faults(with_view(make_episode(39), 0, pictures)) == {"front": BLACK}
    assert blank_fault(pictures[:2]) == ""  # half of them is not most


def test_warnings_count_and_say_what_to_do() -> None:
    health = Health()
    for number in range(4):
        episode = make_episode(seed=number, id=f"e{number}")
        new = health.look(with_view(episode, 0, np.zeros(1, np.uint8)) if number else episode)
        assert [line.split(":")[0] for line in new] == (
            ["pictures of front are black in episode e1"] if number == 1 else []
        )
    assert health.warnings() == [
        "pictures of front are black in 3 of 4 episodes (e1, e2, e3): check the camera, the light and the renderer, "
        "and record again"
    ]


@pytest.mark.parametrize(("success_from", "word"), [(None, "success"), (0, "failure")])
def test_a_single_label_is_told(success_from: int | None, word: str) -> None:
    health = Health()
    health.look(make_episode(success_from=success_from))
    assert len(health.warnings()) == 1 and f"what {word} looks like" in health.warnings()[0]
    health.look(make_episode())
    assert health.warnings() == []
    unlabelled = Health()
    unlabelled.look(replace(make_episode(), success=None))
    assert unlabelled.warnings() == ["no frame has a label (6 frames): label them before you train on them"]


def test_a_writer_tells_the_first_and_the_sum(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = BackgroundWriter(EpisodeStore(tmp_path))
    for seed in range(3):
        episode = make_episode(seed=seed, success_from=None)
        writer.put(with_view(episode, 0, np.zeros(1, np.uint8)))
        assert len(caplog.messages) == 1 and "in episode number 0" in caplog.messages[0]
    writer.close()
    assert len(caplog.messages) == 3
    assert "black in 3 of 3 episodes" in caplog.messages[1] and "0 of 18 labelled frames" in caplog.messages[2]


def test_a_loop_over_a_store_tells_once_what_it_leaves_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = EpisodeStore(tmp_path)
    path = store.path([store.append(make_episode(seed=seed)) for seed in range(3)][1])
    path.write_bytes(path.read_bytes()[:-9])
    again = EpisodeStore(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert len(list(again)) == 2 and len(list(again)) == 2
    (line,) = caplog.messages
    assert line.startswith("1 of 3 episode files cannot be read and are left out:") and str(path) in line
    assert again.left_out() == ""

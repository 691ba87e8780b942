"""Judging episodes: each state with its own label and logit, a camera taken away, in little memory."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from audit.fakes import FakeArtifact, bright_episode, said
from referee.audit import judged as module
from referee.audit.judged import Judged, judge, judge_frames, mean_views
from referee.config.datasets import FrameConfig
from referee.datasets.frames import build_frames
from referee.datasets.payload import RewardBinaryDataset, RewardDatasetPayload
from referee.episodes import EpisodeStore
from referee.errors import RefereeError
from referee.labels.log import LabelLog


def logit_of(*brightness: float) -> np.ndarray:
    return 12 * (np.array(brightness) / 255 - 0.5)


def test_every_state_with_its_label_and_logit(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path)
    store.append(bright_episode("a", [10, 20, 200], [0, 0, 1]))
    store.append(bright_episode("b", [30, 40], [0, 0]))
    LabelLog.of(store).append("b", None, frames=0, source="web")
    a, b = judge(FakeArtifact(), store)
    assert (a.id, a.labels.tolist(), b.labels.tolist()) == ("a", [0, 0, 1], [-1, 0])
    assert a.logits == pytest.approx(logit_of(10, 20, 200), abs=1e-5) and a.logits.dtype == np.float32
    assert b.logits == pytest.approx(logit_of(30, 40), abs=1e-5)
    assert (a.succeeds, b.succeeds, a.first_success, b.first_success) == (True, False, 2, -1)
    assert a.without == {} and a.whole and a.frame(2) == 2
    assert [each.id for each in judge(FakeArtifact(), store, skip=lambda id: id == "a")] == ["b"]


def test_a_long_episode_is_scored_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 4)
    artifact = FakeArtifact()
    [found] = judge(artifact, [bright_episode("a", list(range(0, 220, 20)), [0] * 11)])
    assert artifact.largest == 4
    assert found.logits == pytest.approx(logit_of(*range(0, 220, 20)), abs=1e-5)


def test_a_camera_is_replaced_by_what_it_shows_on_average() -> None:
    episodes = [bright_episode("a", [0, 100, 200], [0, 0, 1]), bright_episode("b", [20, 40, 60], [0, 0, 0])]
    assert mean_views(episodes, ("front", "side"))[:, 0, 0, 0].tolist() == [70, 100]
    a, _ = judge(FakeArtifact(("front", "side")), episodes, ablate=True)
    assert a.logits == pytest.approx(logit_of(50, 100, 150), abs=1e-5)
    assert a.without["front"] == pytest.approx(logit_of(85, 85, 85), abs=1e-5)
    assert a.without["side"] == pytest.approx(a.logits)  # it never changes, so nothing is lost
    assert judge(FakeArtifact(), episodes, ablate=True)[0].without == {}  # one camera: nothing would be left
    with pytest.raises(TypeError, match="twice"):
        judge(FakeArtifact(("front", "side")), iter(episodes), ablate=True)


def test_episodes_without_an_id_are_numbered() -> None:
    episode = bright_episode("", [0, 1], [0, 1])
    assert [each.id for each in judge(FakeArtifact(), [episode, episode])] == ["000000", "000001"]


def test_one_line_says_what_is_wrong() -> None:
    with pytest.raises(RefereeError, match=r"^episode a has no camera 'wrist': it has front, side$"):
        judge(FakeArtifact(("front", "wrist")), [bright_episode("a", [0, 1], [0, 1])])
    odd = bright_episode("a", [0, 1], [0, 1])
    odd.observations["extra_view_images"] = odd.observations["extra_view_images"][:, :, :4]
    with pytest.raises(RefereeError, match=r"cameras of different size \(front 6x6, side 6x4\)"):
        judge(FakeArtifact(("front", "side")), [odd])
    with pytest.raises(RefereeError, match="no episode to judge"):
        judge(FakeArtifact(("front", "side")), [], ablate=True)
    with pytest.raises(RefereeError, match="NaN or infinity for episode a"):
        Judged("a", np.zeros(2, np.int8), np.array([0.0, np.nan], np.float32))
    with pytest.raises(ValueError, match="3 labels and 2 logits"):
        Judged("a", np.zeros(3, np.int8), np.zeros(2, np.float32))

    class Picky(FakeArtifact):
        def logits(self, images: np.ndarray, batch_size: int = 256) -> np.ndarray:
            raise RefereeError("images of 6x6 are too small")

    with pytest.raises(RefereeError, match=r"^episode a: images of 6x6 are too small$"):
        judge(Picky(), [bright_episode("a", [0, 1], [0, 1])])


def test_outcomes_of_labels() -> None:
    assert said("a", "??", 0.1, 0.2).succeeds is None
    assert said("a", "?0", 0.1, 0.2).succeeds is False
    assert said("a", "?1", 0.1, 0.2).succeeds is True


def test_frames_of_a_file_are_put_together_again(tmp_path: Path) -> None:
    episodes = [bright_episode(f"e{i}", [10 * i, 5, 200 - i], [0, 0, i % 2]) for i in range(6)]
    build_frames(episodes, tmp_path, FrameConfig(val_split=0.5))
    found = judge_frames(FakeArtifact(), RewardBinaryDataset(tmp_path / "val.pt"))
    whole = {each.id: each for each in judge(FakeArtifact(), episodes)}
    assert len(found) == 3
    for each in found:
        assert each.whole and each.labels.tolist() == whole[each.id].labels.tolist()
        assert each.logits == pytest.approx(whole[each.id].logits)
    build_frames(episodes, tmp_path, FrameConfig(val_split=0.5, num_samples_per_episode=2))
    sampled = judge_frames(FakeArtifact(), RewardBinaryDataset(tmp_path / "val.pt"))
    assert not sampled[0].whole and [sampled[0].frame(i) for i in range(2)] == [0, 2]


def test_a_file_that_names_no_episodes_gives_single_states(tmp_path: Path) -> None:
    episode = bright_episode("a", [10, 200], [0, 1])
    images = list(torch.from_numpy(episode.observations["main_images"]))
    RewardDatasetPayload(images, [0, 1]).save(tmp_path / "val.pt")
    found = judge_frames(FakeArtifact(), RewardBinaryDataset(tmp_path / "val.pt"))
    assert [(each.id, each.labels.tolist(), each.whole) for each in found] == [
        ("000000", [0], False),
        ("000001", [1], False),
    ]


def test_the_source_is_not_changed() -> None:
    episode = bright_episode("a", [10, 200], [0, 1])
    before = replace(episode, observations={name: value.copy() for name, value in episode.observations.items()})
    judge(FakeArtifact(("front", "side")), [episode], ablate=True)
    for name, value in before.observations.items():
        np.testing.assert_array_equal(value, episode.observations[name])

"""`import referee`: light, discoverable, and the same recipe as the command, from arrays or episodes."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.synthetic import square_films

import referee
from referee.audit.measure import Metrics
from referee.audit.words import NAMES
from referee.cli import main
from referee.config import load as load_config
from referee.episodes.arrays import episodes_of

OPTIONS = {"max_epochs": np.int64(3), "width": 8}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> referee.Artifact:
    frames, labels, groups = square_films(40, seed=0)
    out = tmp_path_factory.mktemp("library") / "run"
    return referee.train(frames, labels, groups=groups, out=out, **OPTIONS)


def test_importing_the_library_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import referee; dir(referee); print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    extra = set(done.stdout.split())
    assert {name for name in extra if name.split(".")[0] == "referee"} == {"referee"}
    assert not extra & {"torch", "numpy", "gymnasium", "PIL", "omegaconf", "rich"}


def test_episodes_are_opened_without_torch(tmp_path: Path) -> None:
    frames, labels, groups = square_films(2, seed=0)
    referee.EpisodeStore(tmp_path).append_many(episodes_of(frames, labels, groups))
    code = f"import sys, referee; print(len(referee.open_episodes({str(tmp_path)!r})), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]


def test_every_public_name_is_there_and_documented() -> None:
    assert set(referee.__all__) <= set(dir(referee))
    for name in referee.__all__:
        found = getattr(referee, name)
        assert name == "__version__" or inspect.getdoc(found), name
    assert inspect.ismodule(referee.envs) and callable(referee.envs.make_vec)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        referee.trian  # noqa: B018


def test_audit_is_a_package_and_a_function() -> None:
    from referee import api
    from referee.audit import measure

    assert referee.audit.measure is measure  # type: ignore[attr-defined]
    assert inspect.signature(referee.audit) == inspect.signature(api.audit)


def test_options_are_keys_of_the_preset() -> None:
    from referee.api import KEYS, TrainKeys

    assert KEYS.keys() == TrainKeys.__annotations__.keys()
    sources = load_config("reward_training", ["data.data_path=x"]).sources
    assert set(KEYS.values()) <= sources.keys()


def test_arrays_become_an_audited_model(trained: referee.Artifact, tmp_path: Path) -> None:
    assert trained.folder is not None and (trained.folder / "calibration.json").exists()
    assert trained.calibration.target_episode_fpr == 0.01
    sides = [set(trained.provenance["episodes"][side]) for side in ("train", "val")]
    assert [len(side) for side in sides] == [32, 8] and not sides[0] & sides[1]
    frames, labels, groups = square_films(20, seed=1)
    card = referee.audit(trained, frames, labels, groups=groups)
    assert card.auroc.value > 0.98 and card.auroc.low <= card.auroc.value <= card.auroc.high
    assert card.metrics.counts["failing_episodes"] == 10
    assert card.episode_recall.value >= 0.9
    page = card.save(tmp_path / "card")
    assert page.read_text().startswith("<!") and json.loads((tmp_path / "card/metrics.json").read_text())["estimates"]


def test_the_command_trains_the_same_model(trained: referee.Artifact, tmp_path: Path) -> None:
    frames, labels, groups = square_films(40, seed=0)
    referee.EpisodeStore(tmp_path / "store").append_many(episodes_of(frames, labels, groups))
    words = ["train", str(tmp_path / "store"), "--out", str(tmp_path / "run"), "runner.max_epochs=3"]
    assert main([*words, "actor.model.width=8"]) == 0
    other = referee.load(tmp_path / "run/checkpoints/best_model")
    assert np.array_equal(trained.logits(frames[:20]), other.logits(frames[:20]))
    assert trained.calibration == other.calibration


def test_score_takes_pictures_episodes_and_cameras(trained: referee.Artifact) -> None:
    frames, labels, groups = square_films(1, seed=5)
    (episode,) = episodes_of(frames, labels, groups)
    expected = trained.judge(frames).probability
    assert expected is not None
    for given in (frames, episode, {"main_images": frames}):
        verdict = referee.score(trained, given)
        assert verdict.probability == pytest.approx(expected, abs=1e-6)
    one = referee.score(trained, frames[0]).probability
    assert one is not None and one == pytest.approx(expected[:1], abs=1e-6)


def test_training_episodes_are_known_again_and_others_are_not(trained: referee.Artifact) -> None:
    frames, labels, groups = square_films(40, seed=0)
    with pytest.raises(referee.RefereeError, match="trained on 32 of these 40"):
        referee.audit(trained, frames, labels, groups=groups)
    with pytest.raises(referee.RefereeError, match="trained on"):  # under other numbers as well
        referee.audit(trained, referee.open_episodes(_stored(trained)))
    assert referee.audit(trained, frames, labels, groups=groups, training_episodes="skip").metrics.counts[
        "episodes"
    ] == 8  # fmt: skip


def _stored(trained: referee.Artifact) -> Path:
    frames, labels, groups = square_films(40, seed=0)
    assert trained.folder is not None
    folder = trained.folder.parent / "again"
    referee.EpisodeStore(folder).append_many(episodes_of(frames, labels, groups))
    return folder


def test_training_works_outside_of_the_main_thread(tmp_path: Path) -> None:
    frames, labels, groups = square_films(10, seed=0)
    done: list[object] = []

    def work() -> None:
        done.append(referee.train(episodes_of(frames, labels, groups), out=tmp_path / "run", max_epochs=1, width=8))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert isinstance(done[0], referee.Artifact)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"frames": np.zeros((24, 8, 8, 3), np.float32)}, "frames of main_images are float32"),
        ({"labels": np.full(24, 2)}, "labels hold more than 0 and 1"),
        ({"labels": np.zeros(3)}, "give one label per frame"),
        ({"labels": None}, "frames need labels"),
        ({"groups": np.arange(24)}, "group 0 has 1 frame"),
        ({"groups": np.zeros(2)}, "give one episode per frame"),
        ({"max_epoch": 2}, "did you mean max_epochs"),
    ],
)
def test_what_cannot_be_learned_from_is_one_line(change: dict[str, object], says: str, tmp_path: Path) -> None:
    frames, labels, groups = square_films(2, seed=0)
    given = {"frames": frames, "labels": labels, "groups": groups, **change}
    with pytest.raises(referee.RefereeError, match=says) as error:
        referee.train(given.pop("frames"), given.pop("labels"), out=tmp_path / "run", **given)  # type: ignore
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_groups_keep_their_frames_in_order() -> None:
    frames, labels, _ = square_films(2, seed=0, states=4)
    first, second = episodes_of(frames, labels, ["b", "a", "b", "a", "b", "a", "b", "a"])
    assert first.meta.id.startswith("b-") and np.array_equal(first.observations["main_images"], frames[::2])
    assert second.success is not None and second.success.tolist() == labels[1::2].astype(bool).tolist()
    two = episodes_of({"front": frames, "side": frames[:, ::-1]}, labels)[0]
    assert two.meta.cameras == ("front", "side") and np.array_equal(two.view("side"), frames[:, ::-1])


def test_a_report_card_has_every_metric(trained: referee.Artifact) -> None:
    fields = {name for name, kind in referee.ReportCard.__annotations__.items() if kind == "Estimate"}
    assert fields == set(NAMES)
    frames, labels, groups = square_films(6, seed=2)
    card = referee.audit(trained, frames, labels, groups=groups)
    assert isinstance(card.metrics, Metrics) and fields == card.metrics.estimates.keys()
    assert str(card.auroc) in str(card) and card.verdict in repr(card)


def test_record_then_open(tmp_path: Path) -> None:
    import gymnasium as gym

    class Blink(gym.Env[np.ndarray, int]):
        """Three states; the last one is a success."""

        observation_space = gym.spaces.Box(0, 255, (32, 32, 3), np.uint8)
        action_space = gym.spaces.Discrete(2)
        state = 0

        def reset(self, *, seed: int | None = None, options: object = None) -> tuple[np.ndarray, dict[str, object]]:
            self.state = 0
            return self.picture(), {}

        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
            self.state += 1
            return self.picture(), 0.0, self.state == 2, False, {"done_right": self.state == 2}

        def picture(self) -> np.ndarray:
            return np.random.default_rng(self.state).integers(0, 255, (32, 32, 3)).astype(np.uint8)

    env = referee.record(Blink(), tmp_path / "store", success="done_right", image_size=16)
    for _ in range(2):
        env.reset()
        env.step(0)
        env.step(0)
    env.close()
    episodes = list(referee.open_episodes(tmp_path / "store"))
    assert [episode.success.tolist() for episode in episodes if episode.success is not None] == [
        [False, False, True]
    ] * 2
    assert next(iter(episodes[0].views().values())).shape == (3, 16, 16, 3)


def test_what_one_must_know_is_logged(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str],
                                      tmp_path: Path) -> None:  # fmt: skip
    frames, labels, groups = square_films(10, seed=0)
    model = referee.train(frames, labels, groups=groups, out=tmp_path / "run", max_epochs=1, width=8, val_split=0)
    assert "without validation the threshold stays at 0.5" in caplog.text
    assert "there is no validation, so the best model" in caplog.text
    assert model.calibration.threshold == 0.5 and capsys.readouterr().out == ""

"""`referee episodes` and `referee dataset` as a person uses them, on data that our own recorder wrote."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from episodes.examples import assert_same, make_episode
from referee.cli import main
from referee.config import load
from referee.datasets.payload import RewardBinaryDataset
from referee.episodes import EpisodeStore
from referee.episodes.formats.detect import read_any
from referee.labels.log import LabelLog

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that `referee run` filled while it evaluated the noisy expert."""
    folder = tmp_path_factory.mktemp("run")
    run = ["run", "panda_expert", "runner.num_episodes=24", "runner.expert_noise=0.6", "runner.film=false",
           "env.eval.num_envs=8", "env.eval.task=Reach", "env.eval.max_episode_steps=12",
           "env.eval.data_collection.enabled=true", f"runner.logger.log_path={folder}"]  # fmt: skip
    assert main(run) == 0
    return folder / "collected_data"


def test_a_run_records_all_its_episodes_and_says_so(recorded: Path) -> None:
    store = EpisodeStore(recorded)
    result = json.loads((recorded.parent / "result.json").read_text())
    assert len(store) == 24 and store.check() == {}
    assert np.mean([row.success_at_end for row in store.rows.values()]) == pytest.approx(result["success_at_end"])
    assert {row.source for row in store.rows.values()} == {"expert"}


def test_ls_counts(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["episodes", "ls", str(recorded), "--rows", "2"]) == 0
    said = capsys.readouterr().out
    assert "24 episodes, 288 steps" in said and "success at the end" in said and "front, side" in said


def test_check_names_what_is_broken(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["episodes", "check", str(recorded)]) == 0
    store = EpisodeStore(tmp_path)
    id = store.append(make_episode())
    store.path(id).write_bytes(store.path(id).read_bytes()[:-1] + b"\x07")
    assert main(["episodes", "check", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert id in out.replace("\n", "") and "1 of 1 episodes" in err


@pytest.mark.parametrize("name", ["strip.png", "film.gif"])
def test_view_draws(recorded: Path, tmp_path: Path, name: str) -> None:
    assert main(["episodes", "view", str(recorded), "--episodes", "2", "--out", str(tmp_path / name)]) == 0
    with Image.open(tmp_path / name) as image:
        assert image.width > 400 and (name != "film.gif" or image.n_frames > 20)


def test_merge_joins_episodes_and_labels(tmp_path: Path) -> None:
    first, second = EpisodeStore(tmp_path / "a"), EpisodeStore(tmp_path / "b")
    ids = [first.append(make_episode(seed=0)), second.append(make_episode(seed=1))]
    second.append(first.read(ids[0]))  # the same episode in both is no conflict
    LabelLog.of(first).append(ids[0], False, source="web", who="a")
    log = LabelLog.of(second)
    log.append(ids[1], False, source="web", who="b")
    log.append(ids[1], True, source="web", who="b")
    log.undo(source="web", who="b")
    command = ["episodes", "merge", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "c")]
    assert main(command) == 0 and main(command) == 0  # twice changes nothing
    merged = EpisodeStore(tmp_path / "c")
    assert sorted(merged.rows) == sorted(ids) and merged.check() == {}
    assert_same(merged.read(ids[1]), second.read(ids[1]))
    joined = LabelLog.of(merged)
    assert len(joined.words) == 4
    assert not joined.resolve(merged.read(ids[0])).any() and not joined.resolve(merged.read(ids[1])).any()


def test_merge_refuses_two_episodes_of_one_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        EpisodeStore(tmp_path / name).append(make_episode(id="x", seed=seed))
    command = ["episodes", "merge", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "c")]
    assert main(command) == 2 and "differ" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["pickle", "pickle_frames", "npy", "lerobot"])
def test_convert_there_and_back(recorded: Path, tmp_path: Path, form: str) -> None:
    if form == "lerobot":
        pytest.importorskip("pyarrow")
    assert main(["episodes", "convert", str(recorded), str(tmp_path / "there"), "--format", form]) == 0
    assert main(["episodes", "convert", str(tmp_path / "there"), str(tmp_path / "back")]) == 0
    wanted, got = list(EpisodeStore(recorded)), list(EpisodeStore(tmp_path / "back"))
    key = lambda episode: episode.observations["main_images"].tobytes()  # noqa: E731
    for a, b in zip(sorted(wanted, key=key), sorted(got, key=key), strict=True):
        np.testing.assert_array_equal(a.success, b.success)
        np.testing.assert_array_equal(a.observations["extra_view_images"], b.observations["extra_view_images"])
        if form != "npy":
            np.testing.assert_array_equal(a.actions, b.actions)
            np.testing.assert_array_equal(a.observations["states"], b.observations["states"])


def test_a_conversion_that_fails_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = EpisodeStore(tmp_path / "in")
    store.append(make_episode())
    (tmp_path / "in" / "episodes" / "zzz.safetensors").write_bytes(b"nonsense")
    assert main(["episodes", "convert", str(tmp_path / "in" / "episodes"), str(tmp_path / "out")]) == 2
    assert "zzz.safetensors" in capsys.readouterr().err
    assert not (tmp_path / "out").exists() and {path.name for path in tmp_path.iterdir()} == {"in"}
    assert main(["episodes", "convert", str(tmp_path / "nowhere"), str(tmp_path / "out")]) == 2
    assert main(["episodes", "convert", str(tmp_path / "in"), str(tmp_path / "in")]) == 2


def test_the_documents_scripts_run_on_what_was_recorded(recorded: Path, tmp_path: Path) -> None:
    raw = tmp_path / "collected_data"
    assert main(["episodes", "convert", str(recorded), str(raw), "--format", "pickle"]) == 0
    scripts = ROOT / "examples" / "reward"
    for script, extra in (
        ("preprocess_reward_dataset.py", ["--fail-success-ratio", "2", "--val-split", "0.25"]),
        ("preprocess_qwentrend_reward_dataset.py",
         ["--window-size", "5", "--stride", "1", "--delta-threshold", "0.05"]),
    ):  # fmt: skip
        goal = tmp_path / script.removesuffix(".py")
        command = [sys.executable, scripts / script, "--raw-data-path", raw, "--output-dir", goal, *extra]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
    train = RewardBinaryDataset(tmp_path / "preprocess_reward_dataset" / "train.pt")
    val = torch.load(tmp_path / "preprocess_reward_dataset" / "val.pt", weights_only=True)
    assert set(val) == {"images", "labels", "metadata"} and val["images"][0].shape == (64, 64, 3)
    assert len(train) > 30 and {0, 1} == {int(train[i][1]) for i in range(len(train))}
    windows = tmp_path / "preprocess_qwentrend_reward_dataset"
    lines = (windows / "train" / "segments.jsonl").read_text().splitlines()
    assert (windows / "dataset_info.json").exists() and len(lines) == len(list((windows / "train" / "pkl").iterdir()))


def test_data_of_an_arm_is_processed_beside_it(recorded: Path, tmp_path: Path) -> None:
    from referee.episodes.formats.pickled import write_data

    write_data(tmp_path / "data.pkl", EpisodeStore(recorded))
    script = ROOT / "examples" / "embodiment" / "process_realworld_data.py"
    subprocess.run([sys.executable, script, tmp_path / "data.pkl"], check=True, capture_output=True)
    assert len(list(read_any(tmp_path / "collected_data"))) == 24
    again = subprocess.run([sys.executable, script, tmp_path / "data.pkl"], capture_output=True, text=True)
    assert again.returncode == 2 and f"rm -r {tmp_path / 'collected_data'}" in again.stderr
    subprocess.run([sys.executable, script, tmp_path / "data.pkl", tmp_path / "other"], check=True, capture_output=True)
    assert len(list(read_any(tmp_path / "other"))) == 24


def test_training_records_on_both_sides(tmp_path: Path) -> None:
    run = ["run", "panda_ppo_mlp", "env.train.task=Reach", "env.train.num_envs=8", "env.eval.num_envs=8",
           "env.train.max_episode_steps=10", "env.eval.max_episode_steps=10", "algorithm.rollout_steps=20",
           "actor.global_batch_size=80", "runner.max_steps=320", "runner.eval_episodes=8", "runner.film=false",
           "env.train.data_collection.enabled=true", "env.train.data_collection.cameras=[]",
           "env.eval.data_collection.enabled=true", "env.eval.data_collection.export_format=npy",
           "env.eval.data_collection.cameras=[side]",
           f"env.eval.data_collection.save_dir={tmp_path / 'eval'}",
           f"runner.logger.log_path={tmp_path / 'run'}"]  # fmt: skip
    assert main(run) == 0
    train = EpisodeStore(tmp_path / "run" / "collected_data", create=False)
    assert len(train) == 8 * 4 and {row.cameras for row in train.rows.values()} == {()}
    assert len(list(read_any(tmp_path / "eval"))) == 8


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (["reward.collect_data=True", "reward.data_collection.max_positive_trajectories=5",
          "reward.data_collection.image_keys=[base_camera]", "reward.data_collection.positive_dir=p"],
         {"enabled": True, "export_format": "npy", "target_success": 5, "cameras": ("front",), "positive_dir": "p"}),
        (["+reward_data_collection.enabled=True", "+reward_data_collection.target_failure=7"],
         {"enabled": True, "export_format": "pickle_frames", "target_failure": 7}),
        (["env.data_collection.enabled=True", "env.data_collection.export_format=pickle"],
         {"enabled": True, "export_format": "pickle"}),
        (["reward.collect_data=True", "env.train.data_collection.export_format=native"],
         {"enabled": True, "export_format": "native"}),
    ],
)  # fmt: skip
def test_older_keys_of_collection(overrides: list[str], wanted: dict[str, object]) -> None:
    config = load("panda_ppo_mlp", [each.removeprefix("+") for each in overrides]).config
    assert config.env.train is not None
    found = {name: getattr(config.env.train.data_collection, name) for name in wanted}
    assert found == wanted

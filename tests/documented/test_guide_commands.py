"""Every command of RLinf's five reward-model guides runs: typed here with small sizes, or by a test that is named."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tests.documented.pages import ROOT, Command
from tests.documented.smaller import read
from tests.documented.stage import Stage
from tests.recipes.test_workflow_of_003 import make_trajectories

from referee.config import PandaEnvConfig
from referee.config.collection import DataCollectionConfig
from referee.datasets.payload import RewardBinaryDataset
from referee.envs import make_vec
from referee.envs.policies import make_policy
from referee.episodes.collection import collecting
from referee.models import Artifact, Calibration, ModelSpec, build

FILE = ROOT / "tests/documented/guides/commands.yaml"
COMMANDS: list[dict[str, Any]] = yaml.safe_load(FILE.read_text())


def typed(entry: dict[str, Any]) -> str:
    """The command with names of this repository, and of the folder that it is typed in."""
    text: str = entry["command"]
    for old, new in entry.get("as", {}).items():
        text = text.replace(old, new)
    return text


def test_each_command_is_run_by_somebody() -> None:
    for entry in COMMANDS:
        assert entry.get("here") or entry["runs"], entry["command"]
        for node in entry.get("runs", ()):
            file, _, name = node.partition("::")
            tree = ast.parse((ROOT / file).read_text())
            assert name.partition("[")[0] in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}, (
                node
            )


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """A folder that holds nothing but the examples and what the commands before have made."""
    nothing = SimpleNamespace(furnish=lambda folder, page: set(), vlm="", artifact="", lora="", store="")
    with Stage(nothing, tmp_path, monkeypatch, set()) as stage:  # type: ignore[arg-type]
        stage.open("guides")
        yield stage


SCRIPTS = [
    entry for entry in COMMANDS if re.search(r"\.sh\b", entry["command"]) and "install.sh" not in entry["command"]
]


@pytest.mark.parametrize("entry", SCRIPTS, ids=lambda entry: f"{entry['guide']} {entry['command']}"[:80])
def test_a_script_starts_the_configuration_that_it_names(
    entry: dict[str, Any], stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the shell hands to `referee run`, read as that would read it: a file under examples/, and the overrides."""
    called: list[list[str]] = []
    monkeypatch.setenv("DUALVIEW_SFT_DATA_ROOT", "windows")
    monkeypatch.setattr(stage, "referee", called.append)
    stage.run(Command("guides", 1, typed(entry)))
    [[verb, *rest]] = called
    assert verb == "run"
    loaded = read(rest)
    for line in typed(entry).split():
        if re.fullmatch(r"[a-z_.]+=\S+", line):
            assert line.replace('"', "") in rest
    assert loaded.preset == preset_of(entry)


def preset_of(entry: dict[str, Any]) -> str:
    """By name, or the default of a script."""
    words = typed(entry).split()[1:]
    named = [word for word in words[1:] if re.fullmatch(r"[a-z]\w+", word)]
    defaults = {"collect_data": "realworld_collect_data", "run_realworld_teleop": "realworld_teleop",
                "realworld_collect_process_dataset": "realworld_collect_dataset",
                "run_reward_training": "reward_training"}  # fmt: skip
    script = Path(words[0]).stem
    return named[0] if named else defaults.get(script, script)


# --- typed here ---


def encoder() -> None:
    """What guide 000 calls resnet10_pretrained.pt."""
    torch.manual_seed(0)
    torch.save(build(ModelSpec(arch="resnet10", width=8)).encoder.state_dict(), "resnet10_pretrained.pt")  # type: ignore[union-attr]


def episodes(place: Path) -> None:
    """Pickled episodes, as guide 004 records them: half succeed."""
    config = PandaEnvConfig(task="Reach", num_envs=6, num_threads=1, max_episode_steps=12)
    how = DataCollectionConfig(enabled=True, export_format="pickle", save_dir=str(place))
    env = collecting(make_vec(config), how, folder=place, task="Reach", source="test")
    act = make_policy(env.unwrapped, "expert", noise=0.0, seed=0)
    env.reset(seed=0)
    for _ in range(24):
        env.step(act() * (np.arange(6) % 2)[:, None])
    env.close()


def model(**spec: Any) -> None:
    """Where guide 004's teleoperation expects one."""
    small = {"arch": "resnet10", "width": 4, "hidden_dim": 8, "image_size": 64, "cameras": ("wrist",)}
    Artifact(build(ModelSpec(**{**small, **spec})).eval(), Calibration()).save("model")


def type_all(
    stage: Stage, guide: str, more: Callable[[str], str] = lambda text: "", *, maniskill: bool = False
) -> list[str]:
    """Type the commands of a guide that are typed here, in their order. more: what is added to one of them."""
    done = []
    for entry in COMMANDS:
        if entry["guide"] == guide and entry.get("here") and bool(entry.get("maniskill")) == maniskill:
            stage.run(Command("guides", 1, f"{typed(entry)} {more(entry['command'])}"))
            done.append(entry["command"])
    return done


@pytest.mark.slow
def test_guide_000_trains_a_classifier(stage: Stage) -> None:
    make_trajectories(Path("reward_data"))
    encoder()
    assert len(type_all(stage, "000")) == 5
    values = torch.load("checkpoints/reward_model.pt", weights_only=True)
    assert {"epoch", "model_state_dict", "optimizer_state_dict", "train_loss", "train_acc"} <= set(values)
    names = sorted(each.name for each in Path("positive_samples_vis").iterdir())
    assert len(names) == 12 and names[0] == "positive_000000_frame002.png"


@pytest.mark.slow
@pytest.mark.maniskill
def test_guide_000_records_and_rewards(stage: Stage) -> None:
    net = build(ModelSpec(model_type="binary_classifier", arch="resnet10", width=4, image_size=64,
                          cameras=("base_camera",), hidden_dim=8))  # fmt: skip
    Path("checkpoints").mkdir()
    torch.save({"model_state_dict": net.state_dict()}, "checkpoints/reward_model.pt")
    assert len(type_all(stage, "000", maniskill=True)) == 2
    files = [np.load(each, allow_pickle=True).item() for each in Path("reward_data").rglob("*.npy")]
    assert files and all(set(each["images"]) == {"base_camera"} for each in files)
    assert (max(Path("logs").iterdir(), key=lambda each: each.stat().st_mtime) / "result.json").is_file()


@pytest.mark.slow
def test_guide_001_from_the_arm_to_a_model(stage: Stage) -> None:
    arm = "runner.policy=expert runner.logger.log_path=logs/arm"
    assert len(type_all(stage, "001", lambda text: arm if "collect_data.sh" in text else "")) == 3
    assert len(list(Path("logs/arm/collected_data").glob("*.pkl"))) == 4  # as many as `smaller` asks for
    assert Artifact.load("logs/reward_model_realworld/checkpoints/best_model").provenance
    assert list(Path("logs/training_data_debug_realworld").rglob("*.png"))


@pytest.mark.slow
def test_guide_003_trains_by_configuration(stage: Stage) -> None:
    make_trajectories(Path("reward_data"))
    assert len(type_all(stage, "003", lambda text: "actor.encoder_warmup_steps=1")) == 3
    assert len(list(Path("logs").glob("*-train_reward_model*/checkpoints/best_model"))) == 3


@pytest.mark.slow
def test_guide_004_from_episodes_to_a_live_verdict(stage: Stage) -> None:
    episodes(Path("logs/xxx/collected_data"))
    model()

    live = "reward.model.model_path=model env.eval.cameras=[wrist] runner.policy=random"
    frames = [f"data.{side}_data_paths=logs/processed_reward_data/{side}.pt" for side in ("train", "val")]
    added = {"run_realworld_teleop": live, "run_reward_training": " ".join(frames)}  # the guide edits the file instead
    done = type_all(stage, "004", lambda text: next((line for name, line in added.items() if name in text), ""))
    assert len(done) == 9
    for side in ("train", "val"):
        assert set(RewardBinaryDataset(Path(f"logs/processed_reward_data/{side}.pt")).labels.tolist()) == {0, 1}
    folder = Path("logs/xxx/processed_qwentrend_reward_data")
    assert {each.name for each in folder.iterdir()} >= {"dataset_info.json", "train", "eval"}
    assert len(list(Path("logs").glob("*-collect-dataset*/train.pt"))) == 2
    assert len(list(Path("logs").glob("*-realworld_teleop*/result.json"))) == 2
    assert len(list(Path("logs").glob("*-reward_training*/checkpoints/best_model"))) == 1

"""An architecture that is named is that architecture, however it is named; the default is a small one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from referee.config import load
from referee.config.reward_training import ARCHITECTURES
from referee.models import Artifact, ModelSpec
from referee.models.registry import build
from referee.models.resnet import DEFAULT_ARCH, LAYOUTS, ResNet
from referee.recipes.train_reward import job_of
from referee.train_reward_model import job_of as command_line_options
from referee.train_reward_model import parser
from referee.training.described import spec_fields

# torchvision's published sizes without their last layer (512 or 2048 inputs, 1000 classes, 1000 offsets).
ENCODERS = {
    "resnet18": 11_689_512 - 513_000,
    "resnet34": 21_797_672 - 513_000,
    "resnet50": 25_557_032 - 2_049_000,
    "resnet101": 44_549_160 - 2_049_000,
    "resnet152": 60_192_808 - 2_049_000,
    "resnet10": 4_905_792,  # SERL's own, whose GroupNorm has as many parameters as BatchNorm
}
DOCUMENTS = Path(__file__).parents[1] / "documented/guides/blocks"
REQUIRED = ["--positive-dir", "p", "--negative-dir", "n", "--output-checkpoint", "o.pt"]


def encoder_size(model: dict[str, object]) -> int:
    with torch.device("meta"):
        return sum(
            each.numel() for each in build(ModelSpec.from_json({"image_size": 64, **model})).encoder.parameters()
        )


def by_overrides(*lines: str, preset: str = "reward_training") -> int:
    data = ["data.data_path=d"] if preset == "reward_training" else []
    return encoder_size(spec_fields(job_of(load(preset, [*data, *lines]).config, Path("run")).model))


def by_command_line(*arguments: str) -> int:
    return encoder_size(spec_fields(command_line_options(parser().parse_args([*REQUIRED, *arguments])).model))


def test_the_published_numbers() -> None:
    assert (ENCODERS["resnet18"], ENCODERS["resnet34"], ENCODERS["resnet50"]) == (11_176_512, 21_284_672, 23_508_032)


@pytest.mark.parametrize("arch", ENCODERS)
def test_a_named_architecture_is_that_one(arch: str) -> None:
    with torch.device("meta"):
        assert sum(each.numel() for each in ResNet(arch).parameters()) == ENCODERS[arch]
    assert encoder_size({"arch": arch}) == ENCODERS[arch]
    assert by_overrides(f"actor.model.arch={arch}") == ENCODERS[arch]
    assert by_overrides(f"actor.model.arch={arch}", preset="train_reward_model") == ENCODERS[arch]
    assert by_command_line("--backbone", arch) == ENCODERS[arch]


def test_the_guides_files(tmp_path: Path) -> None:
    """resnet18 of 004, and the ResNet10 of 003, whose file names no architecture: the classifier has that one."""
    text = (DOCUMENTS / "004_train_model.yaml").read_text()
    assert 'arch: "resnet18"' in text
    (tmp_path / "mine.yaml").write_text("defaults: [reward_training]\n" + text)
    assert by_overrides("data.data_path=d", preset=str(tmp_path / "mine.yaml")) == ENCODERS["resnet18"]
    assert by_overrides("runner.recipe=train_reward", preset=str(DOCUMENTS / "003_train.yaml")) == ENCODERS["resnet10"]
    assert by_overrides(preset="train_reward_model") == by_command_line() == ENCODERS["resnet10"]


def test_the_default_is_small() -> None:
    assert encoder_size({}) == by_overrides() == by_overrides("actor.model.arch=resnet10_small") == 309_456
    assert by_overrides("data.data_path=d", preset="panda_train_resnet_reward") == 309_456
    assert by_overrides(preset="maniskill_train_resnet_reward") == 309_456
    assert by_command_line("--backbone", "resnet10_small") == 309_456
    script = str(Path(__file__).parents[2] / "examples/reward/config/reward_training.yaml")
    assert by_overrides(preset=script) == 309_456
    assert by_overrides("actor.model.arch=resnet18", preset=script) == ENCODERS["resnet18"]


def test_a_width_of_ones_own() -> None:
    assert by_overrides("actor.model.arch=resnet18", "actor.model.width=16") == encoder_size({"arch": "resnet18_small"})
    assert by_overrides("actor.model.arch=resnet10_small", "actor.model.width=64") == ENCODERS["resnet10"]
    assert by_overrides("actor.model.arch=resnet18", "actor.model.width=null") == ENCODERS["resnet18"]
    assert by_command_line("--width", "16") == 309_456


def test_the_names_are_listed_once() -> None:
    assert tuple(LAYOUTS) == ARCHITECTURES and DEFAULT_ARCH in LAYOUTS
    assert {name for name, layout in LAYOUTS.items() if layout.width != 64} == {"resnet10_small", "resnet18_small"}


@pytest.mark.parametrize(
    ("written", "width", "name"),
    [("resnet10", 16, "resnet10_small"), ("resnet10_small", 64, "resnet10"), ("resnet18", 16, "resnet18_small"),
     ("resnet10_small", 8, "resnet10"), ("resnet50", 16, "resnet50"), ("resnet10_small", 0, "resnet10_small")],
)  # fmt: skip
def test_a_net_has_one_name(written: str, width: int, name: str) -> None:
    spec = ModelSpec(arch=written, width=width)
    assert (spec.arch, spec.width) == (name, width or 16)
    assert ModelSpec.from_json(spec.to_json()) == spec


def test_artifacts_of_earlier_versions_say_the_same(tmp_path: Path) -> None:
    """Their config.json says resnet10 and width 16."""
    artifact = Artifact(build(ModelSpec(cameras=("front",), image_size=32)).eval())
    artifact.save(tmp_path / "old")
    path = tmp_path / "old/config.json"
    config = json.loads(path.read_text())
    assert (config["model"]["arch"], config["model"]["width"]) == ("resnet10_small", 16)
    config["model"]["arch"] = "resnet10"
    del config["checksum"]  # which they had not
    path.write_text(json.dumps(config))
    frames = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), np.uint8)
    old = Artifact.load(tmp_path / "old")
    assert np.array_equal(old.logits(frames), artifact.logits(frames))
    assert (old.spec.arch, old.spec.width) == ("resnet10_small", 16)


@pytest.mark.parametrize("arch", ["resnet10_small", "resnet18_small", "resnet10"])
def test_weights_alone_tell_their_name(tmp_path: Path, arch: str, caplog: pytest.LogCaptureFixture) -> None:
    model = build(ModelSpec(arch=arch, image_size=32))
    torch.save(model.state_dict(), tmp_path / "bare.pt")
    found = Artifact.open(tmp_path / "bare.pt", ModelSpec(arch=arch, image_size=32), {"arch", "width"})
    assert found.spec == model.spec and not caplog.text
    other = Artifact.open(tmp_path / "bare.pt", ModelSpec(arch="resnet34", image_size=32), {"arch"})
    assert other.spec.arch == arch and f"arch={arch}, not resnet34: taken from the file" in caplog.text

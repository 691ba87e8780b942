"""Which reward model is loaded, and what its keys say of weights that come without an artifact."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.documented.cases import Case, Tools, effect, no_effect
from tests.documented.effects.reward import fixed, rewards

from referee.config.schema import RewardModelConfig
from referee.models import Artifact, ModelSpec, build
from referee.rewards.classifier import open_model

OTHER: dict[str, Any] = {
    "model_type": "resnet", "arch": "resnet34", "hidden_dim": 16, "num_spatial_blocks": 3, "pooling": "average",
    "image_size": 96,
}  # fmt: skip
"""Of weights that differ from a block in one thing."""
PATHS = ("reward.model.model_path", "reward*.checkpoint_path")
TEXTS = "004_qwentrend"
"""The block whose model is one of vision and language: see effects/history.py."""
WEIGHTS = "000_pay 003_pay 001_reward 004_reward 002_pay 004_teleop"


def opened(case: Case, folder: Path, *overrides: str, **weights: Any) -> Artifact:
    """The model that a block describes, from weights that say nothing of themselves."""
    config = case.load(f"reward.model.model_path={folder / 'weights.pt'}", *overrides).config.reward.model
    assert isinstance(config, RewardModelConfig)
    said = {name: value for name, value in vars(config).items() if name in ModelSpec.__dataclass_fields__}
    older = {"model_type": "binary_classifier", "arch": "resnet10"} if case.block[:3] in ("000", "003") else {}
    spec = older | {name: value for name, value in said.items() if value is not None} | {"width": 4} | weights
    torch.manual_seed(0)
    torch.save(build(ModelSpec(**spec)).state_dict(), folder / "weights.pt")
    return open_model(config)


@effect(*PATHS)
def the_model_at_that_path_is_the_one_that_scores(case: Case, tools: Tools) -> None:
    if case.block == TEXTS:
        return
    assert case.config.reward.model.model_path == case.value
    frames = np.random.default_rng(0).integers(0, 255, (2, 1, 64, 64, 3), np.uint8)
    for probability in (0.2, 0.7):
        place = tools.here / Path(case.value).name
        if place.suffix == ".pt":
            model = fixed(probability, model_type="resnet")
            torch.save({"model_state_dict": model.model.state_dict(), "epoch": 1}, place)
        else:
            fixed(probability).save(place)
        told = case.load(f"{case.key}={place.name}", "reward.model.cameras=[front]").config.reward.model
        assert isinstance(told, RewardModelConfig)
        found = open_model(told).judge(frames).probability
        np.testing.assert_allclose(found, probability, rtol=1e-5)


@effect("reward.model.model_type", "reward.reward_model_type", "reward.model.arch", "reward*.hidden_dim",
        "reward.reward_model.num_spatial_blocks", "reward.reward_model.use_pretrain", blocks=WEIGHTS)  # fmt: skip
def weights_that_fit_are_loaded_and_a_difference_is_said(case: Case, tools: Tools) -> None:
    name = {"use_pretrain": "pooling", "reward_model_type": "model_type"}.get(*[case.key.rpartition(".")[2]] * 2)
    value = {True: "spatial", "resnet_reward": "resnet"}.get(case.value, case.value)
    model = opened(case, tools.here)
    assert getattr(model.spec, name) == value and not tools.caplog.records
    other = "binary_classifier" if (name, value) == ("model_type", "resnet") else OTHER[name]
    assert getattr(opened(case, tools.here, **{name: other}).spec, name) == other, "the weights are right"
    assert re.search(rf"has {name}={other}, not {value}: taken from the file", tools.caplog.text)


@effect("reward*.image_size", blocks=WEIGHTS)
def frames_are_scored_at_that_size(case: Case, tools: Tools) -> None:
    assert case.value[1] == case.value[2]
    model = opened(case, tools.here).model
    frames = np.zeros((1, len(model.spec.cameras), *case.value[1:], 3), np.uint8)
    assert model.prepare(frames).shape[-2:] == tuple(case.value[1:])


@effect("reward.reward_model.image_keys", blocks="000_pay 003_pay")
def the_named_camera_is_scored(case: Case, tools: Tools) -> None:
    model = opened(case, tools.here)
    assert model.spec.cameras == tuple(case.value)
    dark, light = (np.full((1, 64, 64, 3), value, np.uint8) for value in (0, 255))
    cameras = ("wrist", "base_camera")
    one, two, same = (
        model.score({"main_images": wrist, "extra_view_images": base[:, None]}, cameras=cameras).score
        for wrist, base in ((dark, dark), (dark, light), (light, dark))
    )
    assert one == same and one != two


@effect("reward.reward_model.freeze_encoder")
def the_encoder_does_not_learn(case: Case, tools: Tools) -> None:
    assert case.value is True
    for frozen in (True, False):
        model = opened(case, tools.here, f"{case.key}={frozen}").model
        assert all(each.requires_grad is not frozen for each in model.encoder.parameters())  # type: ignore[union-attr]


@effect("reward.model.dropout")
def share_of_the_heads_features_that_are_dropped(case: Case, tools: Tools) -> None:
    for value in (case.value, 0.5):
        model = opened(case, tools.here, f"{case.key}={value}").model
        (dropout,) = (each for each in model.modules() if isinstance(each, torch.nn.Dropout))
        assert dropout.p == value


@effect("reward.model.normalize")
def pixels_are_normalised(case: Case, tools: Tools) -> None:
    grey = np.full((1, 1, 128, 128, 3), 51, np.uint8)
    pixels = opened(case, tools.here).model.prepare(grey)[0, 0, :, 0, 0]
    expected = (0.2 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(pixels, expected)
    plain = opened(case, tools.here, f"{case.key}=false").model.prepare(grey)[0, 0, :, 0, 0]
    torch.testing.assert_close(plain, torch.full((3,), 0.2))


@effect("reward.model.precision", blocks="001_reward")
def the_encoder_computes_in_that_precision(case: Case, tools: Tools) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (4, 1, 128, 128, 3), np.uint8)
    coarse, fine = (opened(case, tools.here, f"{case.key}={name}").logits(frames) for name in (case.value, "fp32"))
    assert not np.array_equal(coarse, fine)
    np.testing.assert_allclose(coarse, fine, atol=0.05)


@effect("reward.model.debug_save_dir", blocks="001_debugging 001_reward")
def scored_frames_are_written_as_pictures(case: Case, tools: Tools) -> None:
    assert case.value in ("logs/debug_images", None)
    place = tools.here / (case.value or "nothing")
    for probability, folder in ((0.9, "resnet_success"), (0.1, "resnet_fail")):
        rewards(
            case, tools, probability, *([f"{case.key}={place}"] if case.value else []), f"runner.seed={len(str(place))}"
        )
        names = sorted(each.name for each in (place / folder).glob("*")) if case.value else []
        assert bool(names) == bool(case.value) and place.exists() == bool(case.value)
        assert all(re.fullmatch(rf"\d{{6}}_prob{probability:.4f}\.png", name) for name in names)


no_effect("the model's weights hold those of its encoder", "reward.reward_model.pretrained_encoder_path")
no_effect("it acts only with reward.use_reward_model=true", "reward.reward_model.image_keys",
          "reward.reward_model.image_size", blocks="000_collect 003_collect")  # fmt: skip

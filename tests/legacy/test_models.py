"""The models of the guides, made and called as the guides do; nothing here looks at how they are built inside."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from referee.compat import BinaryRewardClassifier, ResNetRewardModel
from referee.errors import RefereeError
from referee.models.resnet import ResNet


def binary(**changes: object) -> BinaryRewardClassifier:
    keys = {
        "image_keys": ["base_camera"], "image_size": [3, 64, 64], "hidden_dim": 256, "num_spatial_blocks": 8,
        "pretrained_encoder_path": None, "use_pretrain": True, "freeze_encoder": True,
    }  # fmt: skip
    return BinaryRewardClassifier(**{**keys, **changes})  # type: ignore[arg-type]


def test_binary_reward_classifier_takes_images_and_gives_logits() -> None:
    torch.manual_seed(0)
    model = binary().eval()
    images = torch.rand(4, 3, 64, 64)
    logits = model(images)
    assert logits.shape == (4,) and logits.dtype == torch.float32
    assert torch.allclose(model({"base_camera": images}), logits)
    assert torch.allclose(model({"main_images": images}), logits)
    as_pixels = model((images * 255).round().to(torch.uint8).permute(0, 2, 3, 1))
    assert torch.allclose(as_pixels, logits, atol=0.05)
    with pytest.raises(RefereeError, match=r"0\.\.1"):
        model(images * 255)


def test_its_head_is_the_documented_one() -> None:
    """Linear → LayerNorm → Tanh → Linear, on a ResNet10 of 4.9 M parameters."""
    model = binary(hidden_dim=128, num_spatial_blocks=4)
    kinds = [type(layer) for layer in model.modules() if isinstance(layer, nn.Linear | nn.LayerNorm | nn.Tanh)]
    assert kinds == [nn.Linear, nn.LayerNorm, nn.Tanh, nn.Linear]
    assert sum(each.numel() for each in model.encoder.parameters()) == 4_905_792
    assert [tuple(kernel.shape) for name, kernel in model.named_parameters() if name.endswith("kernel")] == [
        (2, 2, 512, 4)
    ]
    averaged = binary(use_pretrain=False)
    assert [tuple(kernel.shape) for name, kernel in averaged.named_parameters() if name.endswith("kernel")] == [
        (1, 1, 512, 8)
    ]


def test_freezing_and_pretrained_weights(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    encoder = ResNet("resnet10")
    torch.save(encoder.state_dict(), tmp_path / "resnet10_pretrained.pt")
    model = binary(pretrained_encoder_path=tmp_path / "resnet10_pretrained.pt")
    assert not caplog.text  # the file is what the class has
    for name, value in encoder.state_dict().items():
        assert torch.equal(model.encoder.state_dict()[name], value), name
    assert not any(each.requires_grad for each in model.encoder.parameters())
    model(torch.rand(2, 3, 64, 64)).sum().backward()
    learning = {name for name, each in model.named_parameters() if each.grad is not None}
    assert learning and not any(name.startswith("encoder.") for name in learning)
    free = binary(freeze_encoder=False)
    free(torch.rand(2, 3, 64, 64)).sum().backward()
    assert any(name.startswith("encoder.") and each.grad is not None for name, each in free.named_parameters())


def test_two_image_keys() -> None:
    model = binary(image_keys=["base_camera", "wrist_camera"], image_size=[3, 32, 32]).eval()
    views = {"base_camera": torch.rand(3, 3, 32, 32), "wrist_camera": torch.rand(3, 3, 32, 32)}
    logits = model(views)
    assert logits.shape == (3,)
    swapped = {"base_camera": views["wrist_camera"], "wrist_camera": views["base_camera"]}
    assert not torch.allclose(model(swapped), logits)
    with pytest.raises(RefereeError, match="base_camera, wrist_camera: give a dict"):
        model(views["base_camera"])
    with pytest.raises(RefereeError, match="the observations hold states"):
        model({"states": torch.rand(3, 4)})


def test_a_checkpoint_of_the_documented_form_goes_in(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model, other = binary(image_size=[3, 32, 32]).eval(), binary(image_size=[3, 32, 32]).eval()
    torch.save({"epoch": 1, "model_state_dict": model.state_dict()}, tmp_path / "reward_model.pt")
    images = torch.rand(2, 3, 32, 32)
    assert not torch.allclose(model(images), other(images))
    other.load_state_dict(torch.load(tmp_path / "reward_model.pt", weights_only=True)["model_state_dict"])
    assert torch.equal(model(images), other(images))


SECTION = """
model_type: "resnet_reward"
arch: "resnet18"
hidden_dim: 256
dropout: 0.0
image_size: [3, 128, 128]
normalize: true
precision: "bf16"
debug_save_dir: null
"""


def test_resnet_reward_model_of_a_model_section() -> None:
    model = ResNetRewardModel(OmegaConf.create(SECTION)).eval()
    assert sum(each.numel() for each in model.encoder.parameters()) == 11_176_512
    assert (model.spec.image_size, model.spec.precision, model.spec.normalize) == (128, "bf16", True)
    assert model(torch.rand(2, 3, 128, 128)).shape == (2,)


def test_resnet_reward_model_of_keywords(tmp_path: Path) -> None:
    torch.manual_seed(2)
    model = ResNetRewardModel(arch="resnet10_small", image_size=[3, 32, 32], hidden_dim=16, pretrained=False).eval()
    images = torch.rand(3, 3, 32, 32)
    torch.save({"model_state_dict": model.state_dict()}, tmp_path / "model.pt")
    again = ResNetRewardModel(image_size=[3, 32, 32], model_path=tmp_path / "model.pt").eval()
    assert torch.allclose(again(images), model(images), atol=1e-6)
    assert again.spec.arch == "resnet10_small" and again.spec.hidden_dim == 16
    with pytest.raises(RefereeError, match=r"pretrained is True.*give a local file"):
        ResNetRewardModel(pretrained=True)
    with pytest.raises(RefereeError, match="hiden_dim is no key of a resnet"):
        ResNetRewardModel(hiden_dim=3)

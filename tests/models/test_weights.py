"""Weights from elsewhere: names are mapped, differences found, and nothing but tensors is read."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from referee.errors import RefereeError
from referee.models import Artifact, ModelSpec, build
from referee.models.resnet import ResNet
from referee.models.weights import load_checkpoint, read_encoder

TINY = ModelSpec(arch="resnet10", width=8, hidden_dim=16, image_size=64)
BINARY = TINY.but(model_type="binary_classifier", num_spatial_blocks=3, cameras=("front", "side"))


def images(spec: ModelSpec, count: int = 3) -> np.ndarray:
    shape = (count, len(spec.cameras), spec.image_size, spec.image_size, 3)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def randomised(net: ResNet) -> ResNet:
    """With weights that cannot be taken for another's."""
    for value in [*net.parameters(), *net.buffers()]:
        if value.is_floating_point():
            torch.nn.init.uniform_(value, 0.1, 1)
    return net


# --- encoders ---


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
@pytest.mark.parametrize(("arch", "width"), [("resnet18", 8), ("resnet50", 4)])
def test_a_torchvision_file_fills_an_encoder(tmp_path: Path, arch: str, width: int, suffix: str) -> None:
    net = randomised(ResNet(arch, width=width, num_classes=10))
    path = tmp_path / f"net{suffix}"
    if suffix == ".safetensors":
        save_file(net.state_dict(), path)
    else:
        torch.save(net.state_dict(), path)
    model = build(TINY.but(arch=arch, width=width), pretrained=path)
    for name, value in model.encoder.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(value, net.state_dict()[name]), name


@pytest.mark.parametrize("wrap", ["state_dict", "model_state_dict"])
def test_wrapped_and_prefixed_names_are_unwrapped(tmp_path: Path, wrap: str) -> None:
    net = ResNet("resnet10", width=8)
    torch.save({wrap: {f"module._orig_mod.{k}": v for k, v in net.state_dict().items()}, "epoch": 3}, tmp_path / "a.pt")
    assert set(read_encoder(tmp_path / "a.pt").state) == {k for k in net.state_dict() if "num_batches" not in k}


def test_the_file_decides_about_depth_width_and_norm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.save(ResNet("resnet10", width=4, norm="group").state_dict(), tmp_path / "serl.pt")
    with caplog.at_level(logging.WARNING):
        model = build(TINY.but(arch="resnet18"), pretrained=tmp_path / "serl.pt")
    assert (model.spec.arch, model.spec.width, model.spec.norm) == ("resnet10", 4, "group")
    (line,) = caplog.messages
    assert "has arch=resnet10, not resnet18; width=4, not 8; norm=group, not batch: taken from the file" in line
    assert all("serl.pt" in record.getMessage() for record in caplog.records)


def flax_tree(net: ResNet) -> dict[str, Any]:
    """The same weights as SERL's flax modules name and shape them."""
    state = {name: value.numpy() for name, value in net.state_dict().items()}

    def conv(name: str) -> dict[str, np.ndarray]:
        return {"kernel": state[f"{name}.weight"].transpose(2, 3, 1, 0).copy()}

    def norm(name: str) -> dict[str, np.ndarray]:
        return {"scale": state[f"{name}.weight"], "bias": state[f"{name}.bias"]}

    tree: dict[str, Any] = {"conv_init": conv("conv1"), "norm_init": norm("bn1")}
    for stage in range(4):
        at = f"layer{stage + 1}.0"
        block = {"Conv_0": conv(f"{at}.conv1"), "MyGroupNorm_0": norm(f"{at}.bn1"),
                 "Conv_1": conv(f"{at}.conv2"), "MyGroupNorm_1": norm(f"{at}.bn2")}  # fmt: skip
        if stage:
            block |= {"conv_proj": conv(f"{at}.downsample.0"), "norm_proj": norm(f"{at}.downsample.1")}
        tree[f"ResNetBlock_{stage}"] = block
    return {**tree, "output_head": {"kernel": np.zeros((512, 1000), np.float32), "bias": np.zeros(1000, np.float32)}}


def ported(net: ResNet) -> dict[str, torch.Tensor]:
    """The same weights as the port of SERL's ResNet10 to torch names them."""
    found = {}
    for name, value in net.state_dict().items():
        parts = name.split(".")
        if parts[0].startswith("layer"):
            rest = ".".join(parts[2:]).replace("bn", "norm").replace("downsample", "shortcut")
            found[f"encoder.stages.{int(parts[0][5:]) - 1}.{rest}"] = value
        else:
            found[name.replace("conv1", "embedder.0").replace("bn1", "embedder.1")] = value
    return found


@pytest.mark.parametrize("kind", ["flax.pkl", "flax.pt", "flat.safetensors", "port.safetensors"])
def test_serl_weights_are_mapped(tmp_path: Path, kind: str) -> None:
    net = randomised(ResNet("resnet10", width=8, norm="group", padding="same"))
    path, tree = tmp_path / kind, flax_tree(net)
    if kind == "flax.pkl":
        path.write_bytes(pickle.dumps(tree))
    elif kind == "flax.pt":
        as_tensors = {k: {n: ({m: torch.tensor(w) for m, w in v.items()} if isinstance(v, dict) else torch.tensor(v))
                          for n, v in block.items()} for k, block in tree.items()}  # fmt: skip
        torch.save({"params": as_tensors}, path)
    elif kind == "flat.safetensors":
        flat = {f"{a}/{b}": v for a, block in tree.items() for b, v in block.items() if not isinstance(v, dict)}
        flat |= {f"{a}/{b}/{c}": w for a, block in tree.items() for b, v in block.items() if isinstance(v, dict)
                 for c, w in v.items()}  # fmt: skip
        save_file({name: torch.tensor(value) for name, value in flat.items()}, path)
    else:
        save_file(ported(net), path)
    found = read_encoder(path)
    assert found.properties == {"arch": "resnet10", "width": 8, "norm": "group", "padding": "same"}
    model = build(BINARY.but(norm="group", padding="same"), pretrained=path)
    loaded = model.encoder.state_dict()
    assert loaded.keys() == net.state_dict().keys()
    assert all(torch.equal(loaded[name], value) for name, value in net.state_dict().items())


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("run",)


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        ("missing.pt", None, "is not there"),
        ("weights.txt", lambda path: path.write_text("x"), ".safetensors"),
        ("cut.safetensors", lambda path: path.write_bytes(b"\x10\0\0\0\0\0\0\0{"), "cut off"),
        ("cut.pt", lambda path: path.write_bytes(b"PK\x03\x04broken"), "cut off"),
        ("list.pt", lambda path: torch.save([1, 2], path), "no state dict"),
        ("empty.pt", lambda path: torch.save({"a": 1}, path), "no tensors"),
        ("other.pt", lambda path: torch.save({"x.weight": torch.zeros(3)}, path), "no ResNet"),
        ("evil.pkl", lambda path: path.write_bytes(pickle.dumps({"a": Evil()})), "print"),
        ("odd.pt", lambda path: torch.save({"conv1.weight": torch.zeros(8, 3, 7, 7)}, path), "blocks make none"),
    ],
)
def test_other_files_are_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, write: Any, words: str
) -> None:
    path = tmp_path / name
    if write is not None:
        write(path)
    with pytest.raises(RefereeError) as error:
        read_encoder(path)
    assert words in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)
    assert capsys.readouterr().out == ""


def test_a_file_that_lacks_a_weight_or_holds_nan_is_refused(tmp_path: Path) -> None:
    state = ResNet("resnet10", width=8).state_dict()
    state["layer3.0.bn2.bias"][3] = float("nan")
    torch.save(state, tmp_path / "nan.pt")
    with pytest.raises(RefereeError, match=r"layer3\.0\.bn2\.bias holds NaN"):
        build(TINY, pretrained=tmp_path / "nan.pt")
    del state["layer3.0.bn2.bias"]
    torch.save(state, tmp_path / "less.pt")
    with pytest.raises(RefereeError, match=r"holds no layer3\.0\.bn2\.bias"):
        build(TINY, pretrained=tmp_path / "less.pt")


# --- checkpoints ---


@pytest.mark.parametrize("spec", [TINY, TINY.but(hidden_dim=None), BINARY], ids=["resnet", "linear", "binary"])
def test_the_documented_checkpoint_is_read(tmp_path: Path, spec: ModelSpec) -> None:
    model = build(spec)
    torch.save(documented(model), tmp_path / "reward_model.pt")
    loaded = load_checkpoint(tmp_path / "reward_model.pt", spec)
    np.testing.assert_array_equal(loaded.logits(images(spec)), model.logits(images(spec)))


def documented(model: Any) -> dict[str, Any]:
    """A checkpoint as other programs write it: without our spec."""
    return {"epoch": 1, "model_state_dict": model.state_dict(), "optimizer_state_dict": {}, "train_loss": 0.1,
            "train_acc": 1.0}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_dim": 24}, {"num_spatial_blocks": 5}, {"pooling": "average"}, {"image_size": 128}, {"width": 12},
        {"arch": "resnet18"}, {"norm": "group"}, {"model_type": "resnet"},
        {"pooling": "average", "hidden_dim": 8, "norm": "group"},
    ],
    ids=str,
)  # fmt: skip
def test_a_checkpoint_wins_over_the_configuration(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any]
) -> None:
    trained = build(BINARY.but(**changes))
    torch.save(documented(trained), tmp_path / "model.pt")
    with caplog.at_level(logging.WARNING):
        model = load_checkpoint(tmp_path / "model.pt", BINARY)
    assert {name: getattr(model.spec, name) for name in changes} == changes
    np.testing.assert_array_equal(model.logits(images(model.spec)), trained.logits(images(model.spec)))
    (line,) = caplog.messages
    assert all(f"{name}={value}, not {getattr(BINARY, name)}" in line for name, value in changes.items())


def test_what_nobody_said_is_worth_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.save({**documented(build(BINARY)), "config": BINARY.to_json()}, tmp_path / "model.pt")
    with caplog.at_level(logging.WARNING):
        Artifact.open(tmp_path / "model.pt")
        Artifact.open(tmp_path / "model.pt", ModelSpec(hidden_dim=BINARY.hidden_dim), {"hidden_dim"})
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        Artifact.open(tmp_path / "model.pt", ModelSpec(hidden_dim=3), {"hidden_dim"})
    assert [record.getMessage().partition("model.pt has ")[2] for record in caplog.records] == [
        f"hidden_dim={BINARY.hidden_dim}, not 3: taken from the file"
    ]


def test_a_fitting_checkpoint_gives_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.save(documented(build(BINARY)), tmp_path / "model.pt")
    with caplog.at_level(logging.WARNING):
        load_checkpoint(tmp_path / "model.pt", BINARY)
    assert not caplog.records


def test_a_classifier_with_a_torchvision_backbone_is_read(tmp_path: Path) -> None:
    model = build(TINY)
    state = {}
    for name, value in model.state_dict().items():
        name = name.replace("encoder.", "backbone.") if name.startswith("encoder.") else name
        state[name.replace("classifier.", "backbone.fc.")] = value
    torch.save(state, tmp_path / "full_weights.pt")
    loaded = load_checkpoint(tmp_path / "full_weights.pt", TINY)
    np.testing.assert_array_equal(loaded.logits(images(TINY)), model.logits(images(TINY)))


def test_another_number_of_cameras_is_refused(tmp_path: Path) -> None:
    for spec in (BINARY, TINY.but(cameras=("front", "side"))):
        torch.save(documented(build(spec)), tmp_path / "model.pt")
        with pytest.raises(RefereeError, match="2 cameras"):
            load_checkpoint(tmp_path / "model.pt", spec.but(cameras=("front",)))


def test_weights_alone_open_as_an_artifact(tmp_path: Path) -> None:
    model = build(BINARY)
    torch.save(documented(model), tmp_path / "model.pt")
    artifact = Artifact.open(tmp_path / "model.pt", BINARY)
    np.testing.assert_array_equal(artifact.logits(images(BINARY)), model.logits(images(BINARY)))
    assert artifact.calibration.threshold == 0.5 and artifact.reference is None

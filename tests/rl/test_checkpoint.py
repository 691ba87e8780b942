"""Checkpoints: whole or not at all, exact, and clear about what does not fit."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from referee.rl import checkpoint
from referee.rl.checkpoint import Checkpoint, CheckpointError
from referee.rl.policy import Policy, PolicySpec

SPEC = PolicySpec("mlp", state_size=4, image_size=0, views=0, action_size=2, hidden_dims=(8,))


def made(seed: int = 0) -> tuple[Policy, torch.optim.Adam, Checkpoint]:
    torch.manual_seed(seed)
    policy = Policy(SPEC)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    policy.value({"states": torch.randn(8, 4)}).sum().backward()
    optimizer.step()
    stored = Checkpoint(
        policy={name: value.clone() for name, value in policy.state_dict().items()},
        optimizer=checkpoint.optimizer_tensors(optimizer),
        arrays={"noise": checkpoint.generator_state(np.random.default_rng(3))},
        meta={"policy": SPEC.to_json(), "task": "Reach", "steps": 10},
    )
    return policy, optimizer, stored


def test_round_trip(tmp_path: Path) -> None:
    policy, _, stored = made()
    checkpoint.save(tmp_path / "step_10", stored)
    back = checkpoint.load(tmp_path / "step_10")
    assert back.meta == {"version": 1, **stored.meta}
    for name, value in stored.policy.items():
        assert torch.equal(back.policy[name], value)
    loaded, _ = checkpoint.load_policy(tmp_path / "step_10")
    states = {"states": np.ones((3, 4), np.float32)}
    np.testing.assert_array_equal(loaded.act(states), policy.act(states))


def test_a_restored_optimiser_takes_the_same_step(tmp_path: Path) -> None:
    policy, optimizer, stored = made()
    checkpoint.save(tmp_path / "c", stored)
    back = checkpoint.load(tmp_path / "c")
    twin = Policy(SPEC)
    checkpoint.restore_policy(twin, back, tmp_path / "c", task="Reach")
    other = torch.optim.Adam(twin.parameters(), lr=1e-3)
    checkpoint.restore_optimizer(other, back.optimizer)
    for net, opt in ((policy, optimizer), (twin, other)):
        opt.zero_grad()
        net.value({"states": torch.ones(2, 4)}).sum().backward()
        opt.step()
    for one, two in zip(policy.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_generator_goes_on_where_it_was() -> None:
    random, other = np.random.default_rng(5), np.random.default_rng(6)
    random.standard_normal(7, dtype=np.float32)
    checkpoint.restore_generator(other, checkpoint.generator_state(random))
    np.testing.assert_array_equal(other.standard_normal(9), random.standard_normal(9))


def test_a_save_that_dies_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, stored = made()
    checkpoint.save(tmp_path / "c", stored)
    monkeypatch.setattr(checkpoint, "save_arrays", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        checkpoint.save(tmp_path / "c", replace(stored, meta={**stored.meta, "steps": 99}))
    assert checkpoint.load(tmp_path / "c").meta["steps"] == 10
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("name", ["policy.safetensors", "optimizer.safetensors", "state.safetensors", "meta.json"])
@pytest.mark.parametrize("left", [0.0, 0.5])
@pytest.mark.parametrize("older", [False, True], ids=["", "without checksums"])
def test_a_truncated_file_is_named(tmp_path: Path, name: str, left: float, older: bool) -> None:
    checkpoint.save(tmp_path / "c", made()[2])
    if older:
        (tmp_path / "c" / "checksums.json").unlink()
    path = tmp_path / "c" / name
    path.write_bytes(path.read_bytes()[: int(left * path.stat().st_size)])
    with pytest.raises(CheckpointError, match=rf"{name}:? .*earlier"):
        checkpoint.load(tmp_path / "c")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", made()[2])
    (tmp_path / "c" / "policy.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"policy\.safetensors: is missing"):
        checkpoint.load(tmp_path / "c")
    (tmp_path / "c" / "checksums.json").unlink()
    with pytest.raises(CheckpointError, match=r"policy\.safetensors cannot be read"):
        checkpoint.load(tmp_path / "c")


def test_another_task_or_network_is_refused(tmp_path: Path) -> None:
    stored = made()[2]
    with pytest.raises(CheckpointError, match=r"was trained on Reach, this run is on PickCube: set env\.train\.task"):
        checkpoint.restore_policy(Policy(SPEC), stored, tmp_path, task="PickCube")
    wider = Policy(replace(SPEC, hidden_dims=(16, 16)))
    with pytest.raises(CheckpointError, match=r"another network: hidden_dims \(8,\) \(here \(16, 16\)\)"):
        checkpoint.restore_policy(wider, stored, tmp_path, task="Reach")


def test_another_version_is_refused(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", made()[2])
    meta = tmp_path / "c" / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "version": 7}))
    (tmp_path / "c" / "checksums.json").unlink()
    with pytest.raises(CheckpointError, match="has version 7, this program reads version 1"):
        checkpoint.load(tmp_path / "c")


def test_find_takes_a_checkpoint_a_run_or_says_no(tmp_path: Path) -> None:
    stored = made()[2]
    for steps in (900, 1000):
        checkpoint.save(tmp_path / "checkpoints" / f"step_{steps}", stored)
    (tmp_path / "checkpoints" / "step_2000").mkdir()  # a crash left it empty
    assert checkpoint.find(tmp_path).name == "step_1000"
    assert checkpoint.find(tmp_path / "checkpoints" / "step_900").name == "step_900"
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        checkpoint.find(tmp_path / "elsewhere")

"""An ensemble is cautious where its heads disagree; it is trained, saved, audited and rewards like any other model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from referee.config import load
from referee.envs.contract import split_views
from referee.learn.checks import check
from referee.learn.trainer import Trainer
from referee.models import Artifact, Calibration, ModelSpec, build
from referee.models.ensemble import EnsembleRewardModel
from referee.models.spec import ModelError

SPEC = ModelSpec(
    model_type="ensemble", arch="resnet10", width=4, hidden_dim=8, image_size=64, cameras=("front", "side"),
    options={"members": 4, "std_weight": 2.0},
)  # fmt: skip


def ensemble(spec: ModelSpec = SPEC) -> EnsembleRewardModel:
    torch.manual_seed(0)
    model = build(spec).eval()
    assert isinstance(model, EnsembleRewardModel)
    return model


def frames(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 2, 64, 64, 3), dtype=np.uint8)


def test_the_score_is_mean_less_deviation() -> None:
    model, images = ensemble(), frames(6)
    with torch.no_grad():
        said = model.members(model.encode(model.prepare(images))).numpy()
    assert said.shape == (6, 4) and said.std(1).min() > 0
    np.testing.assert_allclose(model.logits(images), said.mean(1) - 2 * said.std(1), atol=1e-5)
    plain = ensemble(SPEC.but(options={"members": 4, "std_weight": 0}))
    np.testing.assert_allclose(plain.logits(images), said.mean(1), atol=1e-5)


@pytest.mark.parametrize("count", [8, 12, 64])
def test_each_head_learns_from_its_own_frames(count: int) -> None:
    """As many frames for each; each frame teaches one head alone; always the same one at a place of a batch."""
    model = ensemble().train()
    features = torch.randn(count, 2 * model.encoder.channels)
    logits = model.head(features)
    own = (logits[:, None] == model.members(features)).nonzero()
    assert own[:, 0].tolist() == list(range(count)) and set(own[:, 1].bincount().tolist()) == {count // 4}
    assert torch.equal(logits, model.head(features))
    (gradient,) = torch.autograd.grad(logits[0], [model.heads[int(own[0, 1])][-1].bias])
    assert gradient == 1


@pytest.mark.parametrize("options", [{"members": 1}, {"members": 2.5}, {"std_weight": -1.0}, {"std_weight": "high"}])
def test_what_cannot_be_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ModelError, match="of an ensemble"):
        build(SPEC.but(options=options))


def test_an_artifact_keeps_it_whole(tmp_path: Path) -> None:
    model, images = ensemble(), frames(3)
    Artifact(model, Calibration()).save(tmp_path / "model")
    again = Artifact.load(tmp_path / "model")
    assert again.spec.options == {"members": 4, "std_weight": 2.0}
    np.testing.assert_array_equal(again.logits(images), model.logits(images))


def test_a_policy_gets_the_cautious_reward(tmp_path: Path) -> None:
    Artifact(ensemble(), Calibration()).save(tmp_path / "model")
    lines = [
        "env.train.num_envs=4", "env.eval.num_envs=2", "env.train.max_episode_steps=5", "algorithm.rollout_steps=10",
        "actor.global_batch_size=20", "actor.model.hidden_dims=[8]", "actor.num_threads=1", "env.train.num_threads=1",
        "env.eval.num_threads=1", "reward.use_reward_model=true", f"reward.model.model_path={tmp_path / 'model'}",
        "reward.reward_type=score", "reward.reward_mode=per_step",
    ]  # fmt: skip
    config = load("panda_ppo_mlp", lines).config
    check(config)
    run = Trainer(config, tmp_path / "run")
    run.iterate()
    reward = run.reward
    images, rows = reward.sample(12, np.random.default_rng(0))  # type: ignore[attr-defined]
    verdict = reward.manager.judge(split_views(images), cameras=reward.cameras)  # type: ignore[attr-defined]
    np.testing.assert_allclose(run.rollout.rewards.reshape(-1)[rows], verdict.score, rtol=1e-4, atol=1e-5)
    run.close()

"""The vision-language models of the guide, made from its own YAML block around a small model on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from omegaconf import DictConfig, OmegaConf

from referee.compat import HistoryVLMRewardModel, ResNetRewardModel, RewardWorker, VLMRewardModel
from referee.errors import RefereeError
from referee.models.window import Window

DOCUMENTS = Path(__file__).parents[1] / "documented/guides/blocks"


@pytest.fixture
def guide(tmp_path: Path) -> DictConfig:
    from referee.models.vlm.tiny import TinyOptions, tiny_init

    tiny_init(tmp_path / "tiny", TinyOptions(hidden=64, layers=2, vision_hidden=64, vision_depth=2))
    cfg = OmegaConf.create((DOCUMENTS / "004_qwentrend.yaml").read_text())
    assert cfg.reward.model.model_type == "history_vlm" and cfg.reward.model.max_new_tokens == 16
    cfg.reward.model.model_path, cfg.reward.model.precision = str(tmp_path / "tiny"), "fp32"
    del cfg.reward.model.lora_path
    return cfg


def windows(count: int) -> list[Window]:
    random = np.random.default_rng(0)
    frames = random.integers(0, 256, (count, 2, 5, 64, 64, 3), np.uint8)
    return [Window({"main_images": main, "extra_view_images": extra[:, None]}, "lift") for main, extra in frames]


@pytest.mark.slow
def test_both_models_of_a_configuration(guide: DictConfig) -> None:
    model = HistoryVLMRewardModel(guide)
    answers = model.judge(windows(3))
    assert len(answers.text) == 3 and set(answers.reward.tolist()) <= {
        1.0,
        np.float32(-0.2).item(),
        0.0,
    }  # the parser's rewards
    same = HistoryVLMRewardModel(OmegaConf.to_container(guide.reward.model)).judge(windows(3))
    assert same.text == answers.text
    of_parts = HistoryVLMRewardModel(model.model, model.builder, model.parser, model.how)
    assert of_parts.judge(windows(3)).text == answers.text
    guide.reward.model.model_type, guide.reward.reward_mode = "vlm", "per_step"
    del guide.reward.model.history_buffers, guide.reward.history_reward_assign
    last = [Window({name: value[-1:] for name, value in each.frames.items()}, each.task) for each in windows(3)]
    assert VLMRewardModel(guide).judge(windows(3)).text == of_parts.judge(last).text


def test_a_worker_for_images_refuses_it(guide: DictConfig) -> None:
    worker = RewardWorker(guide)
    with pytest.raises(RefereeError, match="history_vlm judges windows: use HistoryVLMRewardModel"):
        worker.init_worker()
    with pytest.raises(RefereeError, match="model_type is resnet: use vlm or history_vlm"):
        HistoryVLMRewardModel({"model_type": "resnet", "model_path": "x"})
    with pytest.raises(RefereeError, match="max_new_tokens is no key of a resnet"):
        ResNetRewardModel({"max_new_tokens": 3})

"""A configuration in the spelling of RLinf's older guides does what those guides do, and says so once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from referee.cli import main
from referee.config import explain, first_time, load
from referee.config.explain import WIDTH
from referee.config.guides import IMPLIED
from referee.config.keys import known_keys
from referee.config.loaded import Loaded
from referee.errors import ConfigError

pytestmark = pytest.mark.usefixtures("quick")
Error = Callable[..., str]

CHECKPOINT = "reward.reward_model.checkpoint_path=./checkpoints/reward_model.pt"
STAGE_3 = ["reward.use_reward_model=True", "reward.collect_data=False", CHECKPOINT]  # as 000 and 003 type it
STAGE_3_OF_002 = ["reward.reward_model_type=resnet", "reward.mode=replace", "reward.resnet.checkpoint_path=best.pt"]


def about(loaded: Loaded, key: str) -> list[str]:
    return [line for line in loaded.notices if line.startswith(f"{key}=")]


@pytest.mark.parametrize(
    ("preset", "lines"),
    [
        ("maniskill_ppo_cnn", STAGE_3),
        ("maniskill_ppo_mlp_resnet_reward", STAGE_3_OF_002),
        ("maniskill_ppo_mlp_resnet_reward", ["reward.mode=replace"]),
        ("maniskill_ppo_mlp_resnet_reward", ["reward.resnet.checkpoint_path=best.pt"]),
        ("maniskill_ppo_mlp_resnet_reward", ["reward.reward_model.pretrained_encoder_path=x.pt"]),
    ],
    ids=["000", "002", "mode", "resnet", "unneeded"],
)
def test_every_observation_is_scored_where_the_guide_scores_it(preset: str, lines: list[str]) -> None:
    loaded = load(preset, lines)
    assert loaded.config.reward.reward_mode == "per_step"
    (line,) = about(loaded, "reward.reward_mode")
    assert line == (
        "reward.reward_mode=per_step (command line, as in RLinf's guide); "
        "recommended: terminal, which is harder to exploit and far cheaper"
    )
    assert loaded.sources["reward.reward_mode"].startswith("translated from reward.")


@pytest.mark.parametrize("mode", ["terminal", "per_step"])
def test_a_mode_that_is_named_is_kept(mode: str) -> None:
    loaded = load("maniskill_ppo_cnn", [*STAGE_3, f"reward.reward_mode={mode}"])
    assert loaded.config.reward.reward_mode == mode
    assert not about(loaded, "reward.reward_mode")


def test_a_mode_in_a_file_is_named(here: Path) -> None:
    name = "named.yaml"
    head = "defaults: [panda_ppo_mlp, _self_]\nreward:\n  use_reward_model: true\n  resnet: {checkpoint_path: x.pt}\n"
    Path(name).write_text(head)
    assert load(name).config.reward.reward_mode == "per_step"
    Path(name).write_text(f"{head}  reward_mode: terminal\n")
    assert load(name).config.reward.reward_mode == "terminal"
    assert load(name, ["reward.reward_mode=per_step"]).config.reward.reward_mode == "per_step"


@pytest.mark.parametrize(
    "lines",
    [
        ["reward.model.model_path=x.pt"],
        ["reward.checkpoint_path=x.pt"],  # 001
        ["reward.model.checkpoint_path=x.pt", "reward.model.model_type=resnet_reward"],  # 001
    ],
    ids=str,
)
def test_newer_spellings_keep_terminal(lines: list[str]) -> None:
    reward = load("maniskill_ppo_mlp_resnet_reward", lines).config.reward
    assert (reward.reward_mode, reward.reward_threshold, reward.below_threshold) == ("terminal", None, "zero")


def test_nothing_follows_where_no_model_is_used() -> None:
    """000 and 003 name the model's images while they collect."""
    loaded = load("maniskill_ppo_cnn", ["reward.collect_data=True", "reward.reward_model.image_keys=[base_camera]"])
    assert loaded.implied == () and loaded.config.reward.reward_mode == "terminal"
    assert not about(loaded, "reward.reward_mode")


def test_the_threshold_of_000_is_its_own() -> None:
    artifact = [*STAGE_3[:2], "reward.reward_model.checkpoint_path=logs/run/checkpoints/best_model"]
    loaded = load("maniskill_ppo_cnn", artifact)
    reward = loaded.config.reward
    assert (reward.reward_threshold, reward.gate_k, reward.gate_n) == (0.5, 1, 1)
    (line,) = about(loaded, "reward.reward_threshold")
    assert line.endswith("recommended: null, the artifact's own calibrated threshold and gate")
    assert not about(load("maniskill_ppo_cnn", STAGE_3), "reward.reward_threshold")  # a .pt has no other
    calibrated = load("maniskill_ppo_cnn", [*artifact, "reward.reward_threshold=null"]).config.reward
    assert (calibrated.reward_threshold, calibrated.gate_k, calibrated.gate_n) == (None, None, None)
    assert load("maniskill_ppo_cnn", [*artifact, "reward.reward_threshold=0.6"]).config.reward.reward_threshold == 0.6
    assert load("maniskill_ppo_mlp_resnet_reward", STAGE_3_OF_002).config.reward.reward_threshold is None


def test_a_continuous_reward_of_000_is_the_probability() -> None:
    lines = [*STAGE_3, "reward.reward_model.reward_type=continuous"]
    assert load("maniskill_ppo_cnn", lines).config.reward.below_threshold == "keep"
    assert load("maniskill_ppo_cnn", [*lines, "reward.below_threshold=zero"]).config.reward.below_threshold == "zero"
    newer = ["reward.model.model_path=x", "reward.reward_type=continuous"]
    assert load("maniskill_ppo_mlp_resnet_reward", newer).config.reward.below_threshold == "zero"
    (line,) = load("maniskill_ppo_mlp_resnet_reward", [newer[0], "reward.below_threshold=keep"]).notices
    assert "acts only with reward.reward_type=continuous" in line


def test_what_is_implied_exists_and_is_on_the_page() -> None:
    assert {each.key for each in IMPLIED} <= set(known_keys())


def test_negative_rewards_carry_the_warning_of_the_guide() -> None:
    lines = ["reward.model.model_path=x", "+reward.use_negative_reward=true"]
    loaded = load("maniskill_ppo_mlp_resnet_reward", lines)
    assert loaded.config.reward.fail_reward == -1.0
    (line,) = loaded.notices
    assert line.startswith("reward.use_negative_reward=true (command line): a policy that gets only negative rewards")
    assert line.endswith("may collapse, so RLinf's guide says not to set it: use reward.fail_reward=0.0")
    lines[1] = "+reward.use_negative_reward=false"
    assert load("maniskill_ppo_mlp_resnet_reward", lines).notices == []


def test_pretrained_true_says_what_to_give(error: Error) -> None:
    line = error("reward_training", "actor.model.pretrained=True")
    assert line.startswith("actor.model.pretrained=true (command line): nothing is downloaded: name a local file with")
    for fine in ("False", "null", "weights.pth"):
        model = load("reward_training", [f"actor.model.pretrained={fine}"]).config.actor.model
        assert model.pretrained == (fine if fine == "weights.pth" else None)  # type: ignore[union-attr]


@pytest.mark.parametrize(("value", "warned"), [("0", False), ("1", True)])
def test_a_key_without_effect_is_warned_of_where_its_effect_is_missed(value: str, warned: bool) -> None:
    loaded = load("train_reward_model", [f"reward.gpu_id={value}"])
    assert [line.startswith("reward.gpu_id (command line) has no effect") for line in loaded.notices] == [True] * warned


def test_a_view_that_is_named_twice_is_no_difference() -> None:
    lines = ["reward.data.image_key=base_camera", "reward.model.image_keys=[base_camera]"]
    assert load("train_reward_model", lines).notices == []
    lines[1] = "reward.model.image_keys=[wrist]"
    (line,) = load("train_reward_model", lines).notices
    assert line.startswith("reward.data.image_key (command line) has no effect: data.cameras names the views")


# --- what is shown, and how often ---


@pytest.fixture
def older(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REFEREE_CACHE", str(here / "cache"))
    file = here / "old.yaml"
    file.write_text("defaults: [panda_expert, _self_]\nenv: {group_name: Mine, eval: {init_params: {num_envs: 4}}}\n")
    return file


LINE = "old.yaml: 2 RLinf keys translated (referee config explain old.yaml)"


def test_a_translation_is_mentioned_once_per_content(older: Path) -> None:
    assert first_time(load("old.yaml")) == [LINE] and len(f"note: {LINE}") <= WIDTH
    assert first_time(load("old.yaml")) == []
    older.write_text(older.read_text().replace("4", "5"))
    assert first_time(load("old.yaml")) == [LINE]
    assert first_time(load("panda_expert", ["env.eval.init_params.num_envs=3"])) == [
        "command line: 1 RLinf key translated (referee config explain …)"
    ]
    assert first_time(load("panda_expert", ["env.eval.init_params.num_envs=3"])) == []


def test_a_run_prints_the_line_once(older: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["run", "old.yaml", "runner.imports=[no_such_module]"]  # it ends before anything begins
    assert main(wrong) == 2 and f"note: {LINE}\n" in capsys.readouterr().err
    assert main(wrong) == 2 and "note:" not in capsys.readouterr().err


def test_where_nothing_can_be_remembered_it_is_shown_again(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (older.parent / "file").write_text("")
    monkeypatch.setenv("REFEREE_CACHE", str(older.parent / "file"))
    assert first_time(load("old.yaml")) == first_time(load("old.yaml")) == [LINE]


def test_explain_shows_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    more = ["reward.reward_model.reward_type=continuous", "reward.group_name=Mine"]
    assert main(["config", "explain", "maniskill_ppo_cnn", *STAGE_3, *more]) == 0
    text = capsys.readouterr().out
    assert text == explain(load("maniskill_ppo_cnn", [*STAGE_3, *more]))
    assert "command line: 4 keys as in RLinf's guides\n" in text
    assert '\n  000  reward.reward_model.checkpoint_path: "./checkpoints/reward_model.pt"\n' in text
    assert '\n       → reward.model.model_path: "./checkpoints/reward_model.pt"\n' in text
    assert "\n  Without effect:\n  000  reward.group_name: Mine\n" in text
    assert "\n  000  reward.below_threshold: keep\n" in text
    assert "\n  Guides: 000 Reward Model Workflow Documentation\n" in text
    assert "\nTo know, or to change:\n  - reward.reward_mode=per_step (command line, as in RLinf's" in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_explain_of_a_preset_in_current_spelling() -> None:
    assert explain(load("panda_expert")) == "panda_expert: every key has its current name, nothing is translated\n"


def test_the_help_is_that_of_the_section_in_use() -> None:
    text = explain(load("train_reward_model", ["reward.global_batch_size=8"]))
    assert "→ actor.global_batch_size: 8\n         frames per step\n" in text


def test_a_refusal_is_still_one_line() -> None:
    with pytest.raises(ConfigError, match="is refused: set actor"):
        explain(load("train_reward_model", ["+reward.lr_sched.kind=cosine"]))

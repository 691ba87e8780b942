"""Fine-tuning a vision-language model: loss by hand, exact accumulation and resume, adapters, what is refused."""

import json
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from models.tiny_vlm import small_vlm, window
from referee.cli import main
from referee.config.reward_training import EarlyStopConfig
from referee.config.runner import TrainVLMRunner
from referee.config.vlm import VLMActorConfig, VLMDataConfig, VLMOptimConfig, VLMTrainedModelConfig
from referee.errors import RefereeError
from referee.models.vlm import make_input_builder, qwen
from referee.models.vlm.encode import IGNORED
from referee.models.vlm.judge import HistoryVLMRewardModel, ReadOut
from referee.models.vlm.qwen import QwenOptions
from referee.training.parallel import Group
from referee.training.vlm.batches import MicroBatchSampler, answer_inputs, answer_loss, reversed_some, shift_window
from referee.training.vlm.segments import read_segments
from referee.training.vlm.settings import FineTuning
from referee.training.vlm.sft import fine_tune, prepare, read_data
from referee.training.vlm.trainer import TrendTrainer
from training.window_files import write_windows

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_vlm(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_windows(tmp_path_factory.mktemp("windows") / "data")


def _settings(base: Path, data: Path, output: Path, **changes: Any) -> FineTuning:
    """changes: keys of any section."""
    keys = {
        "model_path": str(base), "is_lora": False, "lr": 3e-3, "global_batch_size": 8, "micro_batch_size": 4,
        "max_epochs": 2, "num_threads": 1, "recipe": "train_vlm", "save_interval": 0,
        "train_data_paths": (str(data / "train" / "segments.jsonl"),),
        "val_data_paths": (str(data / "eval" / "segments.jsonl"),), **changes,
    }  # fmt: skip
    runner, windows, model, optim, actor = (
        {name: keys.pop(name) for name in list(keys) if name in {each.name for each in fields(kind)}}
        for kind in (TrainVLMRunner, VLMDataConfig, VLMTrainedModelConfig, VLMOptimConfig, VLMActorConfig)
    )
    assert not keys
    return FineTuning(
        output=output, runner=TrainVLMRunner(**runner), data=VLMDataConfig(**windows),
        actor=VLMActorConfig(model=VLMTrainedModelConfig(**model), optim=VLMOptimConfig(**optim), **actor),
    )  # fmt: skip


def _trainer(settings: FineTuning) -> TrendTrainer:
    train, val = read_data(settings)
    torch.manual_seed(0)
    model = qwen.load(settings.model)
    prepare(model, settings)
    return TrendTrainer(model, train, val, settings)


def _steps(trainer: TrendTrainer, count: int) -> None:
    """Learn from so many batches."""
    trainer.fit(stop=lambda: trainer.progress.step == count)
    assert trainer.progress.step == count


def _weights(trainer: TrendTrainer) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in trainer.learning.items()}


def test_the_loss_is_of_the_answer_tokens_alone() -> None:
    """By hand: two rows, answers of one and of two tokens, four words."""
    logits = torch.tensor(np.random.default_rng(0).normal(size=(2, 4, 4)), dtype=torch.float32)
    labels = torch.tensor([[IGNORED, IGNORED, IGNORED, 2], [IGNORED, IGNORED, 1, 3]])
    chances = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(2, keepdims=True)
    first = -np.log(chances[0, 2, 2])
    second = -(np.log(chances[1, 1, 1]) + np.log(chances[1, 2, 3])) / 2
    assert answer_loss(logits, labels).tolist() == pytest.approx([first, second], abs=1e-6)


def test_the_loss_of_a_batch_is_that_of_the_whole_sequence(base: Path) -> None:
    """The model's own loss over all tokens, of which only the answers have labels, is the same number."""
    model = qwen.load(QwenOptions(model_path=base))
    prompts = [make_input_builder()(window(seed)) for seed in range(2)]
    batch = model.encoder.encode(prompts, ["positive", "negative"])
    with torch.no_grad():
        whole = model.net(**batch.inputs, labels=batch.labels).loss
        inputs = answer_inputs(batch)
        answers = inputs.pop("answers")
        losses = answer_loss(model.net(**inputs).logits, answers)
        assert float(losses.mean()) == pytest.approx(float(whole), abs=1e-5)


def test_micro_batches_change_nothing(base: Path, data: Path, tmp_path: Path) -> None:
    """Nor does computing activations twice to save their memory."""
    found = []
    for size, twice in ((8, False), (2, False), (4, True)):
        keys = {"micro_batch_size": size, "lr": 1e-3, "gradient_checkpointing": twice}
        trainer = _trainer(_settings(base, data, tmp_path, **keys))
        _steps(trainer, 2)
        found.append(_weights(trainer))
    for other in found[1:]:
        assert all(torch.allclose(found[0][name], other[name], atol=2e-5) for name in other)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_processes_share_the_windows_of_each_step(base: Path, data: Path, tmp_path: Path, world: int) -> None:
    """Of 21 windows, a step has 16 and the next 5: each counts once, and every process has as many micro-batches."""
    settings = _settings(base, data, tmp_path, global_batch_size=16, micro_batch_size=4, num_processes=world)
    alone, shared = MicroBatchSampler(21, settings, Group(), lambda: 2), []
    for rank in range(world):
        sampler = MicroBatchSampler(21, settings, Group("ddp", rank, world), lambda: 2)
        shared.append([each for (each,) in sampler])
        assert len(shared[-1]) == len(sampler) == {1: 6, 2: 3, 4: 2}[world]
    every = [each for has in shared for each in has]
    for (whole,) in alone:  # the second epoch
        same = [each for each in every if (each.step, each.number) == (whole.step, whole.number)]
        assert len(same) == 1 and np.array_equal(same[0].indices, whole.indices) and same[0].weight == whole.weight
    assert sorted(np.concatenate([each.indices for (each,) in alone])) == list(range(21))
    for step in (2, 3):
        some = [each for each in every if each.step == step]
        assert sum(each.weight * len(each.indices) for each in some) == pytest.approx(1.0)
        assert len({rank for rank, has in enumerate(shared) if any(each.step == step for each in has)}) == world


def test_a_resumed_run_ends_with_the_same_weights_to_the_bit(base: Path, data: Path, tmp_path: Path) -> None:
    def train(output: Path, **changes: Any) -> tuple[TrendTrainer, int]:
        from referee.training import checkpoint

        settings = _settings(
            base, data, output, is_lora=True, lora_rank=2, lora_dropout=0.1, random_shift=1, random_reverse=True,
            **changes,
        )  # fmt: skip
        trainer = _trainer(settings)
        if settings.resume is not None:
            trainer.restore(checkpoint.load(checkpoint.find(settings.resume)))
        result = trainer.fit(
            stop=lambda: settings.resume is None and "cut" in output.name and trainer.progress.step == 4
        )
        return trainer, len(result.history)

    straight, validations = train(tmp_path / "straight")
    assert (straight.progress.step, validations) == (6, 2)
    cut, _ = train(tmp_path / "cut")
    assert cut.progress.step == 4
    resumed, seen = train(tmp_path / "more", resume_dir=str(tmp_path / "cut"))
    assert resumed.progress.step == 6 and seen == 2
    ends = _weights(straight), _weights(resumed)
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    with pytest.raises(RefereeError, match="other windows, batches or epochs"):
        train(tmp_path / "wrong", resume_dir=str(tmp_path / "cut"), max_epochs=3)


@pytest.mark.slow
def test_it_learns_and_the_adapter_is_usable_at_once(base: Path, data: Path, tmp_path: Path) -> None:
    whole = fine_tune(_settings(base, data, tmp_path / "all", max_epochs=30, val_check_interval=10), QUIET)
    segments = read_segments([data / "eval"])
    windows, truth = [each.window() for each in segments], [each.label for each in segments]
    trained = HistoryVLMRewardModel(qwen.load(QwenOptions(model_path=whole)), how=ReadOut(readout="score"))
    assert sum(a == b for a, b in zip(trained.judge(windows).label, truth, strict=True)) >= 10
    written = HistoryVLMRewardModel(trained.model, how=ReadOut(readout="generate", max_new_tokens=4)).judge(windows)
    assert written.label == trained.judge(windows).label and written.invalid == 0

    best = fine_tune(_settings(whole, data, tmp_path / "lora", is_lora=True, lora_rank=4, max_epochs=1), QUIET)
    assert {each.suffix for each in best.iterdir()} <= {".json", ".safetensors", ".md"}
    used = qwen.load(QwenOptions(model_path=whole, lora_path=best))
    said = HistoryVLMRewardModel(used, how=ReadOut(readout="score")).judge(windows)
    assert sum(a == b for a, b in zip(said.label, truth, strict=True)) >= 10
    note = qwen.read_note(best)
    assert note["episodes"]["train"][0] == "train0" and note["input_builder_name"] == "qwentrend_input_builder"


def test_what_was_trained_is_what_is_loaded(base: Path, data: Path, tmp_path: Path) -> None:
    from referee.training.vlm.sft import save

    keys = {"is_lora": True, "lora_rank": 2, "max_epochs": 1, "val_data_paths": None}
    trainer = _trainer(_settings(base, data, tmp_path, **keys))
    _steps(trainer, 1)
    trainer.qwen.net.eval()
    before = HistoryVLMRewardModel(trainer.qwen, how=ReadOut(readout="score")).judge([window(0)]).probabilities
    save(trainer.qwen, tmp_path / "best", {})
    loaded = qwen.load(QwenOptions(model_path=base, lora_path=tmp_path / "best"))
    after = HistoryVLMRewardModel(loaded, how=ReadOut(readout="score")).judge([window(0)]).probabilities
    assert before is not None and after is not None and np.allclose(before, after, atol=1e-5)


@pytest.mark.slow
def test_two_processes_learn_what_one_does(base: Path, data: Path, tmp_path: Path) -> None:
    ends = []
    for processes in (1, 2):
        output = tmp_path / str(processes)
        settings = _settings(base, data, output, max_epochs=1, lr=1e-3, num_processes=processes)
        best = fine_tune(settings, QUIET)
        ends.append(qwen.load(QwenOptions(model_path=best)).net.state_dict())
    assert all(torch.allclose(ends[0][name], ends[1][name], atol=2e-5) for name in ends[0])


def test_early_stop_and_the_best_is_kept(base: Path, data: Path, tmp_path: Path) -> None:
    settings = _settings(base, data, tmp_path, lr=0.0, max_epochs=9, early_stop=EarlyStopConfig(patience=2))
    result = _trainer(settings).fit()
    assert result.reason == "early stop" and len(result.history) == 3 and result.best.step == 3


def test_frames_of_a_view_are_shifted_alike() -> None:
    shown = window(0, frames=3)
    moved = shift_window(shown, 4, np.random.default_rng(5))
    main, before = moved.frames["main_images"], shown.frames["main_images"]
    down, right = np.random.default_rng(5).integers(-4, 5, (1, 1, 2))[0, 0]
    inner = np.roll(before, (down, right), (1, 2))[:, 4:-4, 4:-4]
    assert np.array_equal(main[:, 4:-4, 4:-4], inner)
    assert shift_window(shown, 0, np.random.default_rng(0)) is shown


def test_every_other_window_is_shown_backwards_under_its_other_name() -> None:
    some = [(window(seed), label) for seed, label in enumerate(("positive", "negative", "unclear") * 20)]
    found = reversed_some(some, np.random.default_rng(0))
    other = {"positive": "negative", "negative": "positive", "unclear": "unclear"}
    turned = 0
    for (before, was), (after, is_now) in zip(some, found, strict=True):
        if after is before:
            assert is_now == was
            continue
        turned += 1
        assert is_now == other[was] and after.task == before.task
        assert all(np.array_equal(after.frames[name], before.frames[name][::-1]) for name in before.frames)
    assert 15 < turned < 45


def test_bad_windows_are_one_line_each(base: Path, data: Path, tmp_path: Path) -> None:
    def broken(**changes: Any) -> Path:
        row = json.loads((data / "train" / "segments.jsonl").read_text().splitlines()[0]) | changes
        (tmp_path / "segments.jsonl").write_text(json.dumps(row) + "\n")
        return tmp_path / "segments.jsonl"

    with pytest.raises(RefereeError, match="has the answer 'great'"):
        read_segments([broken(answer="great")], data)
    with pytest.raises(RefereeError, match=r"set data\.video_root"):
        read_segments([broken(pkl_path="train/pkl/none.pkl")], data)
    with pytest.raises(RefereeError, match="video_nframes is 2: set it to 3"):
        read_segments([data / "train"], frames=2)
    assert len(read_segments([broken(stop=9, frames=2)], data, frames=2)) == 1  # few frames of a long window
    (tmp_path / "segments.jsonl").write_text("\n")
    with pytest.raises(RefereeError, match="no windows in it"):
        read_segments([tmp_path / "segments.jsonl"])
    (tmp_path / "segments.jsonl").write_text("{\n")
    with pytest.raises(RefereeError, match=r"segments\.jsonl:1 is no window"):
        read_segments([tmp_path / "segments.jsonl"])
    with pytest.raises(RefereeError, match="is not there"):
        read_segments([tmp_path / "nowhere.jsonl"])
    with pytest.raises(RefereeError, match="24 episodes are on both sides"):
        read_data(_settings(base, data, tmp_path, val_data_paths=(str(data / "train"),)))
    with pytest.raises(RefereeError, match="not divisible"):
        _settings(base, data, tmp_path, micro_batch_size=3)
    with pytest.raises(RefereeError, match="precision=fp32"):
        _settings(base, data, tmp_path, precision="bf16")


@pytest.mark.slow
def test_the_documented_command_and_the_audit(
    base: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DUALVIEW_SFT_DATA_ROOT", str(data))
    run = tmp_path / "run"
    keys = [f"actor.model.model_path={base}", f"runner.logger.log_path={run}", "runner.max_epochs=1",
            "actor.num_threads=1", "data.video_nframes=3"]  # fmt: skip
    assert main(["run", "qwen3vl_sft_qwentrend", *keys]) == 0
    best = run / "checkpoints" / "best_model"
    assert f"use it as reward.model.lora_path={best}" in capsys.readouterr().out.replace("\n", "")
    assert (best / "adapter_model.safetensors").is_file()
    assert main(["audit", str(best), str(data)]) == 0
    assert "calibration error" in capsys.readouterr().out
    found = json.loads((best / "report" / "metrics.json").read_text())
    assert found["counts"]["windows"] == 12 and np.sum(found["counts_matrix"]) == 12
    assert "Does the robot come closer" in (best / "report" / "report.html").read_text()
    assert main(["audit", str(best), str(data / "train" / "segments.jsonl")]) == 2
    assert "was trained on 24 of these 24 episodes" in capsys.readouterr().err
    shutil.copytree(data, tmp_path / "again")
    renamed = tmp_path / "again" / "train" / "segments.jsonl"
    renamed.write_text(renamed.read_text().replace('"episode": "train', '"episode": "new'))
    assert main(["audit", str(best), str(renamed)]) == 2
    assert "was trained on 24 of these 24 episodes (as new0)" in capsys.readouterr().err


def test_what_each_label_was_taken_for_is_printed_and_logged(
    base: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logged: list[dict[str, float]] = []
    settings = _settings(base, data, tmp_path / "run", max_epochs=1)
    fine_tune(settings, Console(), log=lambda values, step: logged.append(values))
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    start = printed.index(["true", "\\", "said", "positive", "negative", "unclear"])
    rows = {row[0]: [float(cell) for cell in row[1:]] for row in printed[start + 1 : start + 4]}
    last = [values for values in logged if "val/loss" in values][-1]
    for name, row in rows.items():
        assert [last[f"val/confusion/{name}_as_{said}"] for said in ("positive", "negative", "unclear")] == row
        assert sum(row) == 4  # of twelve windows

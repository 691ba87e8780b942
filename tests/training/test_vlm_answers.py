"""What a fine-tuned model really writes, and what the parser of the presets makes of it."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from models.tiny_vlm import small_vlm
from referee.config.runner import TrainVLMRunner
from referee.config.vlm import VLMActorConfig, VLMDataConfig, VLMOptimConfig, VLMTrainedModelConfig
from referee.datasets.windows import LABELS
from referee.models.vlm import make_reward_parser, qwen
from referee.models.vlm.encode import Batch
from referee.models.vlm.judge import HistoryVLMRewardModel, ReadOut, generate
from referee.models.vlm.qwen import QwenOptions
from referee.models.window import Window
from referee.training.vlm.segments import read_segments
from referee.training.vlm.settings import FineTuning
from referee.training.vlm.sft import fine_tune
from training.window_files import write_windows

GUIDE = {"positive": 1.0, "negative": -0.2, "unclear": 0.0}


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[qwen.Qwen, list[Window], list[str]]:
    """A tiny model that has learned trends of brightness, and windows that it has not seen, with their labels."""
    folder = tmp_path_factory.mktemp("answers")
    data = write_windows(folder / "data", train=24, val=30)
    settings = FineTuning(
        output=folder / "run",
        data=VLMDataConfig(
            train_data_paths=(str(data / "train" / "segments.jsonl"),),
            val_data_paths=(str(data / "eval" / "segments.jsonl"),),
        ),
        actor=VLMActorConfig(
            model=VLMTrainedModelConfig(model_path=str(small_vlm(folder / "base")), is_lora=False),
            optim=VLMOptimConfig(lr=3e-3), global_batch_size=8, micro_batch_size=8, num_threads=1,
        ),
        runner=TrainVLMRunner(recipe="train_vlm", max_epochs=30, val_check_interval=10),
    )  # fmt: skip
    best = fine_tune(settings, Console(quiet=True))
    segments = read_segments([data / "eval"])
    model = qwen.load(QwenOptions(model_path=best))
    return model, [each.window() for each in segments], [each.label for each in segments]


@pytest.mark.slow
def test_the_parser_reads_what_a_fine_tuned_model_writes(
    taught: tuple[qwen.Qwen, list[Window], list[str]],
) -> None:
    """All three answers are written, word by word, rewarded as the guide says, and mostly true."""
    model, windows, truth = taught
    said = HistoryVLMRewardModel(model, how=ReadOut(readout="generate", max_new_tokens=16)).judge(windows)
    assert set(said.text) == set(LABELS) and said.invalid == 0
    assert said.label == said.text
    assert said.reward.tolist() == pytest.approx([GUIDE[label] for label in said.label])
    assert sum(a == b for a, b in zip(said.label, truth, strict=True)) >= 27


@pytest.mark.slow
def test_written_answers_are_those_that_are_scored(taught: tuple[qwen.Qwen, list[Window], list[str]]) -> None:
    model, windows, _ = taught
    written = HistoryVLMRewardModel(model, how=ReadOut(readout="generate")).judge(windows)
    scored = HistoryVLMRewardModel(model, how=ReadOut(readout="score")).judge(windows)
    assert written.label == scored.label and np.array_equal(written.reward, scored.reward)
    assert written.probabilities is None and scored.probabilities is not None


@pytest.mark.slow
def test_drawn_answers_can_be_read_too(taught: tuple[qwen.Qwen, list[Window], list[str]]) -> None:
    """At a temperature that lets the model err, it errs in words that mean something, or the parser counts them."""
    model, windows, _ = taught
    how = ReadOut(readout="generate", do_sample=True, temperature=1.0)
    said = HistoryVLMRewardModel(model, how=how).judge(windows)
    for text, label, reward in zip(said.text, said.label, said.reward, strict=True):
        assert (label, pytest.approx(float(reward))) == make_reward_parser()(text)
    assert said.invalid <= 6


@pytest.mark.slow
def test_an_answer_ends_where_the_model_ends_its_turn(taught: tuple[qwen.Qwen, list[Window], list[str]]) -> None:
    """It was taught the end of the turn: with room for 64 tokens, it writes the word and stops."""
    model, windows, _ = taught
    judge = HistoryVLMRewardModel(model)
    batch: Batch = judge._batch(windows[:6])
    assert generate(model, batch, ReadOut(max_new_tokens=64)) == generate(model, batch, ReadOut(max_new_tokens=2))


def test_a_model_that_was_not_taught_writes_what_cannot_be_read(tmp_path: Path) -> None:
    model = qwen.load(QwenOptions(model_path=small_vlm(tmp_path / "tiny")))
    windows = [each.window() for each in read_segments([write_windows(tmp_path / "data") / "eval"])]
    said = HistoryVLMRewardModel(model, how=ReadOut(readout="generate")).judge(windows)
    assert said.invalid == len(windows) and not said.reward.any()

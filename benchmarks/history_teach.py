"""Windows cut out of recordings, the tiny Qwen3-VL that learns their trends, and how often it is right."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from referee.config.datasets import WindowConfig
from referee.config.runner import TrainVLMRunner
from referee.config.vlm import ParamConfig, VLMActorConfig, VLMDataConfig, VLMOptimConfig, VLMTrainedModelConfig
from referee.datasets.source import open_source
from referee.datasets.windows import build_windows, trends, windows
from referee.episodes import EpisodeStore
from referee.episodes.episode import GRASP, IMAGES, PROGRESS
from referee.metrics import Rate
from referee.models.vlm.judge import HistoryVLMRewardModel, ReadOut
from referee.models.vlm.parsers import make_reward_parser
from referee.models.vlm.prompts import make_input_builder
from referee.models.vlm.qwen import QwenOptions, load
from referee.models.vlm.tiny import TinyOptions, tiny_init
from referee.models.window import Window
from referee.training.vlm.settings import FineTuning
from referee.training.vlm.sft import fine_tune

DELTA = 0.01
"""Of progress, from which a window is a trend. Small: a slow retreat that is called unclear would cost nothing, and
rushing back would pay, again and again."""
SIZE, CLEAR = 5, 0.03
"""States of a judged window, and the change of progress from which the oracle calls it a trend."""
PHASES = ("reach", "grasp or drop", "carry")


def cut(episodes: Path, size: int, samples: int, *, val_split: float = 0.02) -> tuple[Path, Path]:
    """All windows of one size, as common as they are: a recording is learned from as a whole, or not at all."""
    place = episodes / f"windows_{size}"
    if not place.exists():
        options = WindowConfig(
            window_size=size, keep_frames=2, num_samples_per_episode=samples, delta_threshold=DELTA, balance=False,
            val_split=val_split,
        )  # fmt: skip
        build_windows(open_source(episodes / "collected_data"), place, options)
    return place / "train", place / "eval"


def teach(
    train: Sequence[Path], val: Sequence[Path], folder: Path, *, shown: Mapping[str, Any], base: Path | None = None,
    size: int = 64, lr: float = 1.5e-3, epochs: int = 3, processes: int = 2,
) -> Path:  # fmt: skip
    """The best weights; windows that it does not learn from choose them.

    base: the model that goes on learning; None begins with random numbers. size: pixels of the pictures it is shown.
    """
    best = folder / "taught" / "checkpoints" / "best_model"
    if best.exists():
        return best
    if base is None:
        base = folder / "base"
        if not base.exists():
            options = TinyOptions(vision_depth=2, patch=8, image_size=size)
            print(f"a random Qwen3-VL with {tiny_init(base, options):,} parameters")
    began = time.perf_counter()
    fine_tune(
        FineTuning(
            output=folder / "taught",
            data=VLMDataConfig(
                train_data_paths=tuple(map(str, train)), val_data_paths=tuple(map(str, val)), video_nframes=2,
                input_builder_params={name: ParamConfig(value=value) for name, value in shown.items()},
                max_val_windows=900,
            ),
            actor=VLMActorConfig(
                model=VLMTrainedModelConfig(model_path=str(base), is_lora=False),
                optim=VLMOptimConfig(lr=lr, weight_decay=0.05, warmup_ratio=0.03),
                global_batch_size=64, micro_batch_size=64 // processes, eval_batch_size=64,
                random_reverse=True, num_processes=processes, num_threads=1,
            ),
            runner=TrainVLMRunner(recipe="train_vlm", max_epochs=epochs, log_interval=50),
        ),
        Console(),
    )  # fmt: skip
    print(f"taught in {(time.perf_counter() - began) / 60:.1f} minutes", flush=True)
    return best


@dataclass(frozen=True, eq=False)
class Sample:
    """Windows of recorded episodes, in the order in which they were made, with what is true of them."""

    windows: list[Window]
    change: np.ndarray
    """f64[n]: of progress, from the first to the last state."""
    phase: np.ndarray
    """i64[n]: a place in PHASES."""


def sample(recorded: Path, count: int, seed: int = 0) -> Sample:
    """`count` windows of SIZE states, shown by their first and last frame, evenly over all episodes."""
    random = np.random.default_rng(seed)
    episodes = sorted(EpisodeStore(recorded / "collected_data"), key=lambda each: (each.meta.episode, each.meta.env))
    chosen, change, phase = [], [], []
    for number in np.linspace(0, len(episodes) - 1, count).astype(int):
        episode = episodes[number]
        bounds = windows(len(episode.signals[PROGRESS]), SIZE, 1)
        start, stop = bounds[random.integers(len(bounds))]
        frames = {name: np.array(episode.observations[name][[start, stop - 1]]) for name in IMAGES}
        chosen.append(Window(frames, episode.meta.description or episode.meta.task))
        change.append(trends(episode.signals[PROGRESS], np.array([[start, stop]]), CLEAR)[0][0])
        held = episode.signals[GRASP][[start, stop - 1]].astype(bool)
        phase.append(1 if held[0] != held[1] else 2 * int(held[0]))
    return Sample(chosen, np.array(change), np.array(phase))


def judge_of(model: Path, how: ReadOut) -> HistoryVLMRewardModel:
    """The model, asked as it was taught, with symmetric rewards."""
    loaded = load(QwenOptions(model_path=model))
    builder = make_input_builder(loaded.note["input_builder_name"], loaded.note["input_builder_params"])
    return HistoryVLMRewardModel(loaded, builder, make_reward_parser(params={"negative_reward": -1.0}), how)


def agreement(name: str, found: Sample, model: Path, parts: int = 4) -> list[str]:
    """Lines of a table: how often P(positive) - P(negative), asked both ways, has the sign of a true trend."""
    judge = judge_of(model, ReadOut(readout="score", score_pay="expected", both_ways=True))
    reward = judge.judge(found.windows).reward
    clear, right = np.abs(found.change) > CLEAR, np.sign(reward) == np.sign(found.change)
    place = np.arange(len(clear)) * parts // len(clear)
    rows = {
        "all": clear,
        "rises": clear & (found.change > 0),
        "falls": clear & (found.change < 0),
        **{each: clear & (found.phase == number) for number, each in enumerate(PHASES)},
        **{f"age {number + 1} of {parts}": clear & (place == number) for number in range(parts)},
    }
    lines = [f"| {name} | {row} | {Rate(int((right & some).sum()), int(some.sum()))} |" for row, some in rows.items()]
    oracle = np.sign(found.change) * clear
    fit = np.corrcoef(reward, oracle)[0, 1]
    return [*lines, f"| {name} | correlation with the oracle's reward | {fit:.3f} |"]


def written(found: Sample, model: Path) -> list[str]:
    """Lines of a table: what the model writes about windows, what the parser makes of it, and what scoring says."""
    texts = judge_of(model, ReadOut(readout="generate")).judge(found.windows)
    scores = judge_of(model, ReadOut(readout="score", both_ways=False)).judge(found.windows)
    lines = []
    for text in sorted(set(texts.text)):
        where = [number for number, each in enumerate(texts.text) if each == text]
        same = sum(scores.label[number] == texts.label[number] for number in where)
        lines.append(f"| {text!r} | {texts.label[where[0]]} | {texts.reward[where[0]]:+g} | {len(where)} | {same} |")
    return lines

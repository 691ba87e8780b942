"""Prints what a history costs, and what a policy learns from a model that judges windows of the last frames.

Memory: bytes that one environment's history takes in a rollout of 50 steps at 64 px from two cameras, with every frame
kept once, beside what its windows would take if each had frames of its own.

Learning (with --arms): a weak policy goes on for the same steps with the same seeds, under these rewards:
  history  the model (--model) pays as the preset says, by its probabilities: a window of five frames ends at every
           step from the fourth on, and pays for it P(positive) - P(negative).
  oracle   the same windows, named by the simulation's own progress instead of a model: no model names them better.
  env      the environment's dense reward pays.
  none     nothing is paid.
The policy's critic begins anew and its normaliser stays as it is, under all of them. Judged on 256 fixed episodes with
the mean action, at the start, on the way and at the end. The truth is only looked at. Other keys than the preset's are
tried by naming them (`reward.history_reward_assign=once`).
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from referee import cpu

cpu.cap_if_needed()

import numpy as np  # noqa: E402 - after the cap
import torch  # noqa: E402

from referee.config import Config, load  # noqa: E402
from referee.config.vlm import VLMModelConfig, values  # noqa: E402
from referee.datasets.windows import trends  # noqa: E402
from referee.demo.ablation_runs import QUIET, weak_config, weak_policy  # noqa: E402
from referee.learn.batch import RolloutBatch  # noqa: E402
from referee.learn.trainer import Trainer  # noqa: E402
from referee.models.vlm import make_reward_parser  # noqa: E402
from referee.rewards import Scores  # noqa: E402
from referee.rewards import window_model as runner_trends  # noqa: E402
from referee.rewards.assign import pay_windows  # noqa: E402
from referee.rewards.history import History, HistoryBuffer, Windows  # noqa: E402
from referee.rewards.window_scorer import WindowScorer  # noqa: E402
from referee.rewards.windows import WindowReward  # noqa: E402

STEPS, EPISODE, PIXELS = 50, 50, 64
DELTA = 0.03
"""Of progress, from which a window is a trend; as in `vlm_trend.py`."""


def lived(buffer: HistoryBuffer, envs: int = 8) -> tuple[History, Windows]:
    """The history of a second rollout, in which an episode of each environment ends."""
    history = History({"one": buffer}, envs, STEPS)
    frames = {
        "main_images": np.zeros((envs, PIXELS, PIXELS, 3), np.uint8),
        "extra_view_images": np.zeros((envs, 1, PIXELS, PIXELS, 3), np.uint8),
    }
    history.start(frames)
    for rollout in range(2):
        history.begin()
        for step in range(STEPS):
            ended = np.full(envs, (rollout * STEPS + step + 1) % EPISODE == 0)
            history.add(frames, ended, {name: images[ended] for name, images in frames.items()})
    return history, history.windows()


def memory() -> None:
    """The table of bytes."""
    print("| window | every | windows per env | KB per env, kept once | KB per env, a copy per window | ratio |")
    print("|--:|--:|--:|--:|--:|--:|")
    for size, interval in ((5, 1), (5, 4), (8, 1), (16, 1)):
        buffer = HistoryBuffer(history_size=size, min_history_size=size, input_interval=interval)
        history, windows = lived(buffer)
        each = 2 * PIXELS * PIXELS * 3
        copies = int(windows.lengths.sum()) * each / 8
        kept = history.bytes_per_env
        print(f"| {size} | {interval} | {len(windows) / 8:.0f} | {kept / 1e3:,.0f} | {copies / 1e3:,.0f} "
              f"| {copies / kept:.1f} |")  # fmt: skip


class Blind:
    """Draws nothing: the oracle looks at no picture."""

    def __init__(self, env: Any) -> None:
        self.num_envs = env.num_envs

    def render_cameras(self, ids: Any = None, **options: Any) -> dict[str, np.ndarray]:
        return {"main_images": np.zeros((self.num_envs if ids is None else len(ids), 1), np.uint8)}


class Told(WindowScorer):
    """Knows how far each state is."""

    def __init__(self, config: Config, options: Any) -> None:
        model = config.reward.model
        assert isinstance(model, VLMModelConfig)
        super().__init__(None, options, task="", assign=config.reward.history_reward_assign)
        self._parser = make_reward_parser(model.reward_parser_name, values(model.reward_parser_params))

    def score(self, windows: Windows, shape: tuple[int, int]) -> Scores:
        bounds = np.stack([windows.starts, windows.starts + windows.lengths], axis=1)
        _, names = trends(windows.frames["progress"], bounds, DELTA)
        rewards = np.array([self._parser(name)[1] for name in names], np.float32)
        paid, judged = pay_windows(windows, rewards, shape, assign=self._assign, interval_reward=0.0)
        return Scores(paid, judged, None, None)


class Oracle(Trainer):
    """A run whose windows are judged by the truth."""

    def __init__(self, config: Config, folder: Path) -> None:
        make_model, runner_trends.make_window_model = runner_trends.make_window_model, lambda config: None  # type: ignore[assignment,return-value]
        try:
            super().__init__(config, folder)
        finally:
            runner_trends.make_window_model = make_model
        worker = self.reward
        assert isinstance(worker, WindowReward)
        worker.manager = Told(config, worker.options)
        worker._env = Blind(self.env)  # type: ignore[assignment]


class Unpaid(Trainer):
    """A run in which nothing is paid."""

    def relabel(self, batch: RolloutBatch) -> None:
        super().relabel(batch)
        batch.rollout.rewards[:] = 0


def config_of(arm: str, start: Path, options: argparse.Namespace) -> Config:
    """The same run with one reward or another."""
    lines = [
        f"env.train.task={options.task}", f"runner.seed={options.seed}", f"actor.model.model_path={start}",
        "actor.model.start_log_std=-1.5", f"runner.max_steps={options.steps}", "runner.eval_episodes=256",
        f"runner.eval_interval={options.eval_interval}", "algorithm.critic_warmup=5", "runner.film=false",
        "actor.model.fresh_critic=true", "algorithm.normalise_observations=false",
    ]  # fmt: skip
    if arm in ("env", "none"):
        return load("panda_ppo_mlp", lines).config
    lines.append(f"reward.model.model_path={'nobody' if arm == 'oracle' else options.model}")
    if arm == "history":
        lines += ["reward.model.readout=score", "reward.model.score_pay=expected"]
    if arm == "history" and options.lora is not None:
        lines.append(f"reward.model.lora_path={options.lora}")
    return load("panda_ppo_mlp_qwentrend_reward", [*lines, *options.overrides]).config


def row(arm: str, start: Path, options: argparse.Namespace) -> None:
    """Train one arm, and print it."""
    kind = {"none": Unpaid, "oracle": Oracle}.get(arm, Trainer)
    run = kind(config_of(arm, start, options), options.out / f"{arm}_{options.task}_{options.seed}")
    began = time.perf_counter()
    run.warm_start(QUIET)
    course = [100 * run.evaluate()["eval/success_at_end"]]
    while not run.finished():
        run.iterate()
        if run.iteration % options.eval_interval == 0 or run.finished():
            course.append(100 * run.evaluate()["eval/success_at_end"])
            print(f"{arm}: {run.steps:,} steps, {run.evaluation.outcomes.rate()}", file=sys.stderr, flush=True)
    said = "| | | |"
    if arm == "history" and isinstance(run.reward, WindowReward):
        account = run.reward.manager.account()
        asked = max(1.0, account["windows"])
        said = (
            f"| {account['windows']:,.0f} | {100 * account['invalid'] / asked:.1f} % "
            f"| {asked / account['seconds']:.0f} |"
        )
    minutes = (time.perf_counter() - began) / 60
    points = " ".join(f"{each:.0f}" for each in course)
    print(
        f"| {options.task} | {arm} | {run.evaluation.outcomes.rate()} | {points} | {run.steps:,} "
        f"| {minutes:.1f} {said}",
        flush=True,
    )
    run.close()


def main() -> None:
    """Both parts, or the memory alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a Qwen3-VL, for the arm `history`")
    parser.add_argument("--lora", type=Path, help="its adapter")
    parser.add_argument("--task", default="PushCube")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=96_000)
    parser.add_argument("--eval-interval", type=int, default=5)
    parser.add_argument(
        "--arms", nargs="*", default=[], choices=("history", "oracle", "env", "none"), help="without any, memory alone"
    )
    parser.add_argument("--start", type=float, default=0.27, help="true success of the weak policy")
    parser.add_argument("--out", type=Path, default=Path(".bench/history_reward"))
    parser.add_argument("overrides", nargs="*", help="behind --: key=value of the arms `history` and `oracle`")
    options = parser.parse_args()
    torch.set_num_threads(1)
    memory()
    if not options.arms:
        return
    if "history" in options.arms and options.model is None:
        parser.error("the arm `history` needs --model")
    start = options.out / f"start_{options.task}_{options.seed}"
    if not (start / "checkpoints").exists():
        weak_policy(weak_config(options.task, options.seed), start, success=options.start).close()
    print("\n| task | reward | true success [95 %] | evaluations on the way | steps | minutes "
          "| windows | invalid | windows/s |\n|---|---|---|---|--:|--:|--:|--:|--:|")  # fmt: skip
    for arm in options.arms:
        row(arm, start, options)


if __name__ == "__main__":
    main()

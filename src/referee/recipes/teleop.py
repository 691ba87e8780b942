"""Recipe: lead the arm and watch what the reward model says of every frame; no policy, no learning.

    arm worker: step ──pictures──▶ reward worker: look ──verdict──▶ here: show ──▶ arm worker: take

Both workers are in this process, or on the nodes of a cluster. The arm never moves on while a verdict is missing.
"""

from __future__ import annotations

import logging

from rich.console import Console

from referee.collect.session import keys_steer
from referee.collect.teleoperation import Teleoperation
from referee.config import Config, Loaded
from referee.episodes.collection import place
from referee.episodes.rerun import LiveView
from referee.errors import ConfigError
from referee.recipes.model_keys import as_scored
from referee.robots.steering import HELP
from referee.runs.folder import locks_folder, open_run
from referee.runs.interrupt import Interrupt

READY = "[TeleopWorker] EmbodiedRewardWorker ready: type=EmbodiedRewardWorker | reward_threshold={:.3f}"
"""As scripts that read these lines know it, whatever the model is."""

_log = logging.getLogger(__name__)


@locks_folder
def teleop(loaded: Loaded) -> None:
    """Step, judge and show until somebody stops it."""
    check(loaded.config)
    loaded = as_scored(loaded)
    config = loaded.config
    console = Console(highlight=False)
    folder = open_run(loaded).resolve()
    with LiveView.open(config.runner.live_view) as view, Teleoperation(loaded, folder) as run:
        say(console, "[TeleopWorker] Starting teleoperation loop.")
        if keys_steer(config.env.eval):
            say(console, f"Steering: {HELP}")
        run.wake()
        say(console, READY.format(run.threshold))
        with Interrupt(console, "stopping after this step") as interrupt:
            for shown, latency in run.steps(view):
                column = _milliseconds(latency) if config.runner.show_latency else ""
                say(console, shown.line(probability=config.reward.use_reward_prob, latency=column))
                if shown.held:
                    say(console, f"the arm held: {shown.held}")
                if latency is None:
                    late = config.reward.late_seconds
                    say(console, f"no verdict within {late:g} s: the arm holds, and this is no success")
                if shown.ended:
                    say(console, "the episode is over: the arm went back to its start")
                if interrupt.wanted:
                    break
    for line in run.account.lines():
        say(console, line)
    assert config.env.eval is not None
    if run.account.recorded:
        say(console, f"recorded in {place(config.env.eval.data_collection, folder)}")


def _milliseconds(latency: float | None) -> str:
    return "late" if latency is None else f"{1000 * latency:.0f} ms"


def check(config: Config) -> None:
    """Refuse what cannot work before an arm moves."""
    reward = config.reward
    if not reward.use_reward_model:
        raise ConfigError(
            "reward.use_reward_model is false: teleoperation shows what a reward model says, set it to true"
        )
    if reward.reward_mode != "per_step":
        raise ConfigError(f"reward.reward_mode is {reward.reward_mode}, but each frame is judged here: set per_step")
    env = config.env.eval
    assert env is not None
    collection = env.data_collection
    if collection.enabled and collection.export_format != "native":
        raise ConfigError(
            f"env.eval.data_collection.export_format is {collection.export_format}, but what a person does is recorded "
            "as native, which survives kills: leave it out, and use `referee episodes convert` afterwards"
        )
    if collection.enabled and collection.cameras is not None:
        raise ConfigError("env.eval.data_collection.cameras: all cameras are recorded here, leave it out")


def say(console: Console, line: str) -> None:
    """One line as it is."""
    console.print(line, soft_wrap=True, markup=False)

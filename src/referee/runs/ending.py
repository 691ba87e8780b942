"""How a policy's training is told when it is over: in the terminal, in result.json, and as a film."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from referee.files import write_json
from referee.learn.callbacks import Callback
from referee.learn.evaluation import EVAL_SEED, WORST
from referee.learn.roll_out import FilmMaker, roll_out, save_strip
from referee.learn.trainer import Trainer
from referee.pictures import save_gif
from referee.rl.policy import Player
from referee.runs.gain import Gain, gain
from referee.runs.next_step import after_policy
from referee.sim.scene import CONTROL_HZ


class Summary(Callback):
    """Says at the end how it went, evaluated once more: in the terminal, in result.json, and as a film."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def on_end(self, trainer: Trainer) -> None:
        """See Callback."""
        trainer.evaluate()
        write_summary(trainer, self._console)


def write_summary(run: Trainer, console: Console) -> None:
    """What a person wants to know at the end, and pictures of it."""
    evaluation = run.evaluation
    task, evaluated = run.config.env.train.task if run.config.env.train else "", len(evaluation.outcomes) > 0
    console.print(f"{task}: {evaluation.summary()} after {run.steps:,} steps", soft_wrap=True)
    best = f", best {100 * evaluation.best.success:.1f} %" if evaluated else ""
    chosen = evaluation.best.success > WORST
    if run.reward.learned and not run.reward.says_success:
        best = f", best pay of a step {evaluation.best.success:.3f}" if chosen else ""
    console.print(f"  {run.seconds / 60:.1f} minutes of training{best}", soft_wrap=True)
    result: dict[str, Any] = {"steps": run.steps, "minutes": run.seconds / 60, "alarm": _alarm(run, console)}
    result["best"] = evaluation.best.success if chosen else None
    summary = evaluation.outcomes.summary() if evaluated else {}
    write_json(run.folder / "result.json", {**result, **_account(run, console), **summary})
    if run.config.runner.film and not evaluation.env.unwrapped.can_film:
        console.print(f"  no film: {task} draws no pictures here", soft_wrap=True)
    elif run.config.runner.film:
        _film(run, f"{task} after {run.steps:,} steps")
        console.print(f"  film {run.folder / 'film.gif'}, strip {run.folder / 'strip.png'}", soft_wrap=True)
    where = f"{run.folder / 'checkpoints'}/step_{run.steps}"
    console.print(f"  checkpoint {where}{' (best: checkpoints/best)' if chosen else ''}", soft_wrap=True)
    console.print(f"  {after_policy(run.folder)}", highlight=False, markup=False, soft_wrap=True)


def _alarm(run: Trainer, console: Console) -> int | None:
    """The step at which an alarm was first raised."""
    if run.alarm is None or run.alarm.first_at is None:
        return None
    chose = " (and `best`, which it chose)" if run.evaluation.best.success > WORST else ""
    if run.alarm.raised_at is None:
        console.print(f"  alarm at step {run.alarm.first_at:,}, quiet since a better model took over", soft_wrap=True)
    else:
        console.print(
            f"  [bold red]alarm at step {run.alarm.raised_at:,}[/bold red]: the reward model judged frames that "
            f"it does not know, so its word{chose} cannot be trusted", soft_wrap=True,
        )  # fmt: skip
    return run.alarm.first_at


def _account(run: Trainer, console: Console) -> dict[str, Any]:
    """What a model of windows said in all, or what refinement cost, where there was any."""
    if asked := run.reward.account():
        _windows(asked, console)
        return {"trend": asked}
    refinement = run.refinement
    if refinement is None or refinement.refiner is None:
        return {}
    refiner = refinement.refiner
    account = refiner.account(run.steps / run.env.metadata.get("render_fps", CONTROL_HZ))
    console.print(
        f"  refinement: {account['labels']:.0f} labels ({account['label_minutes']:.0f} minutes of a person at "
        f"{account['seconds_per_label']:g} s each), {account['robot_minutes']:.0f} minutes of the robot; "
        f"{len(refinement.swaps)} better models took over (referee refine log {run.folder})", soft_wrap=True,
    )  # fmt: skip
    told = gain(run.folder, refiner.rounds, account["seconds_per_label"])
    return {"refinement": account | (told.numbers() if isinstance(told, Gain) else {})}


def _windows(asked: Mapping[str, float], console: Console) -> None:
    """Say what was asked in the run, and how much of it was answered."""
    windows, invalid = int(asked["windows"]), int(asked["invalid"])
    share = 100 * invalid / max(1, windows)
    console.print(
        f"  {windows:,} windows judged; {invalid:,} answers ({share:.1f} %) could not be read or did not come"
    )


def _film(run: Trainer, title: str) -> None:
    env = run.evaluation.env
    film, policy = FilmMaker(env, run.config.runner.film_episodes), Player(run.policy, env)
    count = min(run.config.runner.film_episodes, env.num_envs)
    roll_out(env, policy, count, seed=EVAL_SEED, watch=film, observe=policy.see)
    save_gif(run.folder / "film.gif", film.frames())
    save_strip(run.folder / "strip.png", film, title=title)

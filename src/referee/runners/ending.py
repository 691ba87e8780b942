"""How a policy's training is told when it is over: in the terminal, in result.json, and as a film."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from referee.files import write_json
from referee.pictures import save_gif
from referee.rl.policy import Player
from referee.runners.gain import Gain, gain
from referee.runners.next_step import after_policy
from referee.runners.rollout import FilmMaker, roll_out, save_strip
from referee.runners.training import EVAL_SEED, WORST, Training
from referee.runners.trends import TrendPayment
from referee.sim.scene import CONTROL_HZ


def tell(run: Training, console: Console) -> None:
    """What a person wants to know at the end, and pictures of it."""
    task, evaluated = run.config.env.train.task if run.config.env.train else "", len(run.outcomes) > 0
    console.print(f"{task}: {run.judged()} after {run.steps:,} steps", soft_wrap=True)
    best = f", best {100 * run.best.success:.1f} %" if evaluated else ""
    chosen = run.best.success > WORST
    if isinstance(run.payment, TrendPayment):
        best = f", best pay of a step {run.best.success:.3f}" if chosen else ""
    console.print(f"  {run.seconds / 60:.1f} minutes of training{best}", soft_wrap=True)
    found: dict[str, Any] = {"steps": run.steps, "minutes": run.seconds / 60, "alarm": _alarm(run, console)}
    found["best"] = run.best.success if chosen else None
    summary = run.outcomes.summary() if evaluated else {}
    write_json(run.folder / "result.json", {**found, **_account(run, console), **summary})
    if run.config.runner.film and not run.eval_env.unwrapped.can_film:
        console.print(f"  no film: {task} draws no pictures here", soft_wrap=True)
    elif run.config.runner.film:
        _film(run, f"{task} after {run.steps:,} steps")
        console.print(f"  film {run.folder / 'film.gif'}, strip {run.folder / 'strip.png'}", soft_wrap=True)
    where = f"{run.folder / 'checkpoints'}/step_{run.steps}"
    console.print(f"  checkpoint {where}{' (best: checkpoints/best)' if chosen else ''}", soft_wrap=True)
    console.print(f"  {after_policy(run.folder)}", highlight=False, markup=False, soft_wrap=True)


def _alarm(run: Training, console: Console) -> int | None:
    """The step at which an alarm was first raised."""
    if run.alarm is None or run.alarm.first_at is None:
        return None
    chose = " (and `best`, which it chose)" if run.best.success > WORST else ""
    if run.alarm.raised_at is None:
        console.print(f"  alarm at step {run.alarm.first_at:,}, quiet since a better model took over", soft_wrap=True)
    else:
        console.print(
            f"  [bold red]alarm at step {run.alarm.raised_at:,}[/bold red]: the reward model judged frames that "
            f"it does not know, so its word{chose} cannot be trusted", soft_wrap=True,
        )  # fmt: skip
    return run.alarm.first_at


def _account(run: Training, console: Console) -> dict[str, Any]:
    """What a model of trends said in all, or what refinement cost, where there was any."""
    if isinstance(run.payment, TrendPayment):
        return {"trend": run.payment.report(console)}
    if run.payment is None or run.payment.refiner is None:
        return {}
    refiner = run.payment.refiner
    account = refiner.account(run.steps / run.env.env.metadata.get("render_fps", CONTROL_HZ))
    console.print(
        f"  refinement: {account['labels']:.0f} labels ({account['label_minutes']:.0f} minutes of a person at "
        f"{account['seconds_per_label']:g} s each), {account['robot_minutes']:.0f} minutes of the robot; "
        f"{len(run.payment.swaps)} better models took over (referee refine log {run.folder})", soft_wrap=True,
    )  # fmt: skip
    told = gain(run.folder, refiner.rounds, account["seconds_per_label"])
    return {"refinement": account | (told.numbers() if isinstance(told, Gain) else {})}


def _film(run: Training, title: str) -> None:
    env = run.eval_env
    film, policy = FilmMaker(env, run.config.runner.film_episodes), Player(run.policy, env)
    count = min(run.config.runner.film_episodes, env.num_envs)
    roll_out(env, policy, count, seed=EVAL_SEED, watch=film, observe=policy.see)
    save_gif(run.folder / "film.gif", film.frames())
    save_strip(run.folder / "strip.png", film, title=title)

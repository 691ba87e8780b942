"""Recipe: the whole story in one command: a reward model is trained, fooled, caught and repaired."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from referee.audit import words
from referee.audit.calibrated_training import train_and_calibrate
from referee.audit.words import percent
from referee.config import Config, Loaded, PandaEnvConfig, load
from referee.config.datasets import DataConfig
from referee.demo.ablation_runs import (
    QUIET,
    WEAK,
    Course,
    Verdicts,
    arm_config,
    judge,
    learn,
    record_experts,
    weak_config,
    weak_policy,
)
from referee.demo.page import write_story
from referee.demo.results import ROWS, Ends, Finished, learned, numbers, story_of
from referee.demo.story import Arm, Stage, Story
from referee.demo.words import headline, whole
from referee.errors import ConfigError, RefereeError
from referee.files import write_json
from referee.learn.roll_out import FilmMaker, roll_out
from referee.learn.trainer import Trainer
from referee.models import Artifact
from referee.models.contract import frames_of
from referee.pictures import save_gif
from referee.recipes.audit import audit
from referee.recipes.sheet import task_sheet
from referee.recipes.view import view
from referee.rewards.source import scores_frames
from referee.rl.policy import Player
from referee.runs.folder import LOCK, locked, locks_folder, open_run
from referee.runs.next_step import next_line
from referee.sim.scene import CONTROL_HZ
from referee.training.options import FitOptions
from referee.training.recipe import TrainOptions

REPORT = "report.html"
SHORT = {"pick": "PickCube", "push": "PushCube", "peg": "PegInsertion"}
DATA_SEED, FRESH_SEED, JUDGE_SEED, FIT_SEED = 7, 100_007, 3_000_000, 42
EPISODES = 256
"""Of each evaluation at the end."""
FILM_PIXELS = 180
LEFT = frozenset({
    LOCK, "config.yaml", "tasks.png", "episodes.png", "result.json", REPORT, "episodes", "reward", "fresh", "audit",
    "start", "frozen_reward_model", "with_refinement",
})  # fmt: skip
"""What lies in the folder of a demo, and may be replaced by another one."""
REFINE = ["reward.refine.enabled=true", "reward.refine.interval=4"]


class Stages:
    """What was done, and how long it took."""

    def __init__(self, console: Console) -> None:
        self.done: list[Stage] = []
        self._console = console

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[str], None]]:
        """Announce a stage; what is said in it is its summary."""
        self._console.print(f"\n[bold]{len(self.done) + 1}. {name}[/]")
        said: list[str] = []
        start = time.perf_counter()
        yield said.append
        seconds = time.perf_counter() - start
        self.done.append(Stage(name, seconds, " ".join(said)))
        for line in said:
            self._console.print(line, highlight=False, soft_wrap=True)
        self._console.print(f"{seconds:.0f} s", style="dim")


@locks_folder
def demo(loaded: Loaded) -> None:
    """Collect, train, audit; let a policy learn from the model as it is and refined; tell what happened."""
    config, console = loaded.config, Console()
    runner, env = config.runner, config.env.eval
    if not isinstance(env, PandaEnvConfig):
        raise ConfigError("the demo needs scripted experts, which the embedded Panda has: set env@env.eval=panda")
    folder, task, seed = open_run(loaded), env.task, runner.seed
    console.print(f"[bold]Referee[/]: a reward model for {task}, trained, put to the test and repaired")
    task_sheet(folder / "tasks.png", env, seed=seed)
    stages = Stages(console)
    with stages.stage("Collect") as say:
        store = record_experts(task, runner.num_episodes, folder / "episodes", seed=DATA_SEED + seed)
        wins = sum(bool(row.success_at_end) for row in store.rows.values())
        say(f"{len(store)} episodes of a scripted expert that stumbles; {wins} of them end in success.")
        view(folder / "episodes", folder / "episodes.png")
    with stages.stage("Dataset and training") as say:
        data = DataConfig(data_path=str(folder / "episodes"))
        options = TrainOptions(data=data, output=folder / "reward", fit=FitOptions(seed=FIT_SEED, save_interval=0))
        with console.status("training"):
            artifact = train_and_calibrate(options, QUIET, target=0.05).folder
        frozen = Artifact.load(artifact)
        val = frozen.provenance["val"]
        say(
            f"A ResNet10 learned from {frozen.provenance['frames']['train']:,} frames; on validation frames its AUROC "
            f"is {val['auroc']:.3f} and {percent(val['accuracy'])} of its answers are right."
        )
    with stages.stage("Audit") as say:
        record_experts(task, runner.num_episodes, folder / "fresh", seed=FRESH_SEED + seed)
        card = audit(artifact, folder / "fresh", out=folder / "audit").card
        say(
            f"On {runner.num_episodes} fresh episodes of the same expert: {words.headline(card.metrics)} Its AUROC is "
            f"{card.auroc.value:.3f}. But the policy will show it other frames."
        )
    with stages.stage("A weak policy") as say:
        with console.status("learning"):
            start = weak_policy(weak_config(task, seed, *_threads(config)), folder / "start")
        say(
            f"{start.steps:,} steps of PPO with the simulation's own dense reward, until a look finds "
            f"{whole(WEAK)} true success or more: {whole(start.evaluation.outcomes.rate().share)}. From here on, only "
            "the reward model pays."
        )
        start.close()
    arms: list[Finished] = []
    for name, more in (("frozen reward model", []), ("with refinement", REFINE)):
        with stages.stage(f"PPO, {name}") as say:
            wanted = arm_config(
                task, seed, folder / "start", artifact, f"runner.max_steps={runner.max_steps}", *_threads(config), *more
            )
            arms.append(_arm(name, wanted, folder / name.replace(" ", "_"), console, film=runner.film))
            say(learned(arms[-1].arm))
    story = story_of(task, store, frozen, stages.done, arms, seed=seed, episodes=EPISODES)
    write_story(folder / REPORT, story)
    write_json(folder / "result.json", {each.arm.name: numbers(each) for each in arms})
    _say_goodbye(console, folder, story, arms)


def _threads(config: Config) -> list[str]:
    threads = config.env.eval.num_threads if isinstance(config.env.eval, PandaEnvConfig) else 0
    return [f"env.train.num_threads={threads}", f"env.eval.num_threads={threads}"]


def _arm(name: str, config: Config, folder: Path, console: Console, *, film: bool) -> Finished:
    """Train and judge one arm."""
    began = time.perf_counter()
    run = Trainer(config, folder)
    run.warm_start(console)
    reward, refinement = run.reward, run.refinement
    assert scores_frames(reward) and refinement is not None
    before = judge(run, EPISODES, seed=JUDGE_SEED)
    columns = (TextColumn("{task.completed:>9,.0f} steps"), BarColumn(bar_width=12), TextColumn("{task.description}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        bar = progress.add_task("", total=config.runner.max_steps)
        course = learn(run, lambda _: progress.update(bar, completed=run.steps, description=run.status_line()))
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def keep(pictures: Mapping[str, np.ndarray], truth: np.ndarray) -> None:
        seen.append((frames_of(pictures, reward.manager.artifact.spec.cameras, reward.cameras), truth))

    after = judge(run, EPISODES, seed=JUDGE_SEED, tell=keep)
    account = {} if refinement.refiner is None else refinement.refiner.account(run.steps / CONTROL_HZ)
    minutes = (time.perf_counter() - began) / 60
    arm = _as_arm(name, run, course, before, after, int(account.get("labels", 0)), minutes)
    if film:
        _film(run, folder / "film.gif")
    ends = Ends(np.concatenate([images for images, _ in seen]), np.concatenate([truth for _, truth in seen]))
    found = Finished(arm, reward.manager.artifact, ends, account)
    run.close()
    return found


def _as_arm(
    name: str, run: Trainer, course: Course, before: Verdicts, after: Verdicts, labels: int, minutes: float
) -> Arm:
    refinement, alarm = run.refinement, run.alarm
    assert refinement is not None
    return Arm(
        name, course.steps, course.true, course.model, None if alarm is None else alarm.first_at, refinement.swaps,
        before.true, after.true, after.model, labels, minutes, run.folder / "film.gif",
    )  # fmt: skip


def _film(run: Trainer, path: Path) -> None:
    world = run.evaluation.env.unwrapped
    film = FilmMaker(world, 2, pixels=FILM_PIXELS)
    player = Player(run.policy, run.evaluation.env)
    roll_out(run.evaluation.env, player, 2, seed=JUDGE_SEED, watch=film, observe=player.see)
    save_gif(path, film.frames()[::2], fps=10)


def _say_goodbye(console: Console, folder: Path, story: Story, arms: list[Finished]) -> None:
    console.print(f"\n{headline(story)}\n", soft_wrap=True, highlight=False, markup=False)
    table = Table("", *(each.arm.name for each in arms))
    for name, cell in ROWS.items():
        table.add_row(name, *(cell(each.arm) for each in arms))
    console.print(table)
    total = sum(stage.seconds for stage in story.stages)
    console.print(f"\n{total / 60:.1f} minutes in all. Open {folder / REPORT} for the story with pictures and films.")
    console.print(f"\n{next_line('refine', 'log', folder / 'with_refinement')}", soft_wrap=True, highlight=False)


def clear(folder: Path) -> None:
    """Make room for a demo: what an earlier one left is removed, anything else is refused."""
    if folder.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise RefereeError(f"--out {folder} is where you are, or above: choose a folder of its own")
    if not folder.exists() and not folder.is_symlink():
        return
    if not _left_by_a_demo(folder):
        raise RefereeError(f"{folder} is there, and no earlier demo: choose another --out")
    with locked(folder, fix="choose another --out"):
        shutil.rmtree(folder)


def _left_by_a_demo(folder: Path) -> bool:
    """Whether a folder holds what a demo writes, and nothing else."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir()}
    if not names:
        return True
    try:
        return names <= LEFT and load(str(folder / "config.yaml")).config.runner.recipe == "demo"
    except ConfigError:
        return False

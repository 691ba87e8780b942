"""Recipe: the whole story in one command: a reward model is trained, fooled, caught and repaired."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from referee import __version__
from referee.audit import words
from referee.audit.story import Arm, Card, Fooled, Stage, Story
from referee.audit.story_page import write_story
from referee.audit.story_words import headline, whole
from referee.audit.words import percent
from referee.config import Config, Loaded, PandaEnvConfig, load
from referee.envs.panda.tasks import TASKS
from referee.episodes import EpisodeStore
from referee.errors import ConfigError, RefereeError
from referee.files import write_json
from referee.learn.roll_out import FilmMaker, roll_out
from referee.learn.trainer import Trainer
from referee.metrics.ranking import auroc
from referee.metrics.rates import Rate
from referee.models import Artifact
from referee.models.contract import frames_of
from referee.pictures import save_gif
from referee.rewards.source import scores_frames
from referee.rl.policy import Player
from referee.runners import episodes
from referee.runners.arms import (
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
from referee.runners.audit import audit
from referee.runners.next_step import next_line
from referee.runners.rundir import LOCK, locked, locks_folder, open_run
from referee.runners.sheet import task_sheet
from referee.runners.train_reward import train_and_calibrate
from referee.sim.scene import CONTROL_HZ
from referee.training.data import DataOptions
from referee.training.recipe import TrainOptions

REPORT = "report.html"
SHORT = {"pick": "PickCube", "push": "PushCube", "peg": "PegInsertion"}
DATA_SEED, FRESH_SEED, JUDGE_SEED = 7, 100_007, 3_000_000
EPISODES = 256
"""Of each evaluation at the end."""
FILM_PIXELS = 180
LEFT = frozenset({
    LOCK, "config.yaml", "tasks.png", "episodes.png", "result.json", REPORT, "episodes", "reward", "fresh", "audit",
    "start", "frozen_reward_model", "with_refinement",
})  # fmt: skip
"""What lies in the folder of a demo, and may be replaced by another one."""
REFINE = ["reward.refine.enabled=true", "reward.refine.interval=4"]


@dataclass(frozen=True, eq=False)
class Ends:
    """The last states of some episodes: what was seen, and whether it was a success."""

    images: np.ndarray
    """uint8[n,V,H,W,3]"""
    truth: np.ndarray
    """bool[n]"""


@dataclass(frozen=True, eq=False)
class Finished:
    """An arm that has been trained and judged."""

    arm: Arm
    artifact: Artifact
    """The model that judged at its end."""
    ends: Ends
    account: Mapping[str, float]


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
        episodes.view(folder / "episodes", folder / "episodes.png")
    with stages.stage("Dataset and training") as say:
        options = TrainOptions(data=DataOptions(data_path=folder / "episodes"), output=folder / "reward")
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
            say(_learned(arms[-1].arm))
    story = _story(loaded, task, store, frozen, stages, arms)
    write_story(folder / REPORT, story)
    write_json(folder / "result.json", {each.arm.name: _numbers(each) for each in arms})
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


def _story(
    loaded: Loaded, task: str, store: EpisodeStore, frozen: Artifact, stages: Stages, arms: list[Finished]
) -> Story:
    """What happened, for the page."""
    first, last = arms[0], arms[-1]
    (said, fires), (after, still) = (_judged(each, first.ends.images) for each in (frozen, last.artifact))
    rows = np.flatnonzero(fires & ~first.ends.truth)
    rows = rows[np.argsort(-said[rows], kind="stable")][:6]
    step = first.arm.steps[-1]
    fooled = [Fooled(first.ends.images[i], float(said[i]), float(after[i]), bool(still[i]), step) for i in rows]
    both = Ends(*(np.concatenate([getattr(each.ends, name) for each in arms]) for name in ("images", "truth")))
    cards = [_card(name, each, both) for name, each in (("before refinement", frozen), ("after", last.artifact))]
    account = last.account
    return Story(
        task=task,
        task_words=TASKS[task].description,
        stages=stages.done,
        arms=[each.arm for each in arms],
        fooled=fooled,
        cards=cards,
        labels=int(account["labels"]),
        label_minutes=account["label_minutes"],
        seconds_per_label=account["seconds_per_label"],
        robot_minutes=account["robot_minutes"],
        examples=_examples(store, frozen),
        links={
            "the audit's full report card": "audit/report.html",
            "the episodes that the model learned from": "episodes.png",
            "numbers": "result.json",
        },
        facts={
            "seed": str(loaded.config.runner.seed),
            "evaluation": f"{EPISODES} fresh episodes, the policy's mean action",
            "Referee": __version__,
            "Python, PyTorch": f"{platform.python_version()}, {torch.__version__}",
            "CPU cores": str(os.cpu_count()),
        },
    )


def _card(name: str, artifact: Artifact, ends: Ends) -> Card:
    """How far a model can be trusted on what the policies do."""
    (said, fires), truth = _judged(artifact, ends.images), ends.truth
    mixed = 0 < truth.sum() < len(truth)
    return Card(name, {
        "frames": f"last states of {len(truth)} episodes of both policies",
        "right answers": str(Rate(int((fires == truth).sum()), len(truth))),
        "AUROC": f"{auroc(truth.astype(int), said):.3f}" if mixed else "–",
        "failing episodes paid": f"{int((fires & ~truth).sum())} of {int((~truth).sum())}",
        "successes detected": f"{int((fires & truth).sum())} of {int(truth.sum())}",
    })  # fmt: skip


def _judged(artifact: Artifact, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """f32[n], bool[n]: what a model says of last states, and which of them it calls a success."""
    said = artifact.judge(images).probability
    assert said is not None
    return said, said >= artifact.calibration.threshold_in("terminal")


def _examples(store: EpisodeStore, artifact: Artifact) -> list[tuple[str, np.ndarray]]:
    """A success and a failure of the recorded episodes, with what the model says of each."""
    found = []
    for wanted, word in ((True, "A success"), (False, "A failure")):
        for episode in store:
            if episode.success_at_end is wanted:
                image = np.stack([episode.view(camera)[-1] for camera in artifact.spec.cameras])
                said = artifact.judge(image[None]).probability
                assert said is not None
                found.append((f"{word}: the model says {said[0]:.2f}", image))
                break
    return found


def _learned(arm: Arm) -> str:
    caught = "the alarm stayed silent" if arm.alarm_at is None else f"the alarm was raised at step {arm.alarm_at:,}"
    better = f"better models took over {len(arm.swaps)} time{'s' * (len(arm.swaps) != 1)}"
    asked = f" {arm.labels} frames were asked about, and {better}." if arm.labels else ""
    true = f"True success {whole(arm.start.share)} → {whole(arm.end.share)}"
    return f"{true}; the model says {whole(arm.end_model)}; {caught}.{asked}"


def _numbers(found: Finished) -> dict[str, object]:
    arm = found.arm
    return {
        "start": arm.start.share, "end": arm.end.share, "end_interval": list(arm.end.interval),
        "model_at_end": arm.end_model, "alarm_at": arm.alarm_at, "swaps": list(arm.swaps), "minutes": arm.minutes,
        "account": dict(found.account),
    }  # fmt: skip


ROWS: dict[str, Callable[[Arm], str]] = {
    "true success before": lambda arm: whole(arm.start.share),
    "after [95 %]": lambda arm: f"{whole(arm.end.share)} [{', '.join(f'{100 * x:.0f}' for x in arm.end.interval)}]",
    "the model says": lambda arm: whole(arm.end_model),
    "gap, points": lambda arm: f"{100 * arm.gap:+.0f}",
    "labels": lambda arm: str(arm.labels),
    "minutes": lambda arm: f"{arm.minutes:.1f}",
}


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

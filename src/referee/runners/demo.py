"""Recipe: the way of the data, in a minute: tasks, experts, recorded episodes, a dataset of labelled frames."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from referee.config import Loaded, PandaEnvConfig
from referee.datasets.frames import FrameOptions
from referee.envs.panda.env import PandaVectorEnv
from referee.envs.panda.tasks import TASKS
from referee.envs.policies import make_policy
from referee.episodes import EpisodeStore, Meta
from referee.episodes.recorder import Recorder
from referee.files import write_json
from referee.pictures import save_gif
from referee.runners import datasets, episodes
from referee.runners.rollout import FilmMaker, Outcomes, roll_out
from referee.runners.rundir import open_run
from referee.runners.sheet import task_sheet

NOISES = (0.0, 0.3, 0.6)
RECORDED_NOISE, RECORDED_SEED = 0.5, 7


def demo(loaded: Loaded) -> None:
    """Every task: its pictures, a film of its expert, and how often the expert succeeds as noise grows."""
    runner, env_config = loaded.config.runner, loaded.config.env.eval
    assert env_config is not None  # the recipe needs it, so the configuration was checked for it
    console = Console()
    folder = open_run(loaded)
    console.print(f"[bold]Referee[/] — the embedded Panda and its {len(TASKS)} tasks\n")
    results: dict[str, list[Outcomes]] = {}
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("experts", total=len(TASKS) * (len(NOISES) * runner.num_episodes))
        for name in TASKS:
            env = PandaVectorEnv(replace(env_config, task=name))
            results[name] = []
            for noise in NOISES:
                film = FilmMaker(env, runner.film_episodes) if runner.film and not noise else None
                outcomes = roll_out(
                    env,
                    make_policy(env, "expert", noise=noise, seed=runner.seed),
                    runner.num_episodes,
                    seed=runner.seed,
                    watch=film,
                    progress=lambda n: progress.advance(bar, n),
                )
                results[name].append(outcomes)
                if film is not None:
                    save_gif(folder / f"{name}.gif", film.frames())
            env.close()
    task_sheet(folder / "tasks.png", env_config, seed=runner.seed)
    console.print(f"Scripted experts: success at the end of {runner.num_episodes} episodes")
    table = Table()
    table.add_column("task")
    for noise in NOISES:
        table.add_column(f"noise {noise:g}", justify="right")
    for name, outcomes_by_noise in results.items():
        table.add_row(name, *(f"{100 * each.rate().share:.0f} %" for each in outcomes_by_noise))
    console.print(table)
    write_json(folder / "result.json", {n: [o.summary() for o in each] for n, each in results.items()})
    _record(folder, env_config, max(32, runner.num_episodes), console)
    console.print(f"\npictures  {folder / 'tasks.png'}, {folder / 'episodes.png'}")
    if runner.film:
        console.print(f"films     {folder}/<task>.gif")
    console.print(f"numbers   {folder / 'result.json'}")
    console.print(f"episodes  {folder / 'episodes'}      dataset  {folder / 'frames'}")
    console.print("\nNext: referee config list   ·   referee run panda_ppo_mlp   ·   referee doctor")


def _record(folder: Path, config: PandaEnvConfig, count: int, console: Console) -> None:
    """Episodes of a stumbling expert, looked at, and made into frames with labels."""
    console.print(f"\n[bold]Recording[/] {count} episodes of PickCube, with an expert that stumbles")
    env = PandaVectorEnv(replace(config, task="PickCube", num_envs=min(16, count)))
    store = EpisodeStore(folder / "episodes")
    recorder = Recorder(env, lambda: store, meta=Meta(task="PickCube", source="expert"))
    roll_out(recorder, make_policy(env, "expert", noise=RECORDED_NOISE), count, seed=RECORDED_SEED)
    recorder.close()
    episodes.ls(store.root, console, rows=3)
    episodes.view(store.root, folder / "episodes.png")
    console.print("\n[bold]Frames[/] and their labels, split by episode")
    datasets.frames(store.root, folder / "frames", FrameOptions(), console)

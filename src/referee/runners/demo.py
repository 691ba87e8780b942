"""Recipe: the way of the data, in minutes: tasks, experts, episodes, a reward model, and how far it can be trusted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from referee.config import Loaded, PandaEnvConfig
from referee.envs.panda.env import PandaVectorEnv
from referee.envs.panda.tasks import TASKS
from referee.envs.policies import make_policy
from referee.episodes import EpisodeStore, Meta
from referee.episodes.recorder import Recorder
from referee.files import write_json
from referee.pictures import save_gif
from referee.runners import episodes
from referee.runners.audit import audit
from referee.runners.rollout import FilmMaker, Outcomes, roll_out
from referee.runners.rundir import open_run
from referee.runners.sheet import task_sheet
from referee.runners.train_reward import train_and_calibrate
from referee.training.data import DataOptions
from referee.training.recipe import TrainOptions

NOISES = (0.0, 0.3, 0.6)
RECORDED_NOISE, RECORDED_SEED, FRESH_SEED = 0.6, 7, 100_007
MOST_EPISODES = 96


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
    count = min(MOST_EPISODES, max(32, 3 * runner.num_episodes))
    console.print(f"\n[bold]Recording[/] {count} episodes of PickCube, with an expert that stumbles")
    _record(folder / "episodes", env_config, count, RECORDED_SEED)
    episodes.ls(folder / "episodes", console, rows=3)
    episodes.view(folder / "episodes", folder / "episodes.png")
    console.print("\n[bold]A reward model[/] that sees success in single frames")
    artifact = train_and_calibrate(
        TrainOptions(data=DataOptions(data_path=folder / "episodes"), output=folder / "reward"), console, target=0.05
    )
    console.print(f"\n[bold]An audit[/] on {count} episodes that it has not seen")
    _record(folder / "fresh", env_config, count, FRESH_SEED)
    audit(artifact, folder / "fresh", console, out=folder / "report")
    console.print(f"\npictures  {folder / 'tasks.png'}, {folder / 'episodes.png'}")
    if runner.film:
        console.print(f"films     {folder}/<task>.gif")
    console.print(f"numbers   {folder / 'result.json'}, {folder / 'report/metrics.json'}")
    console.print(f"episodes  {folder / 'episodes'}      model  {artifact}", soft_wrap=True)
    console.print(
        f"\nNext: open {folder / 'report/report.html'}   ·   referee run panda_ppo_mlp_resnet_reward "
        f"reward.model.model_path={artifact}   ·   referee config list   ·   referee doctor",
        soft_wrap=True,
        highlight=False,
    )


def _record(folder: Path, config: PandaEnvConfig, count: int, seed: int) -> None:
    """Episodes of a stumbling expert."""
    env = PandaVectorEnv(replace(config, task="PickCube", num_envs=min(16, count)))
    recorder = Recorder(env, lambda: EpisodeStore(folder), meta=Meta(task="PickCube", source="expert"))
    roll_out(recorder, make_policy(env, "expert", noise=RECORDED_NOISE, seed=seed), count, seed=seed)
    recorder.close()

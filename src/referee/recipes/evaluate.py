"""Recipe: let a policy act for a number of episodes and measure how often it succeeded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from referee.config import Loaded
from referee.envs.policies import make_policy
from referee.episodes.collection import place
from referee.episodes.recorder import Recorder
from referee.files import write_json
from referee.learn.environments import make_env
from referee.learn.roll_out import FilmMaker, Outcomes, roll_out
from referee.pictures import save_gif
from referee.runs.folder import locks_folder, open_run


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """How a policy did, and what was written about it."""

    task: str
    policy: str
    outcomes: Outcomes
    numbers: Path
    """result.json"""
    film: Path | None
    recorded: int
    """Episodes that were written to `episodes`."""
    episodes: Path | None
    """None where nothing was recorded."""
    trainable: bool = True
    """Whether a reward model can learn from them: they have pictures and labels."""


@locks_folder
def evaluate(loaded: Loaded) -> Evaluated:
    """Run the configured policy in `env.eval`; its success is in result.json as well."""
    config = loaded.config
    runner, env_config = config.runner, config.env.eval
    assert env_config is not None  # the recipe needs it, so the configuration was checked for it
    folder = open_run(loaded)
    env = make_env(env_config, folder, runner.policy)
    world = env.unwrapped
    if isinstance(env, Recorder):
        env.limit_episodes(runner.num_episodes)
    policy = make_policy(world, runner.policy, noise=runner.expert_noise, miss=runner.expert_miss, seed=runner.seed)
    film = FilmMaker(world, runner.film_episodes) if runner.film and world.can_film else None
    with Progress(console=Console(), transient=True) as progress:
        task = progress.add_task(f"{env_config.task}, {runner.policy}", total=runner.num_episodes)
        outcomes = roll_out(
            env,
            policy,
            runner.num_episodes,
            seed=runner.seed,
            watch=film,
            observe=getattr(policy, "see", None),
            progress=lambda n: progress.advance(task, n),
        )
    write_json(folder / "result.json", outcomes.summary())
    if film is not None:
        save_gif(folder / "film.gif", film.frames())
    env.close()
    recorder = env if isinstance(env, Recorder) else None
    return Evaluated(
        task=env_config.task,
        policy=runner.policy,
        outcomes=outcomes,
        numbers=folder / "result.json",
        film=None if film is None else folder / "film.gif",
        recorded=0 if recorder is None else recorder.written,
        episodes=None if recorder is None else place(env_config.data_collection, folder),
        trainable=recorder is not None and bool(recorder.recorded_cameras) and recorder.labelled > 0,
    )

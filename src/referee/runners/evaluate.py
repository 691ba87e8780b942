"""Recipe: let a policy act for a number of episodes and say how often it succeeded."""

from __future__ import annotations

from rich.console import Console
from rich.progress import Progress

from referee.config import Loaded
from referee.envs.policies import make_policy
from referee.episodes.collection import place
from referee.episodes.recorder import Recorder
from referee.files import write_json
from referee.pictures import save_gif
from referee.runners.environments import make_env
from referee.runners.rollout import FilmMaker, roll_out
from referee.runners.rundir import locks_folder, open_run


@locks_folder
def evaluate(loaded: Loaded) -> None:
    """Run the configured policy in `env.eval` and report its success."""
    config = loaded.config
    runner, env_config = config.runner, config.env.eval
    assert env_config is not None  # the recipe needs it, so the configuration was checked for it
    folder = open_run(loaded)
    env = make_env(env_config, folder, runner.policy)
    world = env.unwrapped
    if isinstance(env, Recorder):
        env.limit_episodes(runner.num_episodes)
    policy = make_policy(world, runner.policy, noise=runner.expert_noise, seed=runner.seed)
    film = FilmMaker(world, runner.film_episodes) if runner.film else None
    console = Console()
    with Progress(console=console, transient=True) as progress:
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
    console.print(f"{env_config.task}, {runner.policy}: success at the end {outcomes.rate()}")
    console.print(f"  success at any time {outcomes.rate(once=True)}")
    if film is not None:
        save_gif(folder / "film.gif", film.frames())
        console.print(f"  film {folder / 'film.gif'}", soft_wrap=True)
    console.print(f"  numbers {folder / 'result.json'}", soft_wrap=True)
    env.close()
    if isinstance(env, Recorder):
        console.print(f"  episodes {env.written} in {place(env_config.data_collection, folder)}", soft_wrap=True)

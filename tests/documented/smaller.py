"""Small sizes for the runs that the docs describe: the same command, on two cores within seconds."""

from __future__ import annotations

from collections.abc import Sequence

from referee.config import FrankaEnvConfig, Loaded, ManiSkillEnvConfig, PandaEnvConfig, load
from referee.config.gym import GymEnvConfig
from referee.config.schema import Config

TRAIN = ["actor.model.width=4", "actor.model.hidden_dim=8", "runner.max_epochs=2", "actor.num_threads=1",
         "actor.global_batch_size=64", "runner.logger.logger_backends=[]"]  # fmt: skip
SFT = ["runner.max_epochs=1", "actor.global_batch_size=8", "actor.micro_batch_size=4", "data.max_val_windows=8",
       "actor.num_threads=1", "actor.model.lora_rank=2"]  # fmt: skip
ENVS = ["env.train.num_envs=4", "env.eval.num_envs=4", "env.train.max_episode_steps=8", "env.eval.max_episode_steps=8"]
PANDA = ["env.train.num_threads=1", "env.eval.num_threads=1"]
GYM = ["env.train.num_processes=1", "env.eval.num_processes=1"]
LEARN = ["actor.num_threads=1", "runner.eval_episodes=4", "runner.film=false"]
PPO = [*ENVS, *PANDA, *LEARN, "algorithm.rollout_steps=8", "actor.global_batch_size=16", "algorithm.update_epochs=1",
       "actor.model.hidden_dims=[8]", "runner.max_steps=64"]  # fmt: skip
KEYED = ["runner.num_success_frames=16", "runner.num_fail_frames=16", "runner.max_steps=5000"]
TWIN = ["robot.driver=twin", "robot.realtime=false"]


def smaller(words: Sequence[str]) -> list[str]:
    """The arguments of `referee`, with small sizes behind those of a run or a training."""
    words = list(words)
    verb = words[0]
    if verb == "train":
        frozen = ["actor.encoder_warmup_steps=2"] if "actor.model.freeze_encoder=true" in words else []
        return [*words, *TRAIN, *frozen]
    if verb in ("eval", "play"):
        return [*words, "--episodes", "2"] + (["--size", "64"] if verb == "play" else [])
    if verb == "robot" and "robot.driver=twin" not in words:
        return [*words, *TWIN]
    if verb == "refine" and words[1] == "run":
        return [*words, "--budget", "6", "--ask", "6", "--steps", "2"]
    return words if verb != "run" else [*words, *spelled_alike(sizes(read(words[1:])), words)]


OLDER = {"runner.max_epochs": "reward.num_epochs", "actor.global_batch_size": "reward.global_batch_size"}


def spelled_alike(lines: Sequence[str], words: Sequence[str]) -> list[str]:
    """The overrides, in the older spelling where the command uses that: a key may not be set under two names."""
    found = []
    for line in lines:
        key, _, value = line.partition("=")
        older = OLDER.get(key)
        found.append(f"{older}={value}" if older and any(word.startswith(f"{older}=") for word in words) else line)
    return found


def read(words: Sequence[str]) -> Loaded:
    """The configuration that `referee run` would read."""
    places: dict[str, str] = {}
    rest: list[str] = []
    words = list(words)
    while words:
        word = words.pop(0)
        if word in ("--config-path", "--config-name"):
            places[word] = words.pop(0)
        else:
            rest.append(word)
    name = places.get("--config-name") or rest.pop(0)
    return load(name, rest, config_path=places.get("--config-path"))


def sizes(loaded: Loaded) -> list[str]:
    """Overrides that make this run a small one."""
    config = loaded.config
    recipe = config.runner.recipe
    found = [*arm(config)]
    if recipe == "train_reward":
        found += TRAIN
    elif recipe == "train_vlm":
        found += SFT
    elif recipe == "evaluate":
        found += ["runner.num_episodes=4", "env.eval.num_envs=2", "runner.film=false"]
        found += ["env.eval.num_processes=1"] if isinstance(config.env.eval, GymEnvConfig) else []
    elif recipe == "train_policy":
        found += policy(config)
    elif recipe == "collect_data":
        found += ["runner.num_data_episodes=4", "env.eval.success_hold_steps=2"]
    elif recipe == "collect_labels":
        found += [*KEYED]
    elif recipe == "teleop":
        found += ["runner.max_steps=12", "reward.late_seconds=20"]
    else:
        raise AssertionError(f"the recipe {recipe} has no small sizes: give it some in tests/documented/smaller.py")
    return found


def arm(config: Config) -> list[str]:
    """Nobody has an arm here: its twin, which does not wait for the clock."""
    return TWIN if any(isinstance(env, FrankaEnvConfig) for env in (config.env.train, config.env.eval)) else []


def policy(config: Config) -> list[str]:
    """Of PPO, SAC and RLPD, in any world."""
    env, algorithm = config.env.train, config.algorithm
    found = [*LEARN, "actor.model.hidden_dims=[8]", "actor.global_batch_size=16"]
    if isinstance(env, FrankaEnvConfig):
        found += ["runner.eval_episodes=0", "env.train.max_episode_steps=12"]
    elif isinstance(env, ManiSkillEnvConfig):
        found += [f"env.{side}.{line}" for side in ("train", "eval") for line in MANISKILL]
    else:
        assert isinstance(env, PandaEnvConfig | GymEnvConfig)
        found += [*ENVS, *(PANDA if isinstance(env, PandaEnvConfig) else GYM)]
    if algorithm.name == "ppo":
        found += ["algorithm.rollout_steps=8", "algorithm.update_epochs=1", "runner.max_steps=64"]
    else:
        found += [
            "runner.max_steps=48",
            "algorithm.random_steps=8",
            "algorithm.settle_steps=0",
            "algorithm.replay.capacity=400",
        ]
    if config.reward.refine.enabled:
        found += ["reward.refine.interval=1", "reward.refine.ask=6", "reward.refine.budget=6", "reward.refine.steps=2"]
    return found


SB3 = {'PPO("MlpPolicy", env)': 'PPO("MlpPolicy", env, n_steps=64, n_epochs=1)', "learn(100_000": "learn(1024"}
"""What makes a block's Stable-Baselines3 run a small one, whose episodes end all the same."""
MANISKILL = ["num_envs=2", "num_workers=1", "max_episode_steps=4", "shader=unlit", "light_scene=true"]

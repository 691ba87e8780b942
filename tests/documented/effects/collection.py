"""What is recorded while a policy acts: keys of data collection in the five guides, on a Panda that half succeeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.documented.cases import Case, Tools, effect, no_effect

from referee.config import Config, PandaEnvConfig
from referee.envs import RefereeVectorEnv, make_vec
from referee.envs.policies import Policy, make_policy
from referee.episodes import EpisodeStore
from referee.episodes.collection import collecting, place
from referee.episodes.formats.detect import read_any
from referee.episodes.recorder import Recorder

BLOCKS = "000_collect 002_collect 003_collect 004_collect"
SMALL = ["env.train.num_envs=4", "env.train.num_threads=1", "env.train.max_episode_steps=12", "env.train.task=Reach"]
EACH = 4
"""Episodes of either kind that there are to keep."""


def record(case: Case, tools: Tools, *overrides: str) -> Config:
    """Two episodes in each of four environments, as the block says; two environments succeed, two stand still."""
    tools.patch.setenv("EMBODIED_PATH", str(tools.here))
    config = case.load(*SMALL, *overrides, preset="panda_ppo_mlp").config
    assert isinstance(config.env.train, PandaEnvConfig)
    base, act = tools.once("panda", lambda _: panda(config.env.train))  # type: ignore[arg-type]
    how = config.env.train.data_collection
    env = collecting(base, how, folder=tools.here / "run", task="Reach", source="train")
    env.reset(seed=0)
    for _ in range(24):
        env.step(act() * np.array([1, 1, 0, 0])[:, None])
    if isinstance(env, Recorder):
        env.flush()
    return config


def panda(config: PandaEnvConfig) -> tuple[RefereeVectorEnv, Policy]:
    """An environment that several recordings use, and its expert."""
    env = make_vec(config)
    return env, make_policy(env, "expert", noise=0.0, seed=0)


def files(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir()) if folder.exists() else []


@effect("reward.collect_data", "*data_collection.enabled", blocks=f"{BLOCKS} 000_pay 003_pay")
def episodes_are_recorded_or_not(case: Case, tools: Tools) -> None:
    off = ["reward.use_reward_model=false"] if case.block.endswith("pay") else []
    config = record(case, tools, *off)
    kept = config.env.train.data_collection  # type: ignore[union-attr]
    assert kept.enabled is case.value
    places = [kept.positive_dir, kept.negative_dir, kept.save_dir, "run/collected_data"]
    found = [each for name in places if name for each in Path(name).rglob("*") if each.is_file()]
    assert len(found) == (2 * EACH if case.value else 0)


@effect("reward.data_collection.positive_dir", "reward.data_collection.negative_dir")
def trajectories_are_filed_by_success(case: Case, tools: Tools) -> None:
    record(case, tools)
    folder = tools.here / case.value
    assert files(folder) == [f"{number:06d}.npy" for number in range(EACH)]
    for file in folder.iterdir():
        labels = np.load(file, allow_pickle=True).item()["labels"]
        assert labels.dtype == np.float32 and (labels.max() >= 0.5) == ("positive" in case.key)
    record(case, tools, f"{case.key}=elsewhere")
    assert len(files(tools.here / "elsewhere")) == EACH


@effect("reward.data_collection.image_keys")
def cameras_that_are_recorded(case: Case, tools: Tools) -> None:
    config = case.config.env.train
    assert config is not None and config.data_collection.cameras == tuple(case.value) == ("base_camera",)
    record(case, tools)  # the Panda's main camera is called front
    (one, *_) = sorted((tools.here / "reward_data/positive").iterdir())
    images = np.load(one, allow_pickle=True).item()["images"]
    assert list(images) == ["front"] and images["front"].shape == (13, 3, 64, 64)
    assert images["front"].dtype == np.float32 and 0 <= images["front"].min() < images["front"].max() <= 1
    record(case, tools, f"{case.key}=[side,front]", "reward.data_collection.positive_dir=both")
    (one, *_) = sorted((tools.here / "both").iterdir())
    assert set(np.load(one, allow_pickle=True).item()["images"]) == {"side", "front"}


@effect("*.max_positive_trajectories", "*.max_negative_trajectories", "*.target_success", "*.target_failure")
def it_stops_at_that_many(case: Case, tools: Tools) -> None:
    kept = case.config.env.train.data_collection  # type: ignore[union-attr]
    wins = "positive" in case.key or "success" in case.key
    assert (kept.target_success if wins else kept.target_failure) == case.value >= 500
    config = record(case, tools, f"{case.key}=1").env.train
    assert config is not None
    where = config.data_collection
    folders = {kind: Path(folder) if folder else place(where, tools.here) / name
               for kind, folder, name in ((True, where.positive_dir, "success"),
                                          (False, where.negative_dir, "failure"))}  # fmt: skip
    counts = {kind: len(files(folder)) for kind, folder in folders.items()}
    assert counts == {wins: 1, not wins: EACH}


@effect("reward_data_collection.save_dir")
def episodes_go_to_success_and_failure(case: Case, tools: Tools) -> None:
    record(case, tools)
    names = {each.parent.name: each.name for each in (tools.here / "data").rglob("*.pkl")}
    assert set(names) == {"success", "failure"} and all(name.startswith("episode_0000") for name in names.values())


@effect("env.train.init_params.obs_mode")
def what_the_policy_observes(case: Case, tools: Tools) -> None:
    """Frames are recorded for the reward model all the same."""
    for mode, names in ((case.value, {"states"}), ("rgb", {"main_images", "extra_view_images"})):
        config = case.load(*SMALL, f"{case.key}={mode}", preset="panda_ppo_mlp").config.env.train
        assert isinstance(config, PandaEnvConfig)
        env = make_vec(config)
        assert names <= set(env.reset(seed=0)[0]) and ("main_images" in env.reset(seed=0)[0]) == (mode == "rgb")
        env.close()
    record(case, tools)
    episode = next(iter(read_any(tools.here / "data")))
    assert episode.observations["main_images"].shape == (13, 64, 64, 3)


@effect("env.data_collection.save_dir")
def episodes_go_beside_the_log(case: Case, tools: Tools) -> None:
    record(case, tools)
    assert len(files(tools.here / "run/collected_data")) == 2 * EACH


@effect("env.data_collection.export_format")
def format_of_the_files(case: Case, tools: Tools) -> None:
    assert case.value == "pickle"
    record(case, tools)
    assert all(name.endswith(".pkl") for name in files(tools.here / "run/collected_data"))
    record(case, tools, f"{case.key}=native", "env.train.data_collection.save_dir=native")
    assert len(EpisodeStore(tools.here / "native")) == 2 * EACH


@effect("env.data_collection.only_success")
def failures_are_kept(case: Case, tools: Tools) -> None:
    assert case.value is False
    for only, count in ((False, 2 * EACH), (True, EACH)):
        record(case, tools, f"{case.key}={only}", f"env.train.data_collection.save_dir=only_{only}")
        episodes = list(read_any(tools.here / f"only_{only}"))
        assert len(episodes) == count and sum(bool(each.success_once) for each in episodes) == EACH


@effect("actor.model.image_keys", "actor.model.image_size", blocks="000_named 003_named")
def what_a_cnn_sees(case: Case, tools: Tools) -> None:
    """Keys of the policy there, of the environment that draws for it here."""
    train, evaluated = case.config.env.train, case.config.env.eval
    assert train is not None and evaluated is not None
    if case.key.endswith("keys"):
        assert train.cameras == evaluated.cameras == tuple(case.value)
    else:
        assert train.image_size == evaluated.image_size == case.value[1] == case.value[2]
    wide = case.load("actor.model.image_size=[3,128,128]", *SMALL, preset="panda_ppo_cnn").config.env.train
    assert isinstance(wide, PandaEnvConfig)
    env = make_vec(wide)
    seen = env.reset(seed=0)[0]["main_images"]
    env.close()
    assert seen.shape == (4, 128, 128, 3) and env.cameras == ("front",)


no_effect("every frame is drawn where episodes are recorded", "env.train.reward_render_mode")
no_effect("images are rendered on demand", "env.train.init_params.render_mode")

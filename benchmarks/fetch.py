"""Prints how far a learned reward carries on gymnasium-robotics' Fetch, through Stable-Baselines3 and `referee run`.

Per task: noisy scripted episodes are recorded with two cameras (`fetch_world.py`), `referee train` makes a reward model
of them, and `referee audit` tests it on episodes that it has not seen. Per seed a policy is trained from nothing; the
recorded episodes, failures too, are in its replay, rewarded as the arm rewards:
  sb3 oracle    SAC of Stable-Baselines3 on the environment's own sparse reward: 0 for a success, −1 for the rest.
  sb3 refined   the same learner; the model decides which states are a success. `RefereeCallback` refines it.
  sb3 scratch oracle, sb3 scratch refined   the same with an empty replay.
  run oracle    `referee run gym_rlpd_mlp` without behaviour cloning, on the same sparse reward.
  run refined   the same run with the reward model and refinement.
Refinement asks about 240 frames, which the simulation answers. Success is that of the last state of 256 fresh episodes,
with the mean action and the 95 % Wilson interval; "start" is the untrained policy.
The first call makes a virtual environment of its own (`peers/beside.py`).
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / ".bench" / "fetch"
TASKS = {
    "FetchReach-v4": ("reach", 25, 200, {"sb3": 3_000, "scratch": 8_000, "run": 4_000}),
    "FetchPush-v4": ("push", 50, 160, {"sb3": 8_000, "scratch": 20_000, "run": 8_000}),
}
"""Scripted policy, steps of an episode, episodes recorded, steps of each kind of arm."""
ARMS = ("sb3 oracle", "sb3 refined", "sb3 scratch oracle", "sb3 scratch refined", "run oracle", "run refined")
EPISODES, FRESH_SEED, UNSEEN, UNSEEN_SEED, LABELS, PIXELS, ENVS = 256, 3_000_000, 100, 90_000, 240, 64, 4
HEAD = (
    "| task | arm | seed | start | true success at the end | model, of its training states | truth, of the same "
    "| labels | swaps | alarm at | steps | minutes |"
)
GOAL = {"observation": slice(-6), "achieved_goal": slice(-6, -3), "desired_goal": slice(-3, None)}
"""Where the parts of the observation stand in `states`."""
SPARSE = {"success_reward": 0.0, "fail_reward": -1.0}
"""As Fetch's own reward: what is never tried looks better than failure, so it is tried."""
Act = Callable[[Mapping[str, Any]], Any]


def referee(*arguments: Any) -> None:
    """Type a command; what it prints goes to a file."""
    line = [str(each) for each in arguments]
    FOLDER.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    with (FOLDER / "log.txt").open("a") as log:
        print("$ referee", *line, file=log, flush=True)
        command = [Path(sys.executable).with_name("referee"), *line]
        subprocess.run(command, check=True, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": paths})


def world(part: str, task: str) -> list[str]:
    """What `referee run` is told about the environment."""
    return [
        f"env.{part}.id={task}", f"env.{part}.max_episode_steps={TASKS[task][1]}", f"env.{part}.image_size={PIXELS}",
        f"env.{part}.images=fetch_world:views",
    ]  # fmt: skip


def reward_model(task: str, folder: Path) -> Path:
    """The audited artifact of a task; what is there is taken."""
    policy, _, episodes, _ = TASKS[task]
    model = folder / "reward" / "checkpoints" / "best_model"
    for name, count, seed in (("episodes", episodes, 0), ("unseen", UNSEEN, UNSEEN_SEED)):
        if not (folder / "runs" / name / "result.json").exists():
            referee(
                "run", "gym_collect", *world("eval", task), "env.eval.num_envs=8",
                f"runner.policy=fetch_world:{policy}", f"runner.num_episodes={count}", f"runner.seed={seed}",
                "runner.film=false", f"env.eval.data_collection.save_dir={folder / name}",
                f"runner.logger.log_path={folder / 'runs' / name}",
            )  # fmt: skip
    if not model.exists():
        referee("train", folder / "episodes", "--out", folder / "reward")
    if not (model / "report" / "metrics.json").exists():
        referee("audit", model, folder / "unseen")
    return model


# --- judged alike, wherever it was trained ---


def success(task: str, act: Act) -> str:
    """True success of the last state, over fresh episodes of the environment itself."""
    import gymnasium as gym
    import numpy as np

    from referee.metrics.rates import Rate

    make = [lambda: make_env(task)] * 16
    envs = gym.vector.SyncVectorEnv(make, autoreset_mode=gym.vector.AutoresetMode.DISABLED)
    ended = 0
    for first in range(0, EPISODES, envs.num_envs):
        observation, info = envs.reset(seed=[FRESH_SEED + first + i for i in range(envs.num_envs)])
        for _ in range(TASKS[task][1]):
            observation, _, _, _, info = envs.step(np.clip(act(observation), -1, 1).astype(np.float32))
        ended += int(np.sum(info["is_success"]))
    envs.close()
    share = Rate(ended, EPISODES)
    low, high = share.interval
    return f"{share.share:.0%} [{low:.0%}, {high:.0%}]"


def make_env(task: str, **options: Any) -> Any:
    """One environment."""
    import gymnasium as gym

    from referee.envs.gym.env import find_spec

    return gym.make(find_spec(task), max_episode_steps=TASKS[task][1], **options)


# --- Stable-Baselines3 ---


def sb3_arm(
    task: str, seed: int, model: Path | None, folder: Path, place: Path, steps: int, scratch: bool = False
) -> dict[str, Any]:  # fmt: skip
    """SAC on the truth, or on a model that is refined while it learns."""
    from stable_baselines3 import SAC
    from stable_baselines3.common.logger import configure
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    from fetch_world import views
    from referee.integrations import sb3

    env: Any
    if model is None:
        env, watch = DummyVecEnv([partial(make_env, task)] * ENVS), None
    else:
        env = sb3.make_vec_env(partial(make_env, task), model, n_envs=ENVS, images=views, mode="per_step", **SPARSE)
        watch = sb3.RefereeCallback(
            env, interval=steps // 12, refine_in=place / "refined", labeller="truth", budget=LABELS, seed=seed
        )
    scaled = VecNormalize(env, norm_reward=False)  # positions differ by centimetres around 1.3 m
    learner = SAC(
        "MultiInputPolicy", scaled, learning_rate=1e-3, learning_starts=0, gamma=0.95, tau=0.02, ent_coef="auto_0.1",
        gradient_steps=ENVS, policy_kwargs={"net_arch": [128, 128]}, seed=seed, device="cpu",
    )  # fmt: skip
    learner.set_logger(configure(str(place), ["json"]))
    if not scratch:
        demonstrate(learner, folder / "episodes", model)

    def act(observation: Any) -> Any:
        return learner.predict(scaled.normalize_obs(observation), deterministic=True)[0]

    start, begun = success(task, act), time.perf_counter()
    learner.learn(steps, callback=watch, log_interval=20)
    minutes = (time.perf_counter() - begun) / 60
    learner.save(place / "policy")
    logged = [json.loads(line) for line in (place / "progress.json").read_text().splitlines()]
    found = {"start": start, "end": success(task, act), "minutes": minutes, **trusted(logged)}
    if watch is not None and watch.refiner is not None:
        alarm = None if watch.alarm is None else watch.alarm.first_at
        found |= {"labels": watch.refiner.book.asked, "swaps": len(watch.swaps), "alarm": alarm}
    return found


def demonstrate(learner: Any, episodes: Path, model: Path | None) -> None:
    """Put the recorded episodes into the replay, rewarded by the truth or by the model."""
    import numpy as np

    from referee.episodes import EpisodeStore
    from referee.models import Artifact

    artifact = None if model is None else Artifact.open(model)
    parts: list[dict[str, Any]] = []
    for episode in EpisodeStore(episodes):
        success = episode.success
        if artifact is not None:
            verdict = artifact.score(episode.observations, cameras=episode.meta.cameras)
            success = verdict.probability >= artifact.calibration.threshold_in("per_step")
        states = episode.observations["states"]
        parts.append({"now": states[:-1], "then": states[1:], "action": episode.actions, "success": success[1:]})
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    for name, part in GOAL.items():
        learner.get_vec_normalize_env().obs_rms[name].update(rows["now"][:, part])
    for first in range(0, len(rows["success"]) // ENVS * ENVS, ENVS):
        batch = {name: value[first : first + ENVS] for name, value in rows.items()}
        now, then = ({name: batch[at][:, part] for name, part in GOAL.items()} for at in ("now", "then"))
        reward = np.where(batch["success"], SPARSE["success_reward"], SPARSE["fail_reward"]).astype(np.float32)
        learner.replay_buffer.add(now, then, batch["action"], reward, np.zeros(ENVS), [{}] * ENVS)


# --- referee run ---


def run_arm(task: str, seed: int, model: Path | None, folder: Path, place: Path, steps: int) -> dict[str, Any]:
    """RLPD without cloning, on the truth or on a model that is refined while it learns."""
    reward = ["env.train.reward_mode=env"] if model is None else [
        "reward.use_reward_model=true", "reward.reward_mode=per_step", f"reward.model.model_path={model}",
        *(f"reward.{name}={value}" for name, value in SPARSE.items()), "reward.terminate_on=never",
        "reward.refine.enabled=true", f"reward.refine.budget={LABELS}", f"reward.refine.interval={steps // 40 // 12}",
    ]  # fmt: skip
    for name, count in (("start", 40), ("end", steps)):  # the policy learns nothing in the first 2000 steps
        if not (place / name / "result.json").exists():
            referee(
                "run", "gym_rlpd_mlp", *world("train", task), "env.train.num_envs=8", f"runner.seed={seed}",
                "env.train.terminate_on_success=false", "env.train.success_hold_steps=1",
                f"algorithm.demos.path={folder / 'episodes'}", "algorithm.demos.only_success=false",
                "algorithm.bc_warmup.episodes=0", "algorithm.bc_coef=0", f"runner.max_steps={count}",
                "runner.eval_interval=1000", "runner.film=false", f"runner.logger.log_path={place / name}", *reward,
            )  # fmt: skip
    logged = [json.loads(line) for line in (place / "end" / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((place / "end" / "result.json").read_text())
    found = {name: success(task, acting(place / name)) for name in ("start", "end")}
    found |= {"minutes": result["minutes"], **trusted(logged)}
    if model is not None:
        account = result["refinement"]
        found |= {"labels": account["labels"], "swaps": account["model_version"], "alarm": result["alarm"]}
    return found


def acting(run: Path) -> Act:
    """The policy of a run, on the observations of the environment itself."""
    import numpy as np

    from referee.rl import checkpoint

    policy, _ = checkpoint.load_policy(checkpoint.find(run))
    return lambda observation: policy.act(
        {"states": np.concatenate([observation[key] for key in GOAL], 1).astype(np.float32)}
    )


def trusted(logged: list[dict[str, Any]]) -> dict[str, Any]:
    """What model and truth say of the same states, over the last quarter of the log."""
    told = [each for each in logged if each.get("reward/model_success") is not None]
    last = told[-max(1, len(told) // 4) :]
    names = {"model": "reward/model_success", "truth": "reward/true_success"}
    return {key: sum(each[name] for each in last) / len(last) for key, name in names.items()} if last else {}


def row(task: str, arm: str, seed: int, steps: int, folder: Path) -> None:
    """Train an arm unless it is there, and print it."""
    place = folder / "arms" / f"{arm.replace(' ', '_')}_{seed}"
    if not (place / "row.json").exists():
        place.mkdir(parents=True, exist_ok=True)
        model = folder / "reward" / "checkpoints" / "best_model" if arm.endswith("refined") else None
        train = run_arm if arm.startswith("run") else partial(sb3_arm, scratch="scratch" in arm)
        (place / "row.json").write_text(json.dumps(train(task, seed, model, folder, place, steps)))
    found = json.loads((place / "row.json").read_text())
    model, truth = (f"{found[name]:.0%}" if name in found else "" for name in ("model", "truth"))
    labels, swaps = found.get("labels", 0), found.get("swaps", 0)
    print(
        f"| {task} | {arm} | {seed} | {found['start']} | {found['end']} | {model} | {truth} "
        f"| {labels:.0f} | {swaps:.0f} | {found.get('alarm') or '–'} | {steps:,} | {found['minutes']:.1f} |",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", help="default: 0 1 2, for FetchPush-v4 0")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--steps", type=int, help="of each arm")
    args = parser.parse_args()
    if importlib.util.find_spec("gymnasium_robotics") is None:
        sys.path.insert(0, str(HERE / "peers"))
        from beside import prepare

        python = prepare("gymnasium_robotics")
        os.execv(python, [str(python), *sys.argv])
    print(HEAD + "\n|---|---|--:|---|---|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for task in args.tasks:
        folder = FOLDER / task
        reward_model(task, folder)
        for seed in args.seeds or ([0, 1, 2] if task == "FetchReach-v4" else [0]):
            for arm in args.arms:
                row(task, arm, seed, args.steps or TASKS[task][3][arm.split()[-2]], folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The training recipe: exact resume, Ctrl-C, early stop, bad input, and what it leaves behind."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from referee.checksums import unsealed
from referee.cli import main
from referee.config import load
from referee.recipes.train_policy import train_policy
from referee.runs.logbook import read_metrics

TINY = [
    "env.train.task=Reach",
    "env.train.num_envs=8",
    "env.train.num_threads=1",
    "env.eval.num_envs=8",
    "env.train.max_episode_steps=14",
    "algorithm.rollout_steps=10",
    "actor.global_batch_size=40",
    "actor.model.hidden_dims=[16]",
    "actor.num_threads=1",
    "runner.eval_episodes=8",
    "runner.film=false",
    "runner.logger.logger_backends=[]",
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(folder: str, *overrides: str) -> Path:
    train_policy(load("panda_ppo_mlp", [*TINY, f"runner.logger.log_path={folder}", *overrides]))
    return Path(folder)


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / "policy.safetensors")


def curve(folder: Path) -> list[dict[str, float]]:
    rows = [unsealed(line)[0] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]


@pytest.mark.parametrize("extra", [[], ["actor.optim.schedule=linear", "env.train.terminate_on_success=true"]])
def test_resume_is_exact(extra: list[str]) -> None:
    """The curve and the weights after stop and resume are those of the uninterrupted run, bit for bit."""
    straight = train("straight", "runner.max_steps=640", "runner.keep_every=4", "runner.save_interval=4", *extra)
    halfway = straight / "checkpoints" / "step_320"
    resumed = train("resumed", "runner.max_steps=640", f"runner.resume_dir={halfway}", *extra)
    first, second = weights(straight / "checkpoints/step_640"), weights(resumed / "checkpoints/step_640")
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
    assert curve(straight)[4:] == curve(resumed)
    assert not torch.equal(weights(halfway)["actor.0.weight"], first["actor.0.weight"])


def test_same_seed_same_run_other_seed_other_run() -> None:
    runs = [train(f"run{i}", "runner.max_steps=160", f"runner.seed={seed}") for i, seed in enumerate((1, 1, 2))]
    a, b, c = (weights(run / "checkpoints/step_160")["actor.0.weight"] for run in runs)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_what_a_run_leaves_behind() -> None:
    folder = train(
        "run", "runner.max_steps=240", "runner.eval_interval=2", "runner.logger.logger_backends=[tensorboard]"
    )
    names = {path.name for path in folder.iterdir()}
    assert {"config.yaml", "metrics.jsonl", "result.json", "checkpoints", "tensorboard"} <= names
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"step_240", "best"}
    row = json.loads((folder / "metrics.jsonl").read_text().splitlines()[1])
    for name in ("env/success_once", "env/success_at_end", "env/return", "rollout/rewards", "train/approx_kl",
                 "time/update", "eval/success_at_end", "eval/success_at_end_low"):  # fmt: skip
        assert np.isfinite(row[name]), name
    assert any((folder / "tensorboard").iterdir())


def test_the_wanted_success_ends_a_run_early() -> None:
    folder = train("run", "runner.max_steps=100000", "runner.target_success=0.0", "runner.eval_interval=1")
    assert json.loads((folder / "result.json").read_text())["steps"] == 80


def test_minutes_end_a_run() -> None:
    folder = train("run", "runner.max_steps=100000", "runner.max_minutes=0.0001")
    assert json.loads((folder / "result.json").read_text())["steps"] == 80


def test_cloning_first_gives_a_start(capsys: pytest.CaptureFixture[str]) -> None:
    train("run", "runner.max_steps=80", "algorithm.bc_warmup.episodes=16", "env.train.max_episode_steps=50",
          "env.train.reward_mode=sparse")  # fmt: skip
    assert "behaviour cloning of 800 demonstrated steps" in capsys.readouterr().out


def test_a_cnn_trains_on_images() -> None:
    images = ["env.train.obs_mode=rgb", "env.eval.obs_mode=rgb", "actor.model.model_type=cnn"]
    small = ["env.train.num_envs=2", "env.eval.num_envs=2", "actor.global_batch_size=10", "runner.eval_episodes=2"]
    folder = train("run", "runner.max_steps=20", "algorithm.update_epochs=1", *images, *small)
    assert "encoder.convolutions.0.weight" in weights(folder / "checkpoints/step_20")


def test_eval_and_play_bring_a_policy_back(capsys: pytest.CaptureFixture[str]) -> None:
    folder = train("run", "runner.max_steps=80")
    assert main(["eval", str(folder), "--episodes", "6"]) == 0
    assert "of 6" in capsys.readouterr().out
    assert main(["eval", str(folder / "checkpoints/best"), "--episodes", "6", "--stochastic"]) == 0
    assert main(["play", str(folder), "--episodes", "1", "--size", "64", "--out", "film.gif"]) == 0
    assert Path("film.gif").exists()


def test_a_policy_is_judged_in_the_world_that_it_was_trained_in() -> None:
    from referee.recipes.trained import bring_back

    folder = train("run", "runner.max_steps=80", "env.train.randomise.colours=0.7", "env.train.randomise.distractors=2",
                   "env.eval.max_episode_steps=17")  # fmt: skip
    env, _ = bring_back(folder, 2)
    assert env.config.randomise.colours == 0.7 and env.config.randomise.distractors == 2
    assert env.max_episode_steps == 17, "as long as the episodes of its evaluations"


def refuse(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("actor.global_batch_size=33", "does not divide the 80 samples of a rollout"),
        ("runner.max_steps=0", "runner.max_steps"),
        ("runner.seed=100", "would train on the episodes of evaluation: choose a seed below 100"),
        ("algorithm.gamma=1.5", "algorithm.gamma"),
        ("algorithm.gama=0.9", "did you mean algorithm.gamma"),
        ("env.train.obs_mode=rgb", "reads state only"),
        ("actor.model.model_type=cnn", "needs images: set env.train.obs_mode=rgb"),
        ("env.eval.task=PickCube", "env.eval.task=PickCube, but env.train.task=Reach"),
        ("runner.resume_dir=nowhere", "nowhere holds no checkpoint"),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], here: Path, override: str, said: str) -> None:
    assert said in refuse(capsys, "run", "panda_ppo_mlp", *TINY, "runner.logger.log_path=run", override)
    assert list(here.iterdir()) == []


def test_resuming_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    folder = train("run", "runner.max_steps=80")
    for override, said in (
        ("env.train.task=PushCube", "was trained on Reach"),
        ("actor.model.hidden_dims=[32]", "another network: hidden_dims (16,) (here (32,))"),
        ("env.train.num_envs=4", "num_envs=8 (here 4)"),
        ("env.train.randomise.light=0.5", "randomise="),
    ):
        line = refuse(capsys, "run", "panda_ppo_mlp", *TINY, f"runner.resume_dir={folder}", override)
        assert said in line
    broken = folder / "checkpoints/step_80/optimizer.safetensors"
    broken.write_bytes(broken.read_bytes()[:100])
    assert "optimizer.safetensors: has changed since it was written" in refuse(
        capsys, "run", "panda_ppo_mlp", *TINY, f"runner.resume_dir={folder}"
    )


def test_a_backend_that_is_not_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    wandb = ["runner.logger.logger_backends=[wandb]", "runner.logger.log_path=run"]
    assert "pip install wandb" in refuse(capsys, "run", "panda_ppo_mlp", *TINY, *wandb)
    assert list(here.iterdir()) == []


@pytest.mark.slow
def test_numbers_go_to_wandb_where_asked(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    """The service's own client, which keeps everything in the run's folder until somebody sends it."""
    import wandb

    told, begin = {}, wandb.init

    def watched(**settings: object) -> wandb.Run:
        run = begin(**settings)
        finish = run.finish
        told.update(project=run.project, name=run.name)
        monkeypatch.setattr(run, "finish", lambda: (told.update(run.summary), finish()))
        return run

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(wandb, "init", watched)
    train("run", "runner.max_steps=160", "runner.logger.logger_backends=[wandb]", "runner.logger.project_name=mine")
    first, _ = read_metrics(here / "run")  # the client takes in the last row only while it finishes
    assert (told["project"], told["name"], told["_step"]) == ("mine", "panda_ppo_mlp", first["step"])
    assert told["rollout/rewards"] == pytest.approx(first["rollout/rewards"])
    assert list((here / "run/wandb").glob("offline-run-*/*.wandb"))


def test_a_log_that_cannot_be_written(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    blocker = here.parent / "c_file"
    blocker.write_text("")
    line = refuse(capsys, "run", "panda_ppo_mlp", *TINY, f"runner.logger.log_path={blocker}/run")
    assert "set runner.logger.log_path to a folder" in line


def test_divergence_stops_with_one_line_and_keeps_the_last_checkpoint(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from referee.workers.env import EnvWorker

    steps = 0
    honest = EnvWorker.step

    def poisoned(self: EnvWorker, actions: np.ndarray, watch: object = None) -> object:
        nonlocal steps
        steps += 1
        result = honest(self, actions)
        if steps == 25:
            result[1][3] = np.nan
        return result

    monkeypatch.setattr(EnvWorker, "step", poisoned)
    tiny = [*TINY, "runner.logger.log_path=run", "runner.save_interval=1"]
    assert main(["run", "panda_ppo_mlp", *tiny]) == 2
    assert "reward of environment 3 at rollout step 4 is not finite" in capsys.readouterr().err
    assert [path.name for path in Path("run/checkpoints").glob("step_*")] == ["step_160"]


def test_eval_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere holds no checkpoint" in refuse(capsys, "eval", "nowhere")
    assert "nowhere holds no checkpoint" in refuse(capsys, "play", "nowhere")


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_resume(here: Path) -> None:
    command = [sys.executable, "-m", "referee.cli", "run", "panda_ppo_mlp", *TINY, "runner.logger.log_path=run"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not Path("run/metrics.jsonl").exists() or len(Path("run/metrics.jsonl").read_text().splitlines()) < 3:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    (line,) = [line for line in out.splitlines() if "go on with" in line]
    where = line.split("runner.resume_dir=")[1].strip()
    steps = int(Path(where).name.removeprefix("step_"))
    train("more", f"runner.max_steps={steps + 80}", f"runner.resume_dir={where}")
    assert (here / "more/checkpoints" / f"step_{steps + 80}").exists()

"""Interpolations: values, environment variables and whole sections; a missing one is a clear line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from referee.config import load

pytestmark = pytest.mark.usefixtures("quick")

Error = Callable[..., str]


def test_values_from_elsewhere_even_from_defaults() -> None:
    loaded = load("panda_expert", ["runner.seed=${runner.num_episodes}", "env.eval.num_threads=${.num_envs}"])
    assert loaded.config.runner.seed == 64
    assert loaded.config.env.eval.num_threads == 16
    assert loaded.sources["runner.seed"] == "command line"


def test_environment_variables(monkeypatch: pytest.MonkeyPatch, mine: Callable[[str], str]) -> None:
    monkeypatch.setenv("OUT", "/data")
    monkeypatch.setenv("SEED", "7")
    name = mine("  seed: ${oc.decode:${oc.env:SEED}}\n  logger: {log_path: '${oc.env:OUT}/x'}\n")
    loaded = load(name, ["env.eval.cameras=['${oc.env:CAM,wrist}']"])
    assert loaded.config.runner.logger.log_path == "/data/x"
    assert loaded.config.runner.seed == 7
    assert loaded.config.env.eval.cameras == ("wrist",)


def test_env_type_itself_may_be_interpolated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD", "panda")
    assert load("panda_expert", ["env.eval.env_type=${oc.env:WORLD}"]).config.env.eval.env_type == "panda"


def test_a_missing_variable_is_a_clear_line(mine: Callable[[str], str], error: Error) -> None:
    line = error(mine("  logger: {log_path: '${oc.env:NOT_SET_X}'}\n"))
    assert line.startswith("runner.logger.log_path (mine.yaml): ${oc.env:NOT_SET_X} cannot be resolved: ")
    assert "environment variable NOT_SET_X is not set; export NOT_SET_X=…" in line


def test_a_missing_key_names_the_nearest(error: Error) -> None:
    line = error("panda_expert", "runner.seed=${runner.num_episode}")
    assert "there is no key runner.num_episode; did you mean ${runner.num_episodes}?" in line


def test_circles_and_broken_grammar(mine: Callable[[str], str], error: Error) -> None:
    assert "cannot be resolved" in error("panda_expert", "runner.seed=${runner.seed}")
    assert "refers back to itself" in error("panda_expert", "env.train=${env.train}")
    assert "refers back to itself" in error("panda_expert", "env.train=${env.eval}", "env.eval=${env.train}")
    assert "names no section" in error("panda_expert", "env.train=${env.evl}")
    assert "cannot be" in error(mine("  logger: {log_path: '${'}\n"))


def test_the_environment_keeps_strict_types(monkeypatch: pytest.MonkeyPatch, error: Error) -> None:
    monkeypatch.setenv("SEED", "7")
    assert "${oc.decode:${oc.env:NAME}}" in error("panda_expert", "runner.seed=${oc.env:SEED}")


def test_a_section_from_elsewhere_can_be_refined(mine: Callable[[str], str]) -> None:
    name = mine("env:\n  eval: {task: Reach}\n  train: ${env.eval}\n")
    loaded = load(name, ["env.train.num_envs=64"])
    assert loaded.config.env.train.task == "Reach"
    assert (loaded.config.env.train.num_envs, loaded.config.env.eval.num_envs) == (64, 16)
    assert loaded.sources["env.train.task"] == "mine.yaml"
    assert loaded.sources["env.train.num_envs"] == "command line"

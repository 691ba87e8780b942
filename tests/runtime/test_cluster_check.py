"""`referee cluster check`: a table that fits into 80 columns, or one line."""

from __future__ import annotations

from pathlib import Path

import pytest

import referee.config
from referee.cli import main

PRESETS = sorted(path.stem for path in (Path(referee.config.__file__).parent / "presets").glob("*.yaml"))


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_the_plan_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    placement = ["cluster.component_placement.env=0-1", "cluster.component_placement.reward=all"]
    arm = "cluster.node_groups=[{hardware: {type: Franka, configs: [{robot_ip: 172.16.0.2}]}}]"
    teleop = "cluster.component_placement.teleop={node_group: franka, placement: 0}"
    assert main(["cluster", "check", "panda_ppo_mlp", *placement, arm, teleop]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert [line.split() for line in lines[:5]] == [
        ["component", "rank", "node", "slot"],
        ["env", "0", "of", "2", "0", "process", "0"],
        ["1", "of", "2", "0", "process", "1"],
        ["reward", "0", "of", "1", "0", "process", "0"],
        ["teleop", "0", "of", "1", "0", "Franka", "172.16.0.2"],
    ]
    assert lines[5] == "All of it runs in one process, without Ray (cluster.backend=local)."


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["cluster.component_placement.env=0-"], "env.placement: cannot read '0-': write 0, 0-3, 0,2 or all"),
        (["cluster.component_placement.actor=0"], "component_placement has no place for env: add `env: 0-0` to it"),
        (["cluster.num_nodes=2"], "cluster.num_nodes is 2, but with cluster.backend=local all is in this process"),
        (["cluster.num_nodes=2", "cluster.backend=ray"], "cluster.num_nodes is 2, but cluster.address names no head"),
    ],
)
def test_what_does_not_fit_is_one_line(capsys: pytest.CaptureFixture[str], overrides: list[str], line: str) -> None:
    assert main(["cluster", "check", "panda_ppo_mlp", *overrides]) == 2
    error = capsys.readouterr().err
    assert line in error and error.count("\n") == 1


def test_without_placement(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "check", "panda_ppo_mlp"]) == 0
    assert "each component  0 of 1  0     process 0" in capsys.readouterr().out


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_can_be_checked(capsys: pytest.CaptureFixture[str], preset: str) -> None:
    assert main(["cluster", "check", preset]) == 0
    assert "0 of 1" in capsys.readouterr().out


@pytest.mark.parametrize("component", ["reward", "actor"])
def test_the_training_of_a_reward_model_has_places(capsys: pytest.CaptureFixture[str], component: str) -> None:
    assert main(["cluster", "check", "train_reward_model", f"cluster.component_placement.{component}=all"]) == 0
    assert f"{component:<9}  0 of 1  0     process 0" in capsys.readouterr().out

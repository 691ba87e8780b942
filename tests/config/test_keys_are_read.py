"""What `referee config show` prints is read when the recipe runs: every read of a key is recorded in small runs."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from referee.config import Loaded, load
from referee.recipes import run

pytestmark = pytest.mark.slow
COPIES = ("/config/", "dataclasses.py", "copy.py")
"""Code that reads keys only to hand them on."""
ELSEWHERE = {"runner.logger.project_name"}  # W&B reads it, which is no back end here
LOCAL = {"cluster.num_nodes"}  # `config.placements` checks it


def sections(section: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, section
    for each in fields(section):
        value = getattr(section, each.name)
        if is_dataclass(value):
            yield from sections(value, f"{path}{each.name}.")


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> Callable[[Loaded], set[str]]:
    """Runs a configuration; the printed keys that nobody has read, by section and name."""

    def record(loaded: Loaded) -> set[str]:
        where = {id(section): path for path, section in sections(loaded.config)}
        seen: set[str] = set()

        def watched(cls: type) -> Callable[[Any, str], Any]:
            mine, plain = {each.name for each in fields(cls)}, cls.__getattribute__

            def get(self: Any, name: str) -> Any:
                if name in mine and id(self) in where:
                    reader = sys._getframe(1).f_code.co_filename
                    if not any(each in reader for each in COPIES):
                        seen.add(where[id(self)] + name)
                return plain(self, name)

            return get

        with monkeypatch.context() as patch:
            for cls in {type(section) for _, section in sections(loaded.config)}:
                patch.setattr(cls, "__getattribute__", watched(cls))
            run(loaded)
        return set(loaded.sources) - loaded.dead - seen

    return record


SMALL = ["runner.eval_episodes=4", "env.train.num_envs=4", "env.eval.num_envs=4", "env.train.task=Reach",
         "env.train.max_episode_steps=10", "runner.film=false"]  # fmt: skip


@pytest.mark.parametrize(
    ("preset", "lines", "elsewhere"),
    [
        ("panda_expert", ["runner.num_episodes=4", "env.eval.num_envs=4", "runner.film=false"], set()),
        ("panda_ppo_mlp", ["runner.max_steps=80", "algorithm.rollout_steps=10", *SMALL], ELSEWHERE | LOCAL),
        ("panda_sac_mlp", ["runner.max_steps=80", "algorithm.random_steps=20", *SMALL], ELSEWHERE | LOCAL),
    ],
)
def test_a_small_run_reads_what_is_printed(
    unread: Callable[[Loaded], set[str]], tmp_path: Path, preset: str, lines: list[str], elsewhere: set[str]
) -> None:
    loaded = load(preset, [f"runner.logger.log_path={tmp_path / 'run'}", *lines])
    unnamed = {"runner.logger.output_dir", "runner.logger.experiment_name"}  # where no log_path is given
    assert unread(loaded) == elsewhere | unnamed

"""The Python blocks of the README and of docs/ satisfy `mypy --strict`, as a reader's editor would check them."""

from __future__ import annotations

import ast
import builtins
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.documented.pages import PYTHON, ROOT, blocks, name, pages

UNTYPED = ["--allow-untyped-defs", "--allow-incomplete-defs", "--allow-untyped-calls", "--allow-subclassing-any"]
"""A block may leave out its own annotations, for brevity; what it takes from Referee is checked."""


REFINED = """
import gymnasium as gym
import referee

env = referee.RewardModelWrapper(gym.make("FetchReach-v4", render_mode="rgb_array"), "model", mode="per_step")
refiner = referee.Refiner("model", "refined", "log", mode="per_step")
refiner.update(env, 3)
env.swap("x")
several = referee.RewardModelWrapper(gym.make_vec("FetchReach-v4", num_envs=2), "model", alarm=True, success="succeed")
refiner.update(several, 4)
if several.alarm is not None:
    raised: int | None = several.alarm.raised_at
inside: gym.Env[object, object] = env
"""
"""A refiner takes what the wrapper returns, around an environment of a real type: without a cast or an ignore."""


def as_module(sources: list[str]) -> str:
    """The blocks of a page as one module; names that the page takes as given may be anything."""
    trees = [ast.parse(source) for source in sources]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    loaded = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    bound |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    used_first = {"env"} & bound  # `env = Wrapper(env, …)`: given, and bound again as something else
    given = sorted((loaded - bound - set(dir(builtins))) | used_first)
    return "\n".join(["from typing import Any", *(f"{each}: Any" for each in given), *sources, ""])


def check(folder: Path) -> str:
    """What mypy has against the modules in a folder."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), *UNTYPED,
               "--allow-redefinition", "--no-error-summary", "--cache-dir", str(folder / "cache"),
               *sorted(map(str, folder.glob("*.py")))]  # fmt: skip
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_python_of_the_docs_is_typed(tmp_path: Path) -> None:
    count = 0
    for page in pages():
        sources = [block.text for block in blocks(page) if block.language in PYTHON]
        if sources:
            stem = name(page).removesuffix(".md").replace("/", "_").replace(".", "_").replace("-", "_")
            (tmp_path / f"page_{stem}.py").write_text(as_module(sources))
            count += 1
    (tmp_path / "refined.py").write_text(REFINED)
    assert count > 10 and not (said := check(tmp_path)), said
    (tmp_path / "page_wrong.py").write_text("from referee import RewardModelWraper\n")
    (tmp_path / "misspelt.py").write_text(REFINED + 'referee.RewardModelWrapper(env, "model", mod="terminal")\n')
    said = check(tmp_path)
    assert "RewardModelWraper" in said and '"mod"' in said


def test_names_that_a_page_takes_as_given_may_be_anything() -> None:
    module = as_module(["import referee\nenv = referee.RewardModelWrapper(env, model)\nprint(env, [x for x in model])"])
    assert module.splitlines()[:3] == ["from typing import Any", "env: Any", "model: Any"]

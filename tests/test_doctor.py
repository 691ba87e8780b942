"""What `referee doctor` advises, and every other line that installs something: it must work for who has the wheel."""

import importlib.util
import re
import tomllib
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from referee import doctor
from referee.errors import MissingDependency
from referee.sim import engine

ROOT = Path(__file__).parents[1]
LINES = re.compile(r"pip install [^`\n]*")


def missing(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Make modules look as if they were not installed."""
    find = importlib.util.find_spec

    def found(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in names else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", found)


def test_every_extra_for_users_is_checked() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*doctor.EXTRAS, "sim"} == set(extras) - {"dev", "docs"}


def test_the_fixes_need_no_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    missing(monkeypatch, "torch", *(module for module, _ in doctor.EXTRAS.values()))
    fixes = [finding.fix for finding in [*doctor._torch(), *doctor._extras()]]
    assert fixes[0].startswith("pip install torch;") and "whl/cpu" in fixes[0]
    assert fixes[1:] == [f"pip install 'referee-rl[{extra}]'" for extra in doctor.EXTRAS]


def test_an_old_mujoco_is_kept_where_another_package_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def old() -> None:
        raise MissingDependency(f"needs mujoco 4 or newer, here is 3.3.7: {engine.FIX}, in an environment of its own")

    monkeypatch.setattr(engine, "load_mujoco", old)
    (finding,) = doctor._simulation()
    assert finding.state == "note" and finding.detail == "needs mujoco 4 or newer, here is 3.3.7"
    assert finding.fix == "pip install 'referee-rl[sim]', in an environment of its own"


def test_install_lines_name_the_distribution() -> None:
    pages = [ROOT / "README.md", ROOT / "README.zh.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    lines = [(page, line) for page in pages for line in LINES.findall(page.read_text(encoding="utf-8"))]
    extras = [(page, line) for page, line in lines if "[" in line]
    assert {"README.md", "README.zh.md"} <= {page.name for page, _ in extras}
    assert len(extras) > 20
    assert not [each for each in extras if "referee-rl[" not in each[1]]

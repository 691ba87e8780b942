"""The lock that `make setup` installs from: every pin, of the same version, with digests."""

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def entries(name: str) -> dict[str, int]:
    """`package==version` → how many digests stand behind it."""
    text = (ROOT / "requirements" / name).read_text()
    pattern = r"^([A-Za-z0-9._-]+==[^\s;]+)(?: ; [^\\\n]+)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$"
    return {found[1]: found[2].count("sha256:") for found in re.finditer(pattern, text, re.MULTILINE)}


def test_every_pin_but_torch_has_digests() -> None:
    pins = {line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")}
    lock, build = entries("lock.txt"), entries("build.txt")
    assert not lock.keys() & build.keys()
    assert {*lock, *build} == {pin for pin in pins if not pin.startswith("torch==")}  # else: requirements/lock.py
    assert {pin.partition("==")[0] for pin in build} == {"pip", "setuptools", "cffi", "pycparser"}
    lines = [
        line for name in ("lock.txt", "build.txt") for line in (ROOT / "requirements" / name).read_text().split("\n")
    ]
    assert sum(line.strip().startswith("--hash=") for line in lines) == sum((lock | build).values())


def needed(names: list[str]) -> set[str]:
    """Requirements and all that they need in turn, by name, as the installed packages say."""
    found: set[str] = set()
    waiting = [(Requirement(each), {""}) for each in names]
    while waiting:
        requirement, extras = waiting.pop()
        name = canonicalize_name(requirement.name)
        marker = requirement.marker
        if name in found or (marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras)):
            continue
        found.add(name)
        waiting += [(Requirement(each), requirement.extras or {""}) for each in requires(name) or ()]
    return found


def test_the_demo_installs_the_core_and_the_simulation_and_nothing_else() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = needed([*project["dependencies"], *project["optional-dependencies"]["sim"]])
    assert {"numpy", "torch", "mujoco", "mdurl"} <= names and not names & {"tensorboard", "ray", "transformers"}
    lock, demo = entries("lock.txt"), entries("demo.txt")
    expected = {pin: digests for pin, digests in lock.items() if canonicalize_name(pin.partition("==")[0]) in names}
    assert demo == expected, "pyproject.toml has changed: python requirements/lock.py --demo"
    outside = {pin.partition("==")[0] for pin in entries("build.txt")} | {"torch"}  # build tools, and another index
    assert names - {canonicalize_name(pin.partition("==")[0]) for pin in demo} <= outside

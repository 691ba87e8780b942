"""The lock that `make setup` installs from: every pin, of the same version, with digests."""

import re
from pathlib import Path

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

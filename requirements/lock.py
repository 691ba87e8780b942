"""Write lock.txt, build.txt and demo.txt: the pins of constraints.txt with the SHA-256 digests of all files of each.

    python requirements/lock.py            # after constraints.txt has changed
    python requirements/lock.py --demo     # after the dependencies of the core or of `sim` have changed: demo.txt alone
    python requirements/lock.py --check    # whether the lock serves this Python on this machine: exit code 0 or 1

The digests are those that the package index lists, for every platform and Python version. torch is left out: its builds
for the CPU and for each CUDA version are files of other indexes. build.txt is what builds Referee itself and the two
packages that come as source, so that nothing is fetched without a digest while they are built. demo.txt is the part of
lock.txt that the core and the extra `sim` need.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
import tomllib
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pip._internal.models.index import PyPI
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from pip._vendor.packaging.version import Version

HERE = Path(__file__).parent
CONSTRAINTS = HERE.parent / "constraints.txt"
PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
SERVES = ("Linux", "x86_64", ((3, 11), (3, 12), (3, 13)))
"""Where every pin has a file: elsewhere constraints.txt is used, without digests."""
OTHER_INDEX = ("torch",)
BUILD = ("pip", "setuptools", "cffi", "pycparser")
MARKERS = {"mplib": 'python_version < "3.13"'}
"""No wheel for newer ones; only ManiSkill's motion planner needs it, which Referee does not use."""


class _Links(HTMLParser):
    """The addresses of a page of the index."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.addresses += [value for name, value in attrs if name == "href" and value]


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        system, machine, versions = SERVES
        here = (platform.system(), platform.machine()) == (system, machine) and sys.version_info[:2] in versions
        sys.exit(0 if here else 1)
    if sys.argv[1:] == ["--demo"]:
        write_demo()
        return
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if line and not line.startswith("#")]
    pins = [pin for pin in lines if pin.partition("==")[0] not in OTHER_INDEX]
    with ThreadPoolExecutor(8) as pool:
        entries = dict(zip(pins, pool.map(entry, pins), strict=True))
    for name, content in (
        ("lock.txt", [pin for pin in pins if pin.partition("==")[0] not in BUILD]),
        ("build.txt", [pin for pin in pins if pin.partition("==")[0] in BUILD]),
    ):
        header = "# Written by requirements/lock.py from constraints.txt: change that, and run it.\n"
        (HERE / name).write_text(header + "".join(entries[pin] for pin in content))
        print(f"{len(content)} releases in {HERE / name}")
    write_demo()


def write_demo() -> None:
    """The entries of lock.txt that the demo needs; run it where all of them are installed."""
    entries = re.split(r"(?m)^(?=[A-Za-z0-9])", (HERE / "lock.txt").read_text())
    needed = closure([*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["sim"]])
    chosen = [each for each in entries[1:] if canonicalize_name(each.partition("==")[0]) in needed]
    (HERE / "demo.txt").write_text(entries[0] + "".join(chosen))
    print(f"{len(chosen)} releases in {HERE / 'demo.txt'}")


def closure(requirements: list[str]) -> set[str]:
    """The names of all packages that requirements need, as the installed ones say."""
    names: set[str] = set()
    waiting = [(Requirement(each), "") for each in requirements]
    while waiting:
        one, extra = waiting.pop()
        if one.marker is not None and not one.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(one.name)
        if name in names:
            continue
        names.add(name)
        for inside in one.extras or {""}:
            waiting += [(Requirement(each), inside) for each in importlib.metadata.requires(one.name) or ()]
    return names


def entry(pin: str) -> str:
    """A requirement with all digests of its release."""
    name, _, version = pin.partition("==")
    digests = sorted(set(digests_of(name, version)))
    if not digests:
        sys.exit(f"lock.py: the index lists no file of {pin}: change constraints.txt")
    marker = f" ; {MARKERS[name]}" if name in MARKERS else ""
    return f"{pin}{marker}" + "".join(f" \\\n    --hash=sha256:{digest}" for digest in digests) + "\n"


def digests_of(name: str, version: str) -> list[str]:
    """SHA-256 of each file of a release, as the index tells them."""
    address = f"{PyPI.simple_url}/{canonicalize_name(name)}/"
    with urllib.request.urlopen(urllib.request.Request(address, headers={"Accept": "text/html"}), timeout=60) as page:
        links = _Links()
        links.feed(page.read().decode())
    digests = []
    for address in links.addresses:
        parts = urlsplit(address)
        digest = re.fullmatch(r"sha256=([0-9a-f]{64})", parts.fragment)
        if digest and _version(unquote(parts.path).rpartition("/")[2]) == Version(version):
            digests.append(digest[1])
    return digests


def _version(file: str) -> Version | None:
    try:
        return (parse_wheel_filename(file) if file.endswith(".whl") else parse_sdist_filename(file))[1]
    except ValueError:  # an egg, or an installer
        return None


if __name__ == "__main__":
    main()

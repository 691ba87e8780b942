"""Creates one virtual environment per peer simulator below `.bench/`, from the pinned files beside it."""

import argparse
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCH = HERE.parents[1] / ".bench"
PEERS = ("gym_hil", "panda_gym", "robosuite", "envpool")

# Run by the venv's own python: prints the first pin that is missing or differs, else nothing.
CHECK = """
import sys
from importlib.metadata import PackageNotFoundError, version
for pin in sys.argv[1:]:
    name, wanted = pin.split("==")
    try:
        found = version(name)
    except PackageNotFoundError:
        found = "nothing"
    if found != wanted:
        sys.exit(f"{pin} wanted, {found} found")
"""


def venv_python(peer: str) -> Path:
    """The interpreter that runs `<peer>_steps.py`."""
    return BENCH / peer / "bin" / "python"


def pins(peer: str) -> list[str]:
    """The `name==version` lines of the peer's requirements file."""
    return (HERE / f"{peer}.txt").read_text().split()


def is_ready(peer: str) -> bool:
    """True when every pin of the peer is installed in its venv."""
    python = venv_python(peer)
    if not python.exists():
        return False
    return subprocess.run([python, "-c", CHECK, *pins(peer)], capture_output=True).returncode == 0


def install(peer: str) -> bool:
    """Create or repair the peer's venv; False, with pip's own message on stderr, when pip fails."""
    venv.create(BENCH / peer, with_pip=True)
    (BENCH / ".gitignore").write_text("*\n")
    command = [venv_python(peer), "-m", "pip", "install", "--quiet", "-r", HERE / f"{peer}.txt"]
    return subprocess.run(command).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"default: all of {', '.join(PEERS)}")
    chosen = parser.parse_args().peers or PEERS
    if unknown := sorted(set(chosen) - set(PEERS)):
        parser.error(f"unknown peer {unknown[0]!r}; choose from {', '.join(PEERS)}")
    failed = []
    for peer in chosen:
        if is_ready(peer):
            print(f"{peer}: already there")
        elif install(peer):
            print(f"{peer}: installed in {BENCH / peer}")
        else:
            failed.append(peer)
            print(f"{peer}: pip failed (its message is above); fix that and run this script again")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

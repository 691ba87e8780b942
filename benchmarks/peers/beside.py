"""Prints whether Referee's core lives beside other simulators: installs each with it, then records, trains, scores.

Per suite a virtual environment below `.bench/`: torch as in constraints.txt, the suite's own pins (`beside_*.txt`), and
this tree without extras. In it `beside_run.py` does what a user would: records with `GymRecorder`, then types
`referee episodes ls`, `train`, `score` and `audit`.
"""

import argparse
import json
import subprocess
import sys
import time
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BENCH = ROOT / ".bench"
SUITES = ("metaworld", "gym_hil", "gymnasium_robotics")
FACTS = "beside.json"
HEAD = (
    "| suite | mujoco | install, s | venv, MB | episodes, of which successes | recording, s | training, s "
    "| AUROC, validation | AUROC, unseen | environment |"
)


def folder(suite: str) -> Path:
    """The virtual environment of a suite."""
    return BENCH / f"beside_{suite}"


def prepare(suite: str) -> Path:
    """Its interpreter; the environment is made unless it is there."""
    place, pins = folder(suite), (HERE / f"beside_{suite}.txt").read_text()
    python, facts = place / "bin" / "python", place / FACTS
    made_of = {"pins": pins, "project": (ROOT / "pyproject.toml").read_text()}
    if facts.exists() and json.loads(facts.read_text())["made_of"] == made_of:
        return python
    start = time.perf_counter()
    venv.create(place, with_pip=True, clear=True)
    (BENCH / ".gitignore").write_text("*\n")
    torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    pip = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, torch], check=True)  # first: a torch that is there already is kept, CUDA or not
    subprocess.run([*pip, "-e", ROOT, "-r", HERE / f"beside_{suite}.txt"], check=True)
    seconds = time.perf_counter() - start
    facts.write_text(json.dumps({"made_of": made_of, "seconds": seconds, "megabytes": megabytes(place)}))
    return python


def megabytes(place: Path) -> float:
    """What lies in a folder."""
    return sum(path.lstat().st_size for path in place.rglob("*")) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"default: all of {', '.join(SUITES)}")
    parser.add_argument("--episodes", type=int, default=24)
    args = parser.parse_args()
    if unknown := sorted(set(args.suites) - set(SUITES)):
        parser.error(f"unknown suite {unknown[0]!r}; choose from {', '.join(SUITES)}")
    print(HEAD + "\n|---|---|--:|--:|--:|--:|--:|--:|--:|---|", flush=True)
    failed = []
    for suite in args.suites or SUITES:
        python = prepare(suite)
        facts = json.loads((folder(suite) / FACTS).read_text())
        work = folder(suite) / "work"
        command = [python, HERE / "beside_run.py", suite, work, "--episodes", str(args.episodes)]
        with (folder(suite) / "log.txt").open("w") as log:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder(suite)).returncode
        if code:
            failed.append(suite)
            print(f"| {suite} | failed: {folder(suite) / 'log.txt'} |", flush=True)
            continue
        result = json.loads((work / "result.json").read_text())
        print(
            f"| {suite} | {result['mujoco']} | {facts['seconds']:.0f} | {facts['megabytes']:.0f} "
            f"| {result['episodes']}, {result['successes']} | {result['recording']:.0f} | {result['training']:.0f} "
            f"| {result['validation']:.3f} | {result['unseen']:.3f} | {result['environment']} |",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""data.pkl of an arm → collected_data/ beside it, or OUT: a front door to `referee episodes convert`."""

import sys
from pathlib import Path

from referee.cli import main

if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: process_realworld_data.py path/to/data.pkl [OUT]")
    source = Path(sys.argv[1])
    out = sys.argv[2] if len(sys.argv) == 3 else str(source.parent / "collected_data")
    sys.exit(main(["episodes", "convert", str(source), out, "--format", "pickle"]))

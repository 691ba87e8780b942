"""data.pkl of an arm → collected_data/ beside it: a front door to `referee episodes convert`."""

import sys
from pathlib import Path

from referee.cli import main

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: process_realworld_data.py path/to/data.pkl")
    source = Path(sys.argv[1])
    sys.exit(main(["episodes", "convert", str(source), str(source.parent / "collected_data"), "--format", "pickle"]))

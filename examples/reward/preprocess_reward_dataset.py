"""Recorded episodes → train.pt and val.pt: a front door to `referee dataset frames`."""

import sys

from referee.cli import main

if __name__ == "__main__":
    sys.exit(main(["dataset", "frames", *sys.argv[1:]]))

"""Recorded episodes → windows with a trend, for a vision-language model: a front door to `referee dataset windows`."""

import sys

from referee.cli import main

if __name__ == "__main__":
    sys.exit(main(["dataset", "windows", *sys.argv[1:]]))

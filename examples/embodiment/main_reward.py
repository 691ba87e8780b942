"""Train a reward model by configuration: a front door to `referee run train_reward_model`."""

import argparse
import sys

from referee.cli import main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config-path", help="a folder with configurations of yours")
    parser.add_argument("--config-name", default="train_reward_model")
    parser.add_argument("overrides", nargs="*", help="key=value")
    given = parser.parse_args()
    where = ["--config-path", given.config_path] if given.config_path else []
    sys.exit(main(["run", *where, given.config_name, *given.overrides]))

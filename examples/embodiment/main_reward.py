"""Train a reward model by configuration: a front door to `referee run` with config/train_reward_model.yaml."""

import argparse
import sys
from pathlib import Path

from referee.cli import main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config-path", default=str(Path(__file__).parent / "config"), help="a folder of yours")
    parser.add_argument("--config-name", default="train_reward_model")
    parser.add_argument("overrides", nargs="*", help="key=value")
    given = parser.parse_args()
    where = ["--config-path", given.config_path, given.config_name]
    sys.exit(main(["run", *where, "runner.recipe=train_reward", *given.overrides]))

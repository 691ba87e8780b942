"""Train a policy by configuration: a front door to `referee run`."""

import argparse
import sys
from pathlib import Path

from referee.cli import main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--config-path", default=str(Path(__file__).parent / "config"), help="a folder of configurations"
    )
    parser.add_argument("--config-name", default="maniskill_ppo_mlp", help="one of them, or a preset")
    parser.add_argument("overrides", nargs="*", help="key=value")
    given = parser.parse_args()
    sys.exit(main(["run", "--config-path", given.config_path, given.config_name, *given.overrides]))

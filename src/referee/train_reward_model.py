"""`python -m referee.train_reward_model`, a command line of RLinf's guides: see `referee.legacy.train_reward_model`."""

import sys

from referee.legacy.train_reward_model import main, options_of, parser

__all__ = ["main", "options_of", "parser"]

if __name__ == "__main__":
    sys.exit(main())

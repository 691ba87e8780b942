"""`python -m referee.train_reward_model`, a command line of RLinf's guides: see `referee.legacy.train_reward_model`."""

import sys

from referee.legacy.train_reward_model import job_of, main, parser

__all__ = ["job_of", "main", "parser"]

if __name__ == "__main__":
    sys.exit(main())

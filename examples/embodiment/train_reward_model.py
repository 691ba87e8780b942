"""Positive and negative trajectories → a reward model: a front door to `python -m referee.train_reward_model`."""

import sys

from referee.train_reward_model import main

if __name__ == "__main__":
    sys.exit(main())

"""Rollouts whose states are numbered, so that everything about a replay can be checked."""

import numpy as np

from referee.rl.rollout import Final, Rollout

FRAME = (2, 4, 4, 3)


class World:
    """Numbered states: environment i's k-th state is [i, k]; the reward of the step into it is k."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self.random, self.num_envs = np.random.default_rng(seed), num_envs
        self.now = np.zeros(num_envs, int)
        self.lived: list[list[tuple[int, int, bool, bool]]] = [[] for _ in range(num_envs)]

    def rollout(self, steps: int) -> Rollout:
        """The next steps, as a rollout."""
        rollout = object.__new__(Rollout)
        rollout.steps, rollout.num_envs = steps, self.num_envs
        rollout.begin()
        shape = (steps, self.num_envs)
        rollout.observations = {"states": np.zeros((*shape, 2), np.float32)}
        rollout.actions = np.zeros((*shape, 1), np.float32)
        rollout.rewards = np.zeros(shape, np.float32)
        rollout.terminated, rollout.truncated = np.zeros(shape, bool), np.zeros(shape, bool)
        rollout.success, rollout.versions = np.zeros(shape, bool), np.zeros(shape, np.int32)
        rollout.intervened, rollout.held = np.zeros(shape, bool), np.zeros(shape, bool)
        for t in range(steps):
            for i in range(self.num_envs):
                before = self.now[i]
                rollout.observations["states"][t, i] = i, before
                ends = self.random.random() < 0.2
                terminated = bool(ends and self.random.random() < 0.5)
                rollout.actions[t, i] = before
                rollout.rewards[t, i] = before + 1
                rollout.terminated[t, i], rollout.truncated[t, i] = terminated, ends and not terminated
                self.lived[i].append((before, before + 1, bool(ends), terminated))
                self.now[i] += 1
                if ends:
                    state = np.array([i, self.now[i]], np.float32)
                    rollout.finals.append(Final(t, i, {"states": state}))
                    self.now[i] += 1
        rollout.last = {"states": np.stack([np.arange(self.num_envs), self.now], axis=1).astype(np.float32)}
        return rollout


def frames(rollout: Rollout) -> np.ndarray:
    """A picture of each state that a step led to: its number in every pixel."""
    after = (rollout.actions[..., 0] + 1).astype(np.uint8).reshape(-1)
    return np.broadcast_to(after[:, None, None, None, None], (len(after), *FRAME))

"""The reward worker: looks at what the environments show and says what it is worth."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from referee.envs.contract import RefereeVectorEnv, StepResult, split_views, void_steps
from referee.errors import RefereeError
from referee.models import Artifact
from referee.models.contract import Verdict, frames_of
from referee.models.spec import MAIN_NAMES
from referee.rewards import FinalPictures, Gate, RewardManager, Scored, rules, score_finals, score_steps
from referee.rl.rollout import Pictures, Rollout

Drawn = FinalPictures | dict[str, np.ndarray]
Looked = tuple[np.ndarray, np.ndarray]
"""Features f32[n,·] and probabilities f32[n] of the frames that were judged, as `RewardManager.latest`."""


class RewardWorker:
    """Draws what must be judged while a rollout is made, and judges it afterwards in few large batches.

    `terminal`: the last state of each finished episode. `per_step`: every state. Where the verdict ends episodes
    (`terminate_on: model`), each state is judged at once. A state that an arm held in is never a success.
    """

    def __init__(
        self, manager: RewardManager, env: RefereeVectorEnv, steps: int, *, hold: int = 1, num_envs: int | None = None
    ) -> None:
        """hold: successive verdicts that end an episode, where they do.

        num_envs: of the rollouts that others draw for this worker, if not those of `env`.
        """
        num_envs = env.num_envs if num_envs is None else num_envs
        self.manager, self.options = manager, manager.options
        self.cameras = cameras_for(manager, env)
        self.gate: Gate = manager.gate(num_envs)
        self._env = env
        self._finals = FinalPictures(lambda ids: env.render_cameras(ids, final=True, cameras=self.cameras))
        self._shape = (steps, num_envs)
        self._pictures: dict[str, np.ndarray] = {}
        self._said: list[Verdict] = []
        self._looked: list[Looked] = []
        self._said_elsewhere: Verdict | None = None
        self._seconds = 0.0
        self._began = np.zeros(num_envs, bool)
        self._hold, self._held = hold, np.zeros(num_envs, np.int64)

    @property
    def eager(self) -> bool:
        """Whether every state is judged at once, because a verdict may end its episode."""
        return self.options.terminate_on == "model"

    @property
    def remembers(self) -> bool:
        """Whether what it draws depends on what it saw before."""
        return self.eager

    @property
    def _only_finals(self) -> bool:
        """Whether nothing but the last states of episodes is looked at."""
        return self.options.reward_mode == "terminal" and not self.eager

    def swap(self, artifact: Artifact, version: int) -> None:
        """Let another model judge from the next rollout on; gates over time begin anew."""
        if artifact.spec.cameras != self.manager.artifact.spec.cameras:
            raise RefereeError("a model that looks at other cameras cannot take over")
        self.manager.swap(artifact, version)
        self.gate = self.manager.gate(self._shape[1])

    # --- drawn here, judged elsewhere ---

    def drawn(self) -> Drawn:
        """What was drawn of the rollout that was watched, to be judged by another worker."""
        if self._only_finals:
            return self._finals.copy()
        return {name: images.copy() for name, images in self._pictures.items()}

    def take(
        self, drawn: Drawn, looked: Looked | None = None, verdict: Verdict | None = None, seconds: float = 0.0
    ) -> None:
        """What another worker drew, to be judged here; what another found in it; what that one said of it.

        seconds: that the other one spent on scoring.
        """
        self._looked = [] if looked is None else [looked]
        self._said_elsewhere, self._seconds = verdict, seconds
        if isinstance(drawn, FinalPictures):
            self._finals = drawn
        else:
            self._pictures = drawn

    @property
    def looked(self) -> Looked:
        """What the model found in the frames of the rollout that was judged, in the order of `sample`'s rows."""
        if not self._looked:
            return self.manager.latest
        features, probabilities = zip(*self._looked, strict=True)
        return np.concatenate(features), np.concatenate(probabilities)

    # --- during a rollout ---

    def begin(self) -> None:
        """A rollout begins."""
        self._finals.begin()
        self._said, self._looked, self._seconds = [], [], 0.0

    def watch(self, step: int, result: StepResult) -> np.ndarray | None:
        """See the result of a step; says which episodes end here by the verdict, bool[N], or None for none."""
        ended = result[2] | result[3]
        if self.eager:
            pictures = self._states(ended)
            self._keep(step, pictures)
            held = np.broadcast_to(void_steps(result[4]), ended.shape)
            verdict = rules.gated_verdict(self._judge(pictures), self._began, self.gate, held)
            self._looked.append(self.manager.latest)
            self._said.append(verdict)
            fires = rules.ends_episode(self.options, model=verdict.success, truth=None)
            assert fires is not None  # `eager`
            self._held, over = rules.streak(self._held, fires, self._hold)
            self._began = ended | over
            self._held[self._began] = 0
            return over & ~ended
        if self._only_finals:
            self._finals.add(step, ended)
            return None
        self._keep(step, self._states(ended))
        return None

    def _keep(self, step: int, pictures: Mapping[str, np.ndarray]) -> None:
        for name, images in pictures.items():
            if name not in self._pictures:
                self._pictures[name] = np.zeros((*self._shape, *images.shape[1:]), images.dtype)
            self._pictures[name][step] = images

    def score(self, rollout: Rollout) -> Scored:
        """What the model says of the rollout that was watched."""
        scored = self._score(rollout)
        return replace(scored, version=self.manager.version, seconds=self._seconds)

    def _score(self, rollout: Rollout) -> Scored:
        ended = rollout.terminated | rollout.truncated
        if self.eager:
            return self._score_said(ended)
        if self._only_finals:
            return score_finals(self._finals, self._shape, judge=self._judge, pay=self.manager.pay, held=rollout.held)
        return score_steps(
            self._pictures, ended, judge=self._judge, pay=self.manager.pay, gate=self.gate, held=rollout.held
        )

    def sample(self, count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """At most `count` of the rollout's judged frames, drawn evenly: uint8[m,V,H,W,3], and their rows int[m].

        The rows are those of `looked`, and of `judged_truth`.
        """
        if self._only_finals:
            pictures: Mapping[str, np.ndarray] = self._finals.pictures()
        else:
            states = self._shape[0] * self._shape[1]
            pictures = {name: images.reshape(states, *images.shape[2:]) for name, images in self._pictures.items()}
        if not pictures:
            return np.zeros((0, 0, 0, 0, 3), np.uint8), np.zeros(0, np.int64)
        there = len(next(iter(pictures.values())))
        rows = np.sort(random.permutation(there)[:count])
        chosen = {name: images[rows] for name, images in pictures.items()}
        return frames_of(chosen, self.manager.artifact.spec.cameras, self.cameras), rows

    def judged_truth(self, scored: Scored, rollout: Rollout) -> np.ndarray:
        """bool[n]: whether the frames that were looked at are true successes."""
        return self._rows(rollout.success, scored)

    def judged_held(self, scored: Scored, rollout: Rollout) -> np.ndarray:
        """bool[n]: whether an arm held there, so that nobody knows what is true of them."""
        return self._rows(rollout.held, scored)

    def _rows(self, values: np.ndarray, scored: Scored) -> np.ndarray:
        return values[scored.judged] if self._only_finals else values.reshape(-1)

    def judged(self, scored: Scored) -> Pictures:
        """The frames of the rollout that was scored, of all cameras that the model looks at."""
        if self._only_finals:
            pictures: Mapping[str, np.ndarray] = self._finals.pictures()
        else:
            pictures = {name: images[scored.judged] for name, images in self._pictures.items()}
        if not scored.judged.any():
            return Pictures(scored.judged, np.zeros((0, 0, 0, 0, 3), np.uint8))
        return Pictures(scored.judged, frames_of(pictures, self.manager.artifact.spec.cameras, self.cameras))

    def judge_episode(
        self, frames: np.ndarray, *, whole: bool = False, held: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """What is paid for the steps of a recorded episode f32[t], and which of their states are judged bool[t].

        frames: uint8[T,V,H,W,3] of the states that its steps led to; held: bool[T], where an arm held in them. Where
        the verdict ends episodes, t may be less than T, unless the `whole` is wanted.
        """
        verdict = self._judge(split_views(frames))
        every, steps = self.options.reward_mode == "per_step", len(frames)
        verdict = self._gated(verdict, np.arange(steps) == 0, held, every=every or self.eager)
        if self.eager and verdict.success is not None and not whole:
            steps = rules.first_streak(verdict.success, self._hold) or steps
        judged = np.full(steps, every)
        judged[-1] = True
        return np.where(judged, self.manager.pay(verdict)[:steps], np.float32(0)), judged

    def rejudge(
        self, frames: np.ndarray, began: np.ndarray, held: np.ndarray, *, cameras: tuple[str, ...] | None = None
    ) -> np.ndarray:
        """f32[n]: what the model pays for frames uint8[n,V,H,W,3] that were lived in this order.

        began: bool[n], where the frame's episode begins, for the gate over time. held: bool[n], where an arm held.
        cameras: of the frames, if not those that the model looks at.
        """
        verdict = self.manager.judge(split_views(frames), cameras=cameras or self.cameras)
        return self.manager.pay(self._gated(verdict, began, held, every=self.options.reward_mode == "per_step"))

    def _gated(self, verdict: Verdict, began: np.ndarray, held: np.ndarray | None, *, every: bool) -> Verdict:
        """A verdict on frames that were lived in this order; if on every state, by a gate that begins where they do."""
        verdict = rules.withhold(verdict, held)
        if not every or verdict.success is None:
            return verdict
        stalled = None if held is None else held[:, None]
        fires = rules.gated(verdict.success[:, None], began[:, None], self.manager.gate(1), stalled)
        return replace(verdict, success=fires[:, 0])

    def _score_said(self, ended: np.ndarray) -> Scored:
        """The same of states that were judged on the way; in terminal mode, the last ones are paid for."""
        names = ("score", "probability", "success")
        said = Verdict(*(np.stack([getattr(each, name) for each in self._said]) for name in names))
        judged = ended.copy() if self.options.reward_mode == "terminal" else np.ones(self._shape, bool)
        rewards = np.where(judged, self.manager.pay(said), np.float32(0))
        return Scored(rewards, judged, said.success, said.probability)

    def _states(self, ended: np.ndarray) -> dict[str, np.ndarray]:
        """Pictures of the states that the step led to: of its own last state where an episode ended."""
        pictures = dict(self._env.render_cameras(cameras=self.cameras))
        ids = np.flatnonzero(ended)
        if len(ids):
            for name, images in self._env.render_cameras(ids, final=True, cameras=self.cameras).items():
                pictures[name] = pictures[name].copy()
                pictures[name][ids] = images
        return pictures

    def _judge(self, pictures: Mapping[str, np.ndarray]) -> Verdict:
        said, self._said_elsewhere = self._said_elsewhere, None
        if said is not None:
            return said
        began = time.perf_counter()
        verdict = self.manager.judge(pictures, cameras=self.cameras)
        self._seconds += time.perf_counter() - began
        return verdict

    def save_state(self) -> dict[str, np.ndarray]:
        """What the verdicts of episodes under way depend on."""
        return {**self.gate.save_state(), "began": self._began.copy(), "held": self._held.copy()}

    def restore_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from a saved state."""
        self._began, self._held = state["began"].copy(), state["held"].copy()
        self.gate.restore_state({name: value for name, value in state.items() if name not in ("began", "held")})

    # --- the documented names ---

    def init_worker(self) -> None:
        """Nothing is left to do: a worker is ready once it is made."""

    def compute_rewards(self, observations: Mapping[str, np.ndarray]) -> np.ndarray:
        """f32[n]: what the model pays for observations, each by itself."""
        return self.manager.compute_rewards(observations, cameras=self._names(observations))

    compute_batch_rewards = compute_rewards

    def to_device(self, device: str) -> None:
        """Move the model."""
        self.manager.to_device(device)

    def save_checkpoint(self, folder: Path | str) -> None:
        """A copy of the artifact that pays."""
        self.manager.artifact.save(Path(folder))

    def _names(self, observations: Mapping[str, Any]) -> tuple[str, ...] | None:
        extra = observations.get("extra_view_images")
        views = 1 + (0 if extra is None else extra.shape[1])
        return self.cameras if views == len(self.cameras) else self._env.cameras[:views]


def cameras_for(manager: RewardManager, env: RefereeVectorEnv, section: str = "env.train") -> tuple[str, ...]:
    """The cameras of the environment that the model looks at. section: of the configuration, for messages."""
    spec = manager.artifact.spec
    if spec.resize == "none" and not spec.crop and env.image_size != spec.image_size:
        raise RefereeError(
            f"the reward model takes {spec.image_size}x{spec.image_size} px, but {section}.image_size is "
            f"{env.image_size}: make them the same"
        )
    found = []
    for name in spec.cameras:
        camera = env.cameras[0] if name in MAIN_NAMES and name not in env.cameras else name
        if camera not in env.cameras:
            raise RefereeError(
                f"the reward model looks at camera {name!r}, but {section}.cameras are {', '.join(env.cameras)}: add it"
            )
        found.append(camera)
    return tuple(found)

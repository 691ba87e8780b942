"""The reward of an image classifier: it scores the last states of episodes, or every state."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from referee.config.schema import RewardConfig, RewardModelConfig
from referee.envs.contract import RefereeVectorEnv, StepResult, split_views, void_steps
from referee.errors import ConfigError, RefereeError
from referee.models import Artifact, ModelSpec
from referee.models.contract import Verdict, frames_of
from referee.models.spec import MAIN_NAMES
from referee.rewards import rules
from referee.rewards.guards import weakness
from referee.rewards.manager import RewardManager
from referee.rewards.rules import Gate, RewardOptions
from referee.rewards.score_rollout import FinalPictures, Judge, RolloutFrames, Scores, score_finals, score_steps
from referee.rewards.source import Features, RemoteScores, Steps, relabel

Drawn = FinalPictures | dict[str, np.ndarray]
OF_A_MODEL = frozenset(ModelSpec.__dataclass_fields__)
_log = logging.getLogger(__name__)


class ClassifierReward:
    """A RewardSource: draws what must be scored while a rollout is made, and scores it afterwards in large batches.

    `terminal`: the last state of each finished episode. `per_step`: every state. Where the verdict ends episodes
    (`terminate_on: model`), each state is scored at once. A state in which an arm stalled is never a success.
    """

    learned = says_success = True

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
        self._found: list[Features] = []
        self._remote: RemoteScores | None = None
        self._since = manager.seconds
        self._began = np.zeros(num_envs, bool)
        self._hold, self._held = hold, np.zeros(num_envs, np.int64)

    @property
    def ends_episodes(self) -> bool:
        """See RewardSource."""
        return self.options.terminate_on == "model"

    @property
    def remembers(self) -> bool:
        """See RewardSource."""
        return self.ends_episodes

    @property
    def scored_by_others(self) -> bool:
        """See RewardSource."""
        return not self.ends_episodes

    @property
    def version(self) -> int:
        """See RewardSource."""
        return self.manager.version

    @property
    def artifact(self) -> Artifact:
        """See RewardSource."""
        return self.manager.artifact

    @property
    def note(self) -> str:
        """See RewardSource."""
        scorer = self.manager.artifact.scorer
        if scorer is None or scorer.backend == "torch":
            return ""
        return (
            f"the reward model runs on {scorer.name}; its probabilities are within {scorer.difference:.3f} of torch's"
        )

    @property
    def _only_finals(self) -> bool:
        """Whether nothing but the last states of episodes is looked at."""
        return self.options.reward_mode == "terminal" and not self.ends_episodes

    def share(self, num_envs: int) -> ClassifierReward:
        """See RewardSource."""
        return ClassifierReward(self.manager, self._env, self._shape[0], hold=self._hold, num_envs=num_envs)

    def swap(self, artifact: Artifact, version: int) -> None:
        """Let another model judge from the next rollout on; gates over time begin anew."""
        if artifact.spec.cameras != self.manager.artifact.spec.cameras:
            raise RefereeError("a model that looks at other cameras cannot take over")
        self.manager.swap(artifact, version)
        self.gate = self.manager.gate(self._shape[1])

    # --- drawn in one process, scored in another ---

    def drawn(self) -> Drawn:
        """See RewardSource."""
        if self._only_finals:
            return self._finals.copy()
        return {name: images.copy() for name, images in self._pictures.items()}

    def score_at_once(self, rollout: Steps) -> Scores | None:
        """See RewardSource."""
        return self.score(rollout) if self.ends_episodes else None

    def features(self) -> Features | None:
        """See RewardSource."""
        return self.looked if self.ends_episodes else None

    def take(self, drawn: Drawn, features: Features | None = None, remote: RemoteScores | None = None) -> None:
        """See RewardSource."""
        features = features if remote is None else remote.features
        self._found = [] if features is None else [features]
        self._remote, self._since = remote, self.manager.seconds
        if isinstance(drawn, FinalPictures):
            self._finals = drawn
        else:
            self._pictures = drawn

    @property
    def looked(self) -> Features:
        """What the model found in the frames of the rollout that was scored, in the order of `sample`'s rows."""
        if not self._found:
            return self.manager.latest
        features, probabilities = zip(*self._found, strict=True)
        return np.concatenate(features), np.concatenate(probabilities)

    # --- during a rollout ---

    def begin(self) -> None:
        """A rollout begins."""
        self._finals.begin()
        self._said, self._found, self._since = [], [], self.manager.seconds

    def watch(self, step: int, result: StepResult) -> np.ndarray | None:
        """See the result of a step; says which episodes end here by the verdict, bool[N], or None for none."""
        ended = result[2] | result[3]
        if self.ends_episodes:
            pictures = self._states(ended)
            self._keep(step, pictures)
            held = np.broadcast_to(void_steps(result[4]), ended.shape)
            verdict = rules.gated_verdict(
                self.manager.judge(pictures, cameras=self.cameras), self._began, self.gate, held
            )
            self._found.append(self.manager.latest)
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

    def relabel(self, rollout: Steps, scores: Scores | None = None) -> Scores:
        """See RewardSource."""
        return relabel(rollout, self.score(rollout) if scores is None else scores, self.options)

    def score(self, rollout: Steps) -> Scores:
        """What the model says of the rollout that was watched."""
        ended, remote = rollout.terminated | rollout.truncated, self._remote
        self._remote = None
        judge: Judge = partial(self.manager.judge, cameras=self.cameras)
        if remote is not None:
            verdict = remote.verdict
            judge = lambda frames: verdict  # noqa: E731 - where a worker elsewhere has scored them
        if self.ends_episodes:
            scores = self._score_said(ended)
        elif self._only_finals:
            scores = score_finals(self._finals, self._shape, judge=judge, pay=self.manager.pay, held=rollout.held)
        else:
            scores = score_steps(
                self._pictures, ended, judge=judge, pay=self.manager.pay, gate=self.gate, held=rollout.held
            )
        seconds = self.manager.seconds - self._since if remote is None else remote.seconds
        return replace(scores, version=self.manager.version, seconds=seconds)

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

    def judged_truth(self, scored: Scores, rollout: Steps) -> np.ndarray:
        """bool[n]: whether the frames that were looked at are true successes."""
        return self._rows(rollout.success, scored)

    def judged_held(self, scored: Scores, rollout: Steps) -> np.ndarray:
        """bool[n]: whether an arm held there, so that nobody knows what is true of them."""
        return self._rows(rollout.held, scored)

    def _rows(self, values: np.ndarray, scored: Scores) -> np.ndarray:
        return values[scored.judged] if self._only_finals else values.reshape(-1)

    def scored_frames(self, scores: Scores) -> RolloutFrames:
        """See RewardSource."""
        if self._only_finals:
            pictures: Mapping[str, np.ndarray] = self._finals.pictures()
        else:
            pictures = {name: images[scores.judged] for name, images in self._pictures.items()}
        if not scores.judged.any():
            return RolloutFrames(scores.judged, np.zeros((0, 0, 0, 0, 3), np.uint8))
        return RolloutFrames(scores.judged, frames_of(pictures, self.manager.artifact.spec.cameras, self.cameras))

    def metrics(self) -> dict[str, float]:
        """See RewardSource."""
        return {"reward/version": float(self.version)}

    def score_episode(
        self, frames: np.ndarray, *, whole: bool = False, held: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """See RewardSource."""
        frames = frames[1:]  # no step led to the first state
        verdict = self.manager.judge(split_views(frames), cameras=self.cameras)
        every, steps = self.options.reward_mode == "per_step", len(frames)
        verdict = self._gated(verdict, np.arange(steps) == 0, held, every=every or self.ends_episodes)
        if self.ends_episodes and verdict.success is not None and not whole:
            steps = rules.first_streak(verdict.success, self._hold) or steps
        judged = np.full(steps, every)
        judged[-1] = True
        return np.where(judged, self.manager.pay(verdict)[:steps], np.float32(0)), judged

    def rescore(
        self, frames: np.ndarray, began: np.ndarray, held: np.ndarray, *, cameras: tuple[str, ...] | None = None
    ) -> np.ndarray:
        """See RewardSource."""
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

    def _score_said(self, ended: np.ndarray) -> Scores:
        """The same of states that were judged on the way; in terminal mode, the last ones are paid for."""
        names = ("score", "probability", "success")
        said = Verdict(*(np.stack([getattr(each, name) for each in self._said]) for name in names))
        judged = ended.copy() if self.options.reward_mode == "terminal" else np.ones(self._shape, bool)
        rewards = np.where(judged, self.manager.pay(said), np.float32(0))
        return Scores(rewards, judged, said.success, said.probability)

    def _states(self, ended: np.ndarray) -> dict[str, np.ndarray]:
        """Pictures of the states that the step led to: of its own last state where an episode ended."""
        pictures = dict(self._env.render_cameras(cameras=self.cameras))
        ids = np.flatnonzero(ended)
        if len(ids):
            for name, images in self._env.render_cameras(ids, final=True, cameras=self.cameras).items():
                pictures[name] = pictures[name].copy()
                pictures[name][ids] = images
        return pictures

    def save_state(self) -> dict[str, np.ndarray]:
        """What the verdicts of episodes under way depend on."""
        return {**self.gate.save_state(), "began": self._began.copy(), "held": self._held.copy()}

    def restore_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from a saved state."""
        self._began, self._held = state["began"].copy(), state["held"].copy()
        self.gate.restore_state({name: value for name, value in state.items() if name not in ("began", "held")})

    def state_key(self, worker: int) -> str:
        """See RewardSource."""
        return f"reward{worker or ''}."

    def account(self) -> dict[str, float]:
        """See RewardSource."""
        return {}


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


# --- how it is made ---


def make(
    config: RewardConfig, env: RefereeVectorEnv, steps: int, *, hold: int = 1, draws_only: bool = False
) -> ClassifierReward:
    """See `make_reward`."""
    assert isinstance(config.model, RewardModelConfig)
    names = RewardOptions.__dataclass_fields__
    options = RewardOptions(**{name: getattr(config, name) for name in names})
    model = open_model(config.model)
    if model.doubt and not draws_only:
        _log.warning("the reward model %s: %s", config.model.model_path, model.doubt)
    options = _guarded(options, model, hold=config.hold_terminal, quiet=draws_only)
    idle = draws_only and options.terminate_on != "model"
    manager = RewardManager(
        model,
        options,
        backend="torch" if idle else config.model.backend,
        int8=config.model.int8 and not idle,
        debug_save_dir=config.model.debug_save_dir,
    )
    return ClassifierReward(manager, env, steps, hold=hold)


def _guarded(options: RewardOptions, model: Artifact, *, hold: bool, quiet: bool) -> RewardOptions:
    """The same, or terminal mode where the model's own validation is too weak to judge every state.

    quiet: whoever judges has said it already.
    """
    say = _log.debug if quiet else _log.warning
    reason = weakness(model.calibration) if options.reward_mode == "per_step" else None
    if reason is None:
        return options
    if not hold:
        say("each state is judged, but %s: reward.hold_terminal=true would judge the last states only", reason)
        return options
    say("the last states of episodes are judged instead of each one: %s", reason)
    return replace(options, reward_mode="terminal")


def open_model(config: RewardModelConfig) -> Artifact:
    """The artifact, or weights alone; a warning names the other keys where they differ from what is saved."""
    if not config.model_path:
        what = "is not given" if config.model_path is None else "is empty"
        raise ConfigError(
            f"reward.model.model_path {what}: name the artifact that pays, as logs/RUN/checkpoints/best_model"
        )
    given = set_fields(config)
    return Artifact.open(config.model_path, ModelSpec(**given) if given else None, given)


def set_fields(model: RewardModelConfig) -> dict[str, Any]:
    """The fields of a `ModelSpec` that keys under `reward.model` set."""
    return {name: value for name, value in vars(model).items() if value is not None and name in OF_A_MODEL}

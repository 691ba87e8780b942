"""The learned reward of a run: it pays, is watched without the truth, is compared with it, and is refined."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from referee.config.schema import RewardConfig
from referee.envs import RefereeVectorEnv
from referee.models import Artifact
from referee.models.contract import frames_of
from referee.refine.loop import PER_LOOK, Refiner, Round
from referee.rewards import Alarm, RewardManager, Scored, TruthBeside, rules
from referee.rewards.history import Windows
from referee.rl.policy import Player
from referee.rl.rollout import Rollout
from referee.workers.actor import ActorWorker
from referee.workers.delivery import Delivery, Said
from referee.workers.learner import LearnerWorker
from referee.workers.reward import RewardWorker

MINED_STEPS = 8
"""Steps of an episode in which no task can be done."""
SHEETS = "payment.sheets"
"""In a checkpoint: what had been asked, by its names in the book."""
_log = logging.getLogger(__name__)


class Payment:
    """Who pays for the steps of a policy, and who looks at that."""

    def __init__(
        self, config: RewardConfig, rewards: Sequence[RewardWorker], alarm: Alarm | None, refiner: Refiner | None, *,
        seed: int,
    ) -> None:  # fmt: skip
        """rewards: a worker for each of those who act; they share a model."""
        self.config, self.rewards, self.alarm, self.refiner = config, tuple(rewards), alarm, refiner
        self.truth = TruthBeside()
        self.swaps: list[int] = []
        """Steps at which a better model took over."""
        self._seed = seed

    @property
    def reward(self) -> RewardWorker:
        """The worker, where one acts; the first of them."""
        return self.rewards[0]

    @property
    def manager(self) -> RewardManager:
        """What judges."""
        return self.reward.manager

    def take(self, delivery: Delivery, said: Said | None) -> None:
        """What a crew drew, to be judged here; or what a judge said of it already."""
        drawn = delivery.drawn
        if drawn is None:
            return
        assert not isinstance(drawn, Windows)
        reward = self.rewards[delivery.who]
        if said is None:
            reward.take(drawn, delivery.looked)
        else:
            reward.take(drawn, said.looked, said.verdict, said.seconds)

    def pay(
        self, rollout: Rollout, actor: ActorWorker | LearnerWorker, step: int, scored: Scored | None = None, *,
        who: int = 0,
    ) -> dict[str, float]:  # fmt: skip
        """Let the reward model say what a rollout is worth; the truth is only written down beside it.

        step: of the training, at the rollout's end. scored: what was said already, while the rollout was made. who: of
        those who act, made it.
        """
        reward = self.rewards[who]
        with actor.threads.all_at_work():  # the simulation does not need the cores now
            scored = reward.score(rollout) if scored is None else scored
        actor.update_rewards(rollout, scored, reward.options)
        if isinstance(actor, LearnerWorker) and actor.wants_pictures:
            rollout.judged = reward.judged(scored)
        numbers = {
            "time/compute_model_rewards": scored.seconds_per_step(len(self.rewards)),
            "reward/version": float(self.manager.version),
        }
        random = np.random.default_rng((self._seed, step, who) if who else (self._seed, step))
        if self.alarm is not None:
            numbers |= self._watch(self.alarm, reward, step, random)
        self._offer(reward, scored, rollout, random)
        if scored.success is None:
            return numbers
        self.truth.reset()
        known = rules.usable(scored.judged, rollout.held)
        self.truth.add(scored.success[known], rollout.success[known])
        return numbers | self.truth.log()

    def _watch(self, alarm: Alarm, reward: RewardWorker, step: int, random: np.random.Generator) -> dict[str, float]:
        """Let the alarm look at some of the frames that were judged."""
        start, never = time.perf_counter(), alarm.first_at is None
        images, rows = reward.sample(self.config.alarm.frames, random)
        threshold = self.manager.threshold
        numbers = alarm.look(*reward.looked, images, rows, step, threshold) if len(rows) else {}
        if never and alarm.first_at is not None:
            advice = (
                "judge the policy yourself, or label such frames and train the model again (reward.refine.enabled=true)"
            )
            if self.refiner is not None:
                advice = "refinement asks about such frames"
            _log.warning("alarm at step %s: %s. Do not trust its word: %s", f"{step:,}", alarm.reason(), advice)
        return {**numbers, "time/alarm": time.perf_counter() - start}

    # --- refinement ---

    def _offer(self, reward: RewardWorker, scored: Scored, rollout: Rollout, random: np.random.Generator) -> None:
        """Show some of the judged frames to the refiner."""
        if self.refiner is None or not self.refiner.left:
            return
        images, rows = reward.sample(PER_LOOK, random)
        if len(rows):
            known = rules.usable(np.ones(len(rows), bool), reward.judged_held(scored, rollout)[rows])
            images, rows = images[known], rows[known]
        if len(rows):
            summary, probability = reward.looked
            truth = reward.judged_truth(scored, rollout)
            self.refiner.watch(images, summary[rows], probability[rows], truth[rows])

    def hear(self, pictures: Mapping[str, np.ndarray], truth: np.ndarray) -> None:
        """The last states of evaluation episodes, right after they were judged."""
        if self.refiner is not None and self.refiner.left:
            self.refiner.watch(self._views(pictures), *self.manager.latest, truth)

    def _views(self, pictures: Mapping[str, np.ndarray]) -> np.ndarray:
        """uint8[n,V,H,W,3]: what the model looks at."""
        return frames_of(pictures, self.manager.artifact.spec.cameras, self.reward.cameras)

    def refine(self, step: int, iteration: int) -> Round | None:
        """A round of questions and learning, where one is due; a better model pays from the next rollout on."""
        due = self.refiner is not None and iteration % self.config.refine.interval == 0
        return self._round(step) if due else None

    def _round(self, step: int) -> Round | None:
        assert self.refiner is not None
        done = self.refiner.round(step)
        if done is not None and done.swapped:
            self._swap(self.refiner.artifact, step)
        return done

    def _swap(self, artifact: Artifact, step: int) -> None:
        assert self.refiner is not None
        self._let_judge(artifact, self.refiner.version)
        self.swaps.append(step)
        if self.alarm is not None:
            self.alarm.take(artifact)

    def _let_judge(self, artifact: Artifact, version: int) -> None:
        for reward in self.rewards:
            reward.swap(artifact, version)

    def mine(self, env: RefereeVectorEnv, player: Player, seed: int) -> None:
        """Take frames of the policy's first steps in an environment as failures, and learn from them.

        Nobody is asked: in so few steps no task is done. The frames are spread over the first `MINED_STEPS`.
        """
        refiner, wanted = self.refiner, self.config.refine.mine
        if refiner is None or not wanted:
            return
        observation, _ = env.reset(seed=seed)
        images, said = [], []
        for _ in range(MINED_STEPS):
            player.see(observation)
            observation, *_ = env.step(player())
            pictures = env.render_cameras(cameras=self.reward.cameras)
            images.append(self._views(pictures))
            verdict = self.manager.judge(pictures, cameras=self.reward.cameras)
            said.append(np.asarray(verdict.probability))
        rows = np.linspace(0, len(images) * env.num_envs - 1, wanted).round().astype(int)
        refiner.mine(np.concatenate(images)[rows], np.concatenate(said)[rows], 0)
        self._round(0)

    # --- keeping ---

    def save_state(self) -> dict[str, np.ndarray]:
        """Everything that later verdicts depend on."""
        state = {
            _prefix(who) + name: value
            for who, reward in enumerate(self.rewards)
            for name, value in reward.save_state().items()
        }
        if self.alarm is not None:
            state |= {f"alarm.{name}": value for name, value in self.alarm.save_state().items()}
        if self.refiner is not None:
            state[SHEETS] = np.frombuffer("\n".join(self.refiner.book.ids).encode(), np.uint8)
        return state | {"payment.version": np.array(self.manager.version), "payment.swaps": np.array(self.swaps, int)}

    def restore_state(self, state: Mapping[str, np.ndarray], step: int) -> None:
        """Go on from the state that was saved at a step; the model of that version is in the refiner's folder."""
        version = int(state.get("payment.version", 0))
        if self.refiner is not None:
            ids = state[SHEETS].tobytes().decode().split() if SHEETS in state else None
            artifact = self.refiner.rewind(step, version, ids)
            self.swaps = state["payment.swaps"].tolist() if "payment.swaps" in state else []
            if version:
                self._let_judge(artifact, version)
                if self.alarm is not None:
                    self.alarm.take(artifact)
        for who, reward in enumerate(self.rewards):
            if gate := _within(state, _prefix(who)):
                reward.restore_state(gate)
        watched = _within(state, "alarm.")
        if self.alarm is not None and watched:
            self.alarm.restore_state(watched)


def refined_folder(run: Path) -> Path:
    """Where a run keeps its questions, answers and versions."""
    return run / "refine"


def _prefix(who: int) -> str:
    return f"reward{who or ''}."


def _within(state: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}

"""The loop: watch what is judged, ask about a little of it, learn from the answers, and take over only if better."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from referee import checksums, files, plain
from referee.config.declare import key
from referee.config.reward_training import SeedConfig
from referee.config.schema import RefineRoundsConfig
from referee.errors import RefereeError
from referee.labels.log import FAILURE, SUCCESS, UNKNOWN
from referee.metrics.calibration import probability
from referee.models import Artifact
from referee.refine.book import MINED, Book, Sheet
from referee.refine.labellers import LABELLERS, Labeller
from referee.refine.retrain import Base, Compared, Labelled, retrain
from referee.refine.select import Candidates, choose
from referee.rewards.scored import ScoredFrames

POOL = 4096
"""Judged frames from which questions are chosen, at most."""
PER_LOOK = 512
"""Of them, from one look."""
RECENT = 3
"""The latest sheets of which frames drawn evenly are answered: these are held out, to compare models on; older ones are
learned from."""
HELD_OUT = 8
"""So many of them, and so many answers to learn from, are needed before a model is retrained."""
SHARES = {"random": 1 / 3, "firing": 1 / 3, "unsure": 1 / 6, "strange": 1 / 6}
ROUNDS, VERSIONS, BOOK = "rounds.jsonl", "versions", "asked"


@dataclass(frozen=True, kw_only=True)
class RefineOptions(RefineRoundsConfig, SeedConfig):
    """How much is asked, and how it is learned: keys of `reward.refine` with a seed, and threads of a retraining."""

    threads: int = key(0, "of a retraining; 0 = the cores", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.budget < self.ask:
            raise RefereeError(
                f"refining asks about 2 frames or more, within its budget: not {self.ask} of {self.budget}"
            )


@dataclass(frozen=True, kw_only=True)
class Round:
    """What one round did."""

    step: int
    version: int
    """Of the model that judges after it."""
    asked: int
    answered: int
    """Answers in all by now, of frames that somebody was asked about."""
    fooled: int
    """Of the frames asked about now, those called a success that are none."""
    missed: int
    """And those called no success that are one."""
    swapped: bool
    compared: Compared | None
    """The model before and the retrained one; None where none was retrained."""
    seconds: dict[str, float]
    """Of asking, training and auditing."""
    sheet: str = ""
    """What was asked, by its name in the book."""
    threshold: float | None = None
    """From which probability on the model that was asked about called a frame a success."""

    def heard(self, sheets: Mapping[str, Sheet]) -> Round:
        """The same with the answers that are there by now: some come when the next rounds are over."""
        sheet = sheets.get(self.sheet)
        if sheet is None or self.threshold is None:
            return self
        fooled, missed = mistakes(sheet, self.threshold)
        return replace(self, fooled=fooled, missed=missed)

    @classmethod
    def from_json(cls, line: str) -> Round:
        """The inverse of `asdict` and `sealed_line`; ChecksumError or ValueError if it is none."""
        return plain.build(cls, checksums.unsealed(line)[0])

    def numbers(self) -> dict[str, float]:
        """Under their log names."""
        plain = ("version", "asked", "answered", "fooled", "missed", "swapped")
        found = {f"refine/{name}": float(getattr(self, name)) for name in plain}
        if self.compared is not None:
            for name in ("loss", "accuracy", "val_auroc"):
                before, after = getattr(self.compared, name)
                found |= {f"refine/{name}_before": before, f"refine/{name}_after": after}
        return found | {f"time/refine_{name}": value for name, value in self.seconds.items()}


class Scoring(Protocol):
    """An environment that a model scores: `RewardModelWrapper` and `RewardModelVecEnv` of Stable-Baselines3."""

    def take_scored(self) -> ScoredFrames | None:
        """A sample of the frames that were scored since the last call."""
        ...

    def swap(self, artifact: Artifact) -> None:
        """Let another model score from the next step on."""
        ...


class Refiner:
    """Repairs a reward model with few labels, while a policy trains on it.

    >>> env = RewardModelWrapper(env, model, mode="per_step")
    >>> refiner = Refiner(model, "refined", "terminal", RefineOptions(budget=96), mode="per_step")
    >>> for step in range(100_000):
    ...     env.step(policy(observation))
    ...     if step % 2048 == 2047:
    ...         refiner.update(env, step)  # asks, retrains, and swaps the model if the new one is better

    `artifact` is the model that scores now. The folder keeps asked/ (questions and answers), versions/, rounds.jsonl.
    A loop without the wrapper calls `look` or `watch` with the frames, then `round`.
    """

    def __init__(
        self,
        artifact: Artifact | Path | str,
        folder: Path | str,
        labeller: str | Labeller = "log",
        options: RefineOptions | None = None,
        *,
        mode: str = "terminal",
        task: str = "",
        data: Path | str | None = None,
    ) -> None:
        """labeller: `terminal` (a person at the keyboard), `log` (answers come later, through the label log), `truth`
            (the simulation), or an object with `ask`.
        mode: what the model scores, as in the wrapper: `terminal` or `per_step`.
        data: a folder with the model's train.pt and val.pt; None: those that it was trained on.
        """
        artifact = artifact if isinstance(artifact, Artifact) else Artifact.open(artifact)
        if mode not in ("terminal", "per_step"):
            raise RefereeError(f"mode is {mode!r}: give terminal or per_step")
        if isinstance(labeller, str) and labeller not in LABELLERS:
            raise RefereeError(f"labeller is {labeller!r}: give {', '.join(LABELLERS)}, or an object with ask()")
        self.artifact, self.folder = artifact, Path(folder)
        self.options = options = options or RefineOptions()
        self.version = int(artifact.provenance.get("refined", {}).get("version", 0))
        self.book = Book(self.folder / BOOK, artifact.spec.cameras, task=task)
        self.rounds = read_rounds(self.folder)
        self._base = Base.of(artifact, None if data is None else Path(data))
        self.labeller: Labeller = LABELLERS[labeller]() if isinstance(labeller, str) else labeller
        self._mode = mode
        self._pool: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]] = []
        self._learned_from = 0

    def rewind(self, step: int, version: int, ids: Sequence[str] | None = None) -> Artifact:
        """Go back to how it was at a step: the version that judged then, and only what was asked by then.

        ids: of the sheets that were there, if they are known.
        """
        self.book.rewind(step, ids)
        kept = None if ids is None else {"", *ids}
        rounds = [each for each in self.rounds if each.step <= step and (kept is None or each.sheet in kept)]
        if rounds != self.rounds:
            self.rounds = rounds
            self._write()  # what is forgotten must not come back with the next resume
        if version:
            self._load(version)
        return self.artifact

    def take_up(self) -> bool:
        """Go on where the folder ends, with the version that judged last; False where it is empty."""
        if self.rounds and (self.folder / VERSIONS / f"v{self.rounds[-1].version}").is_dir():
            self._load(self.rounds[-1].version)
        self._learned_from = max((each.answered for each in self.rounds if each.compared is not None), default=0)
        return bool(self.book.ids)

    def _load(self, version: int) -> None:
        self.artifact, self.version = Artifact.load(self.folder / VERSIONS / f"v{version}"), version

    def ask_again(self) -> None:
        """Ask about the sheets to which nobody has said anything."""
        for sheet in self.book.sheets():
            if (sheet.answers == UNKNOWN).all():
                self.labeller.ask(self.book, sheet, None)

    def place(self) -> Path:
        """Where the version that judges now lies."""
        return self.folder / VERSIONS / f"v{self.version}"

    @property
    def left(self) -> int:
        """Frames that may still be asked about."""
        return max(0, self.options.budget - self.book.asked)

    def watch(
        self, images: np.ndarray, summary: np.ndarray, probability: np.ndarray, truth: np.ndarray | None = None
    ) -> None:
        """See frames that were judged: uint8[n,V,H,W,3], f32[n,e], f32[n]; truth bool[n] from a simulation."""
        if len(images):
            self._pool.append((images, summary, probability, truth))
        while sum(len(each[2]) for each in self._pool[1:]) >= POOL:
            self._pool.pop(0)

    def look(self, images: np.ndarray, truth: np.ndarray | None = None) -> None:
        """The same for frames uint8[n,H,W,3] or uint8[n,V,H,W,3] that are still to be scored."""
        images = images[:, None] if images.ndim == 4 else images
        logits, summary = self.artifact.seen(images)
        self.watch(images, summary, probability(logits, self.artifact.calibration.temperature), truth)

    def update(self, env: Scoring, step: int) -> Round | None:
        """Watch what an environment scored since the last call, do a round, and swap its model for a better one.

        None where nothing was scored or there is nothing to do. `Round.swapped` says whether the model changed.
        """
        frames = env.take_scored()
        if frames is not None:
            self.watch(frames.images, frames.summary, frames.probability, frames.truth)
        done = self.round(step)
        if done is not None and done.swapped:
            env.swap(self.artifact)
        return done

    def mine(self, images: np.ndarray, probability: np.ndarray, step: int) -> None:
        """Take frames of a policy's first steps as failures, which nobody is asked about."""
        sheet = self.book.add(Sheet(images, probability, (MINED,) * len(images), step, self.version))
        self.book.answer(sheet, [False] * len(images), source="rule", who="first steps")

    def round(self, step: int) -> Round | None:
        """Ask, learn, compare; None where there is nothing to do. `artifact` is the better model afterwards."""
        began = time.perf_counter()
        sheet = self._ask(step)
        asked = time.perf_counter()
        learn, recent, ends = self._answers()
        answers = len(learn) + len(recent)
        enough = min(len(learn), len(recent)) >= HELD_OUT
        if sheet is None and answers == self._learned_from:
            return None
        found = None
        if enough and answers > self._learned_from:
            found = retrain(
                self.artifact, self._base, learn, recent, mode=self._mode, steps=self.options.steps, lr=self.options.lr,
                seed=self.options.seed + 1000 * len(self.rounds), threads=self.options.threads,
                ends=ends if self._mode == "terminal" else None,
            )  # fmt: skip
            self._learned_from = answers
        threshold = self.artifact.calibration.threshold_in(self._mode)
        fooled, missed = (0, 0) if sheet is None else mistakes(sheet, threshold)
        swapped = found is not None and found.compared.better
        if swapped:
            assert found is not None
            self._take_over(found.artifact, step, answers)
        sheets = self.book.sheets()
        done = Round(
            step=step,
            version=self.version,
            asked=0 if sheet is None else len(sheet),
            answered=sum(int((each.answers[~each.of(MINED)] != UNKNOWN).sum()) for each in sheets),
            fooled=fooled,
            missed=missed,
            swapped=swapped,
            compared=None if found is None else found.compared,
            seconds={"asking": asked - began, **({} if found is None else found.seconds)},
            sheet="" if sheet is None else sheet.id,
            threshold=threshold,
        )
        self.rounds = [*up_to_date(self.rounds, sheets), done]
        self._write()
        return done

    def _write(self) -> None:
        write_rounds(self.folder / ROUNDS, self.rounds)

    def account(self, robot_seconds: float) -> dict[str, float]:
        """What it cost so far, as plain numbers."""
        labels = self.rounds[-1].answered if self.rounds else 0
        return {
            "labels": labels,
            "label_minutes": labels * self.options.seconds_per_label / 60,
            "seconds_per_label": self.options.seconds_per_label,
            "robot_minutes": robot_seconds / 60,
            "model_version": self.version,
        }

    def _ask(self, step: int) -> Sheet | None:
        """Choose frames out of the pool, keep them, and have them answered; None where none are left to ask about."""
        pool, self._pool = self._pool, []
        count = min(self.options.ask, self.left)
        if not pool or count < 2:
            return None
        images, summary, said = (np.concatenate([each[part] for each in pool]) for part in range(3))
        assert self.artifact.reference is not None
        frames = Candidates(said, self.artifact.reference.distance(summary), summary)
        chosen = choose(
            frames, count, threshold=self.artifact.calibration.threshold_in(self._mode), shares=SHARES,
            random=np.random.default_rng((self.options.seed, step)), confirmed=self._confirmed(),
        )  # fmt: skip
        if len(chosen.rows) < 2:
            return None
        rows = chosen.rows
        sheet = self.book.add(Sheet(images[rows], said[rows], chosen.reasons, step, self.version))
        known = all(each[3] is not None for each in pool)
        truth = np.concatenate([each[3] for each in pool if each[3] is not None])[rows] if known else None
        self.labeller.ask(self.book, sheet, truth)
        return self.book.sheets()[-1]

    def _confirmed(self) -> np.ndarray | None:
        """f32[m,e]: where the successes lie that somebody has confirmed."""
        images = [sheet.images[sheet.answers == SUCCESS] for sheet in self.book.sheets()]
        found = np.concatenate(images) if images else np.zeros(0)
        return self.artifact.seen(found)[1] if len(found) else None

    def _answers(self) -> tuple[Labelled, Labelled, Labelled]:
        """Answered frames to learn from, recent ones to compare on, and all that were drawn evenly.

        Where nobody was asked, some of the frames that were taken as failures are held out.
        """
        sheets = self.book.sheets()
        asked = [sheet for sheet in sheets if not sheet.of(MINED).all()]
        held = {sheet.id for sheet in [each for each in asked if _drawn(each).any()][-RECENT:]}
        learn, recent, even = [], [], []
        for sheet in sheets:
            known, drawn = sheet.answers != UNKNOWN, _drawn(sheet)
            out = drawn if sheet.id in held else np.zeros(len(sheet), bool)
            if not asked:
                out = np.arange(len(sheet)) % 4 == 3
            learn.append((sheet, known & ~out))
            recent.append((sheet, out))
            even.append((sheet, drawn))
        return _labelled(learn), _labelled(recent), _labelled(even)

    def _take_over(self, artifact: Artifact, step: int, answers: int) -> None:
        self.version += 1
        artifact.provenance["refined"] = {"version": self.version, "step": step, "answers": answers}
        artifact.save(self.folder / VERSIONS / f"v{self.version}")
        self.artifact = artifact


def write_rounds(path: Path, rounds: Sequence[Round]) -> None:
    """A line each."""
    files.write_text(path, "".join(checksums.sealed_line(asdict(each)) + "\n" for each in rounds))


def read_rounds(folder: Path) -> list[Round]:
    """The rounds that a run wrote down."""
    path = Path(folder) / ROUNDS
    if not path.exists():
        return []
    try:
        return [Round.from_json(line) for line in path.read_text().splitlines()]
    except checksums.ChecksumError as error:
        raise RefereeError(f"{path} {error}: bring it back from a copy") from error
    except (ValueError, OSError) as error:
        raise RefereeError(f"{path} is cut off or broken ({error}): remove the broken line to go on") from error


def up_to_date(rounds: Sequence[Round], sheets: Sequence[Sheet]) -> list[Round]:
    """Rounds with the answers that are there by now."""
    named = {sheet.id: sheet for sheet in sheets}
    return [each.heard(named) for each in rounds]


def mistakes(sheet: Sheet, threshold: float) -> tuple[int, int]:
    """How many frames of a sheet its model wrongly called a success, and how many successes it missed."""
    fires = sheet.probability >= threshold
    return int((fires & (sheet.answers == FAILURE)).sum()), int((~fires & (sheet.answers == SUCCESS)).sum())


def _drawn(sheet: Sheet) -> np.ndarray:
    """bool[k]: frames that were drawn evenly and answered."""
    return sheet.of("random") & (sheet.answers != UNKNOWN)


def _labelled(rows: list[tuple[Sheet, np.ndarray]]) -> Labelled:
    images: list[Any] = [sheet.images[chosen] for sheet, chosen in rows if chosen.any()]
    labels = [sheet.answers[chosen] for sheet, chosen in rows if chosen.any()]
    if not images:
        return Labelled(np.zeros((0, 1, 1, 1, 3), np.uint8), np.zeros(0, np.int64))
    return Labelled(np.concatenate(images), np.concatenate(labels).astype(np.int64))

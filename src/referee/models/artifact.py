"""A reward model as a directory: everything that turns an observation into a probability, and where it came from."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file as save_tensors

from referee import checksums, files
from referee.errors import RefereeError
from referee.models import backends, weights
from referee.models.contract import FrameVerdict, ModelError, ModelSpec, RewardModel, Verdict, select_views
from referee.models.doubt import doubt
from referee.models.reference import Reference
from referee.models.registry import build

__all__ = ["Artifact", "Calibration", "Reference"]

VERSION = 1
MODEL, CONFIG, REFERENCE = "model.safetensors", "config.json", "reference.safetensors"
CALIBRATION, PROVENANCE = "calibration.json", "provenance.json"


@dataclass(frozen=True)
class Calibration:
    """How logits become probabilities, and probabilities decisions."""

    temperature: float = 1.0
    """probability = sigmoid(logit / temperature)"""
    threshold: float = 0.5
    """A frame is a success where its probability is at least this."""
    gate_k: int = 1
    """So many of the last `gate_n` frames must be successes before the gate fires."""
    gate_n: int = 1
    target_episode_fpr: float | None = None
    """The share of failing episodes, for which threshold and gate were chosen; None where nobody chose them."""
    measured: dict[str, Any] = field(default_factory=dict)
    """What was found with them, as plain JSON."""
    terminal_threshold: float | None = None
    """The threshold where only the last state of an episode is judged, and no gate helps; None = `threshold`."""

    def __post_init__(self) -> None:
        for name in ("temperature", "threshold", "target_episode_fpr", "terminal_threshold"):
            value = getattr(self, name)
            if value is None and name in ("target_episode_fpr", "terminal_threshold"):
                continue
            if type(value) not in (int, float) or not math.isfinite(value):
                raise ModelError(f"{name} is {value!r}, but a number is needed")
        if self.temperature <= 0:
            raise ModelError(f"temperature is {self.temperature}, but it must be above 0")
        for name in ("threshold", "target_episode_fpr", "terminal_threshold"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ModelError(f"{name} is {value}, but it must be in 0..1")
        if type(self.gate_k) is not int or type(self.gate_n) is not int or not 1 <= self.gate_k <= self.gate_n:
            raise ModelError(f"the gate of {self.gate_k} in {self.gate_n} frames cannot be: 1 <= gate_k <= gate_n")

    def threshold_in(self, mode: str) -> float:
        """The threshold of a reward mode, `per_step` or `terminal`."""
        last = self.terminal_threshold if mode == "terminal" else None
        return self.threshold if last is None else last

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """The inverse of `to_json`; unknown names are an error."""
        known = {each.name for each in fields(cls)}
        if not isinstance(values, dict) or not set(values) <= known:
            raise ModelError(f"holds more or less than {', '.join(sorted(known))}")
        return cls(**values)


@dataclass
class Artifact:
    """A model, its calibration, what its training frames looked like, and where it came from."""

    model: RewardModel
    calibration: Calibration = field(default_factory=Calibration)
    provenance: dict[str, Any] = field(default_factory=dict)
    """Dataset hash, episode ids per split (`train`, `val`), seed, version of the code, options; plain JSON."""
    reference: Reference | None = None
    folder: Path | None = None
    """Where it was loaded from or saved to."""
    scorer: backends.Scorer | None = field(default=None, repr=False)
    """What runs it, where that is not the model itself; see `use`."""

    @property
    def spec(self) -> ModelSpec:
        """Of the model."""
        return self.model.spec

    def __repr__(self) -> str:
        where = "" if self.folder is None else f", {str(self.folder)!r}"
        named = ", ".join(f"{name} {value}" for name, value in self._facts().items())
        return f"Artifact({named}{where})"

    def _repr_html_(self) -> str:
        from referee import notebook

        facts: dict[str, object] = {**self._facts(), "folder": self.folder}
        frames = self.provenance.get("frames")
        if isinstance(frames, dict):
            facts["frames"] = ", ".join(f"{name} {count}" for name, count in frames.items())
        pictures = []
        if self.reference is not None and len(self.reference.frames):
            views = list(self.reference.frames.swapaxes(0, 1))
            pictures = [notebook.picture(notebook.film_strip(views), "frames of training")]
        return notebook.panel("Reward model", facts, *pictures)

    def _facts(self) -> dict[str, str]:
        spec, calibration = self.spec, self.calibration
        chosen = calibration.target_episode_fpr
        return {
            "model": f"{spec.model_type} {spec.arch}",
            "cameras": ", ".join(spec.cameras),
            "image size": f"{spec.image_size} px",
            "threshold": f"{calibration.threshold:.3f}",
            "gate": f"{calibration.gate_k} of {calibration.gate_n}",
            "calibrated": "no" if chosen is None else f"for an episode false-positive rate of {chosen:g}",
        }

    @property
    def doubt(self) -> str:
        """Why the model may be no better than chance; empty where its validation shows that it is. See `doubt`."""
        return doubt(self.calibration.measured, self.provenance)

    @property
    def picture_size(self) -> tuple[int, int] | None:
        """Height and width of the pictures that it learned from, before it crops and scales them; None if not known."""
        size, spec = self.provenance.get("picture_size"), self.spec
        if isinstance(size, list) and len(size) == 2 and all(type(side) is int and side > 0 for side in size):
            return size[0], size[1]
        return None if spec.crop or spec.resize != "none" else (spec.image_size, spec.image_size)

    # --- scoring ---

    def logits(self, images: np.ndarray | torch.Tensor, batch_size: int = 256) -> np.ndarray:
        """f32[n] of frames uint8[n,V,H,W,3], or float in 0..1; always in evaluation mode."""
        if self.scorer is not None:
            return self.scorer.logits(images)
        return self.model.logits(images, batch_size)

    def seen(self, images: np.ndarray | torch.Tensor, batch_size: int = 256) -> tuple[np.ndarray, np.ndarray]:
        """Logits f32[n] and summaries f32[n,e] of frames, both from one pass."""
        if self.scorer is not None:
            return self.scorer.seen(images)
        return self.model.seen(images, batch_size)

    def judge(self, images: np.ndarray | torch.Tensor) -> FrameVerdict:
        """The calibrated verdict on frames."""
        calibration = self.calibration
        return Verdict.of(self.logits(images), temperature=calibration.temperature, threshold=calibration.threshold)

    def score(self, observations: Mapping[str, np.ndarray], *, cameras: Sequence[str] | None = None) -> FrameVerdict:
        """The calibrated verdict on observations as environments give them; see `RewardModel.score`."""
        return self.judge(select_views(observations, self.spec.cameras, cameras))

    def distance(self, images: np.ndarray | torch.Tensor) -> np.ndarray:
        """f32[n]: how far frames are from those of training, about 1 for a usual one."""
        if self.reference is None:
            raise ModelError(f"{self.folder or 'the artifact'} holds no {REFERENCE}, so it cannot say what is unusual")
        return self.reference.distance(embed(self.model, images))

    def use(self, backend: str = "torch", *, int8: bool = False, threads: int | None = None) -> backends.Scorer:
        """Score with another back end from now on; it is compared with torch on the artifact's own frames first.

        backend: one of `backends.BACKENDS`, or auto: the fastest that is installed and agrees with torch.
        """
        if self.reference is None:
            raise ModelError(f"{self.folder or 'the artifact'} holds no frames to compare the {backend} back end on")
        if backend == "auto":
            self.scorer = backends.fastest(
                self.model, self.reference.frames, threads=threads, temperature=self.calibration.temperature
            )
            return self.scorer
        self.scorer = backends.choose(
            self.model, self.reference.frames, backend=backend, int8=int8, threads=threads,
            temperature=self.calibration.temperature,
        )  # fmt: skip
        return self.scorer

    # --- keeping ---

    def save(self, folder: Path | str) -> None:
        """Write the whole directory beside its goal and rename it; an artifact of that name is replaced."""
        folder = Path(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            temporary.chmod(0o755)
            state = {name: value.detach().cpu().contiguous() for name, value in self.model.state_dict().items()}
            save_tensors(state, temporary / MODEL)
            if self.reference is not None:
                save_arrays(self.reference.arrays(), temporary / REFERENCE)
            sums = {path.name: checksums.page_sum_of(path) for path in sorted(temporary.iterdir())}
            config = {"version": VERSION, "model": self.spec.to_json(), "page_sum": sums}
            for name, value in (
                (CONFIG, config), (CALIBRATION, self.calibration.to_json()), (PROVENANCE, self.provenance),
            ):  # fmt: skip
                (temporary / name).write_text(_json(value, name))
            for path in temporary.iterdir():
                files.flush(path)
            _swap(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self.folder = folder

    def recalibrate(self, calibration: Calibration) -> None:
        """Take another calibration, and write it where the artifact is kept."""
        if self.folder is not None:
            files.write_text(self.folder / CALIBRATION, _json(calibration.to_json(), CALIBRATION))
        self.calibration = calibration

    @classmethod
    def load(cls, folder: Path | str, spec: ModelSpec | None = None) -> Self:
        """Read an artifact, or one line that names the file that is missing or broken.

        spec: what it is to be, as `describe` gives it; None: as it was saved.
        """
        folder = Path(folder)
        place, config = _read_config(folder)
        sums = config.get("page_sum", config.get("sha256"))
        if not isinstance(sums, dict) or MODEL not in sums:
            raise ModelError(f"{place / CONFIG}: says no checksum (page_sum) of {MODEL}")
        for name in (MODEL, REFERENCE):
            if name in sums:
                _check(place / name, sums[name])
        spec = spec or _own_spec(place, config)
        calibration = _naming(place / CALIBRATION, lambda: Calibration.from_json(_read_json(place / CALIBRATION)))
        model = build(spec)
        weights.fill(model, weights.read_safetensors(place / MODEL), str(place / MODEL))
        reference = None
        if REFERENCE in sums:
            tensors = weights.read_safetensors(place / REFERENCE)
            arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
            reference = _naming(place / REFERENCE, lambda: Reference.from_arrays(arrays))
        return cls(model.eval(), calibration, _read_json(place / PROVENANCE), reference, folder)

    @classmethod
    def open(
        cls,
        path: Path | str,
        spec: ModelSpec | None = None,
        said: Collection[str] | None = None,
        free: Collection[str] = weights.RUN_TIME,
    ) -> Self:
        """An artifact directory, or the weights alone in a .pt or .safetensors file, of the model that `spec` says.

        said: fields of `spec` that somebody has set (None: all); what is saved wins, with a warning where it differs.
        free: those of them that act instead, since a run may choose them.
        """
        folder = _folder(Path(path))
        if folder is not None:
            return cls.load(folder, None if spec is None else describe(folder, spec, said, free))
        model = weights.load_checkpoint(Path(path), spec or ModelSpec(), () if spec is None else said, free)
        return cls(model.eval(), provenance={"imported": str(path)})


def describe(
    path: Path | str,
    spec: ModelSpec,
    said: Collection[str] | None = None,
    free: Collection[str] = weights.RUN_TIME,
) -> ModelSpec:
    """What `Artifact.open` would run, with its warning, without building it; weights may be of any cameras."""
    folder = _folder(Path(path))
    if folder is None:
        return weights.read_checkpoint(Path(path), spec, said, free, any_views=True)[0]
    own = _own_spec(*_read_config(folder))
    return weights.settle(spec, own, str(path), said, free)


def _folder(path: Path) -> Path | None:
    """The directory of an artifact, which its weights may be named for; None for weights alone."""
    if path.is_dir() or not path.suffix:
        return path
    return path.parent if path.name == MODEL and (path.parent / CONFIG).exists() else None


def _read_config(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Where an artifact lies, and its checked config.json."""
    place = folder if folder.exists() else _old(folder)  # a kill between two renames
    if not place.is_dir():
        raise ModelError(f"{folder} is no artifact: it is not there, or no directory")
    config = _read_json(place / CONFIG)
    version = config.get("version")
    if type(version) is not int or version < 1:
        raise ModelError(f"{place / CONFIG}: says no version, so it is no artifact")
    if version > VERSION:
        raise ModelError(
            f"{folder} is an artifact of version {version}, this program reads up to {VERSION}: update referee"
        )
    return place, config


def _own_spec(place: Path, config: Mapping[str, Any]) -> ModelSpec:
    spec: ModelSpec = _naming(place / CONFIG, lambda: ModelSpec.from_json(config.get("model")))
    return spec


def embed(model: RewardModel, images: np.ndarray | torch.Tensor, batch_size: int = 256) -> np.ndarray:
    """f32[n,e]: the summaries of frames that a `Reference` is made of."""
    pieces = model.by_pieces(lambda prepared: model.embed(model.encode(prepared)), images, batch_size)
    return np.concatenate(pieces) if pieces else np.empty((0, 0), np.float32)


def _swap(temporary: Path, folder: Path) -> None:
    old = _old(folder)
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)  # kept until the new one has its name
    temporary.rename(folder)
    files.flush(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _old(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}-old")


def _json(value: Any, name: str) -> str:
    try:
        json.dumps(value, allow_nan=False)
        return checksums.sealed_json(value)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{name} would hold more than plain values ({error})") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return checksums.unsealed(path.read_bytes())[0]
    except checksums.ChecksumError as error:
        way = "set reward.reward_threshold instead, or remove" if path.name == CALIBRATION else "remove"
        raise ModelError(
            f"{path}: {error}: bring it back from a copy; if you edited it on purpose, {way} its key {checksums.KEY}"
        ) from error
    except FileNotFoundError as error:
        raise ModelError(f"{path}: is missing") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: is cut off or broken ({error})") from error


def _check(path: Path, expected: Any) -> None:
    if not path.is_file():
        raise ModelError(f"{path}: is missing")
    older = isinstance(expected, str) and len(expected) == 64
    if (_sha256(path) if older else checksums.page_sum_of(path)) != expected:
        raise ModelError(f"{path}: is cut off or has changed since it was written (checksum)")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _naming(path: Path, read: Any) -> Any:
    """What `read` gives; its errors with the name of the file."""
    try:
        return read()
    except RefereeError as error:
        text = str(error)
        raise ModelError(text if text.startswith(str(path)) else f"{path}: {text}") from error

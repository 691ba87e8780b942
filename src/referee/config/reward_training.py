"""Keys of a reward model that is trained: its net, its optimiser, its batches, how long it learns."""
# ruff: noqa: RUF009 -- key() makes a dataclasses.field; nothing mutable is shared

from __future__ import annotations

from dataclasses import dataclass

from referee.config.declare import Checked, key

ARCHITECTURES = (
    "resnet10", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnet10_small", "resnet18_small",
)  # fmt: skip
"""Those of `models.resnet`: torchvision's by its names, and narrow ones by names of our own."""


@dataclass(frozen=True, kw_only=True)
class ResNetModelConfig:
    """`resnet`: a ResNet, its feature map averaged, and a small head."""

    model_type: str = key("resnet", "which reward model", tag=True)
    arch: str = key("resnet10_small", "the encoder; small ones have a quarter of the channels", choices=ARCHITECTURES)
    width: int | None = key(None, "channels of its first layer; null = the architecture's own, 64 or 16", low=1)
    norm: str = key("batch", "how channels are normalised", choices=("batch", "group"))
    hidden_dim: int | None = key(256, "of the head; null = one linear layer", low=1)
    dropout: float = key(0.0, "in the head", low=0, high=0.99)
    image_size: int | None = key(None, "pixels that the model takes; null = those of the data", low=8)
    crop: tuple[str, ...] = key((), "cut out before scaling: camera:top,left,height,width in pixels")
    normalize: bool = key(True, "by ImageNet's mean and deviation")
    precision: str = key("fp32", "of the encoder", choices=("fp32", "bf16"))
    pretrained: str | None = key(None, "weights of the encoder, a local file; null = none")
    model_path: str | None = key(None, "artifact or checkpoint to go on learning from; null = start anew")
    freeze_encoder: bool = key(False, "train the head alone, on features that are encoded once")


@dataclass(frozen=True, kw_only=True)
class BinaryClassifierConfig(ResNetModelConfig):
    """`binary_classifier`: a ResNet10, usually frozen, and a learned weighting of its feature map."""

    model_type: str = key("binary_classifier", "which reward model", tag=True)
    arch: str = key("resnet10", "the encoder; small ones have a quarter of the channels", choices=ARCHITECTURES)
    freeze_encoder: bool = key(True, "train the head alone, on features that are encoded once")
    num_spatial_blocks: int = key(8, "learned weightings of the feature map", low=1)
    pooling: str = key("spatial", "weigh the whole feature map, or its average", choices=("spatial", "average"))


@dataclass(frozen=True, kw_only=True)
class EnsembleConfig(ResNetModelConfig):
    """`ensemble`: a ResNet with several heads; where they disagree, the score is lower."""

    model_type: str = key("ensemble", "which reward model", tag=True)
    members: int = key(5, "heads on one encoder", low=2, high=16)
    std_weight: float = key(1.0, "λ: the score is the heads' mean minus λ times their standard deviation", low=0)


@dataclass(frozen=True, kw_only=True)
class RewardOptimConfig(Checked):
    """The optimiser of a reward model."""

    optimizer: str = key("adamw", "which", choices=("adamw", "adam"))
    lr: float = key(3e-3, "learning rate", low=0)
    weight_decay: float = key(1e-2, "pull towards 0", low=0)
    schedule: str = key("cosine", "after the warm-up", choices=("cosine", "constant"))
    warmup_ratio: float = key(0.1, "share of the steps in which the learning rate rises", low=0, high=0.99)
    clip_grad: float = key(1.0, "largest norm of the gradient; 0 = no limit", low=0)


@dataclass(frozen=True, kw_only=True)
class AugmentConfig(Checked):
    """How far training images are changed; validation and use see images as they are."""

    random_shift: int = key(3, "largest shift in pixels; 0 = none", low=0)
    brightness: float = key(0.1, "largest change of a factor; 0 = none", low=0, high=1)
    contrast: float = key(0.1, "the same for contrast", low=0, high=1)
    saturation: float = key(0.0, "the same for saturation", low=0, high=1)

    @property
    def colour(self) -> bool:
        """Whether colours are changed."""
        return bool(self.brightness or self.contrast or self.saturation)

    def __bool__(self) -> bool:
        """Whether images are changed at all."""
        return bool(self.random_shift) or self.colour


@dataclass(frozen=True, kw_only=True)
class EarlyStopConfig(Checked):
    """When the training of a reward model ends before its last epoch."""

    patience: int = key(0, "validations in a row without a better one; 0 = never stop early", low=0)
    min_delta: float = key(0.0, "what counts as better", low=0, only_if="patience")


@dataclass(frozen=True, kw_only=True)
class RewardNetConfig:
    """What learns, and by which steps."""

    model: ResNetModelConfig | BinaryClassifierConfig | EnsembleConfig = key(ResNetModelConfig, "the model")
    optim: RewardOptimConfig = key(RewardOptimConfig, "the optimiser")


@dataclass(frozen=True, kw_only=True)
class RewardBatchConfig(Checked):
    """What one optimiser step takes, and which processes share it."""

    augment: AugmentConfig = key(AugmentConfig, "changes to training images")
    global_batch_size: int = key(64, "frames per step", low=1)
    micro_batch_size: int | None = key(None, "frames per forward pass; null = all of a process's share", low=1)
    sampling: str = key(
        "balanced", "as many successes as failures in a batch, or every frame once", choices=("balanced", "natural")
    )
    positive_weight: float | None = key(
        None, "weight of a success; null = 1, 0 = failures / successes", low=0, only_if="sampling=natural"
    )
    best_metric: str = key(
        "val_loss",
        "what the best model is best at",
        choices=("val_auroc", "val_loss", "val_accuracy", "train_accuracy"),
    )
    encoder_warmup_steps: int | None = key(
        None,
        "steps before a frozen encoder is frozen; null = 70 without pretrained weights",
        low=0,
        only_if="actor.model.freeze_encoder",
    )
    feature_copies: int = key(
        0, "augmented copies of each frame among cached features", low=0, only_if="actor.model.freeze_encoder"
    )
    training_backend: str = key("simple", "one process, or several", choices=("simple", "ddp", "fsdp"))
    num_processes: int = key(
        1,
        "of them; with a placement, as many as are placed",
        low=1,
        only_if="training_backend=ddp or training_backend=fsdp",
    )
    num_threads: int = key(0, "threads per process; 0 = the cores, shared out", low=0)


@dataclass(frozen=True, kw_only=True)
class RewardActorConfig(RewardBatchConfig, RewardNetConfig):
    """Who learns a reward model, and how."""


@dataclass(frozen=True, kw_only=True)
class SeedConfig(Checked):
    """What all that is drawn depends on."""

    seed: int = key(0, "seed of everything that is drawn", low=0)


@dataclass(frozen=True, kw_only=True)
class FitConfig(SeedConfig):
    """How long a model is fitted, and what is written meanwhile."""

    max_epochs: int | None = key(None, "passes over the frames; null = 5, or 10 where only a head learns", low=1)
    val_check_interval: int = key(1, "epochs between validations", low=1)
    save_interval: int = key(20, "epochs between checkpoints; 0 = only the last", low=0)
    save_steps: int = key(0, "save every so many steps instead of epochs; 0 = by save_interval", low=0)
    log_interval: int = key(10, "steps between lines of the log", low=1)
    early_stop: EarlyStopConfig = key(EarlyStopConfig, "when to give up")


@dataclass(frozen=True, kw_only=True)
class ResumeConfig:
    """Where a run goes on from."""

    resume_dir: str | None = key(None, "run or checkpoint to go on from; null = start")


@dataclass(frozen=True, kw_only=True)
class SaveDirConfig:
    """Where steps and best weights go."""

    save_dir: str | None = key(
        None, "where step_<n>/checkpoint.pt, reward_model_best.pt and best_model.pt go; null = steps in the run"
    )

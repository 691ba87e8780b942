"""The keys of how a policy learns: algorithm, network, optimiser."""
# ruff: noqa: RUF009 -- key() makes a dataclasses.field; nothing mutable is shared

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from referee.config.declare import key


def bootstrap_key() -> Any:
    """`bootstrap_type`, which all algorithms have."""
    return key(
        "standard",
        "future counted at an episode's end: when cut off, always, or never (as where only the end is paid)",
        choices=("standard", "always", "never"),
    )


@dataclass(frozen=True, kw_only=True)
class BCConfig:
    """Behaviour cloning of the scripted expert before reinforcement learning starts."""

    episodes: int = key(0, "demonstrations to clone; 0 = no warm start", low=0)
    noise: float = key(0.2, "noise of the demonstrating expert", low=0, only_if="episodes")
    epochs: int = key(20, "passes over the demonstrations", low=1, only_if="episodes")
    batch_size: int = key(256, "samples per step", low=1, only_if="episodes")
    lr: float = key(1e-3, "learning rate", low=0, only_if="episodes")


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Proximal policy optimisation."""

    name: str = key("ppo", "which algorithm", tag=True)
    rollout_steps: int = key(50, "steps of every environment per iteration", low=1)
    update_epochs: int = key(8, "passes over each rollout", low=1)
    gamma: float = key(0.97, "discount", low=0, high=1)
    gae_lambda: float = key(0.95, "bias against variance of the advantages", low=0, high=1)
    clip_ratio: float = key(0.2, "how far the policy may move in one iteration", low=0)
    value_clip: float | None = key(None, "the same for the value; null = no clipping", low=0)
    value_coef: float = key(0.5, "weight of the value loss", low=0)
    entropy_coef: float = key(0.0, "weight of the entropy bonus", low=0)
    target_kl: float | None = key(
        None, "divergence of one iteration, which the learning rate follows; beyond 1.5 times this it stops; 0 = free; "
        "null = 0.01 where the policy to start from is given, else free", low=0,
    )  # fmt: skip
    normalise_advantages: bool = key(True, "per minibatch")
    normalise_observations: bool = key(True, "running mean and variance of states, saved with the policy")
    freeze_normaliser: bool | None = key(
        None, "keep the statistics with which the policy starts; null = where it is given or cloned",
        only_if="normalise_observations",
    )  # fmt: skip
    bootstrap_type: str = bootstrap_key()
    critic_warmup: int = key(0, "first iterations, in which only the critic learns: after a change of reward", low=0)
    bc_warmup: BCConfig = key(BCConfig, "warm start by behaviour cloning")


@dataclass(frozen=True, kw_only=True)
class DemosConfig:
    """Demonstrations that an off-policy learner keeps beside its own experience (RLPD)."""

    path: str | None = key(None, "an episode store, or any format of episodes; null = none")
    share: float = key(0.5, "of each batch that comes from them", low=0, high=1, only_if="path")
    episodes: int | None = key(None, "of them that are taken, the first ones; null = all", low=1, only_if="path")
    only_success: bool = key(True, "leave out those that do not end in success", only_if="path")


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """What an off-policy learner remembers."""

    capacity: int = key(200_000, "steps, of all environments together", low=1)
    memory_gb: float | None = key(
        None, "pictures beyond this lie in a file beside the run; null = half of what is free", low=0
    )
    save: bool = key(True, "keep it with checkpoints, so that a resumed run remembers")


@dataclass(frozen=True, kw_only=True)
class SACConfig:
    """Soft actor-critic; with demonstrations, many critics and many updates per step it is RLPD."""

    name: str = key("sac", "which algorithm", tag=True)
    rollout_steps: int = key(5, "steps of every environment per iteration", low=1)
    random_steps: int = key(1000, "environment steps with random actions before learning begins", low=0)
    utd: float = key(1.0, "updates of the critics per environment step", low=0)
    policy_interval: int = key(1, "updates of the critics per update of the policy", low=1)
    settle_steps: int = key(
        0, "first steps with the first policy; then it is cloned anew on what was seen, and the critics catch up", low=0
    )
    gamma: float = key(0.97, "discount", low=0, high=1)
    n_step: int = key(1, "steps after which a critic is asked for the rest", low=1)
    tau: float = key(0.005, "how fast the target critics follow", low=0, high=1)
    critics: int = key(2, "how many", low=1)
    critic_subset: int = key(2, "of them, drawn anew each time, whose least word is taken", low=1)
    layer_norm: bool = key(False, "within the critics")
    initial_temperature: float = key(0.2, "weight of the entropy at the start", low=0)
    learn_temperature: bool = key(True, "so that the entropy stays at its target")
    target_entropy: float | None = key(
        None, "the wanted entropy; null = -1 per entry of an action", only_if="learn_temperature"
    )
    backup_entropy: bool = key(True, "count the entropy of later actions as value")
    bootstrap_type: str = bootstrap_key()
    random_shift: int = key(
        4, "largest shift of images in pixels, while learning; 0 = none", low=0, only_if="actor.model.model_type=cnn"
    )
    normalise_observations: bool = key(True, "running mean and variance of states, saved with the policy")
    bc_coef: float = key(0.0, "weight of imitating demonstrations, and own episodes whose last step was paid", low=0)
    bc_halving: int | None = key(
        None, "updates of the policy after which that weight is half; null = it stays", low=1, only_if="bc_coef"
    )
    bc_warmup: BCConfig = key(
        BCConfig, "warm start by behaviour cloning: of the demonstrations, else of the scripted expert"
    )
    demos: DemosConfig = key(DemosConfig, "demonstrations")
    replay: ReplayConfig = key(ReplayConfig, "what is remembered")


AlgorithmConfig = PPOConfig | SACConfig


@dataclass(frozen=True, kw_only=True)
class PolicyModelConfig:
    """The policy network."""

    model_type: str = key("mlp", "mlp on state, or cnn on images (and proprioception)", choices=("mlp", "cnn"))
    hidden_dims: tuple[int, ...] = key((128, 128), "widths of the hidden layers", low=1)
    initial_log_std: float = key(-0.5, "log of the action noise at the start", low=-5, high=2)
    model_path: str | None = key(None, "run or checkpoint whose policy to start from; null = a random one")
    start_log_std: float | None = key(
        None, "log of the action noise with which that policy goes on; null = its own", low=-5, high=2,
        only_if="model_path",
    )  # fmt: skip
    fresh_critic: bool = key(
        False, "its critic begins anew, as where something else pays than before", only_if="model_path"
    )


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimiser (Adam)."""

    lr: float = key(3e-4, "learning rate", low=0)
    schedule: str = key("constant", "over the run", choices=("constant", "linear"))
    clip_grad: float = key(0.5, "largest norm of the gradient", low=0)


@dataclass(frozen=True, kw_only=True)
class ActorConfig:
    """The worker that learns the policy."""

    model: PolicyModelConfig = key(PolicyModelConfig, "the network")
    optim: OptimConfig = key(OptimConfig, "the optimiser")
    global_batch_size: int | None = key(
        None, "samples per optimiser step; PPO: divides num_envs x rollout_steps; null = about a quarter of it, "
        "at most 1600; SAC: null = 256", low=1,
    )  # fmt: skip
    num_threads: int = key(0, "threads of an update; 0 = one or all of them, whichever is timed to be faster", low=0)

"""Reward models for robot reinforcement learning: record, label, train, audit, and use the model as the reward.

>>> import referee
>>> model = referee.train(frames, labels, groups=episode_of_frame)       # uint8[N,H,W,3], 0 or 1, any numbers
>>> card = referee.audit(model, new_frames, new_labels, groups=new_episode_of_frame)
>>> print(card.auroc, card.episode_false_positive_rate)                  # each with its 95 % interval
>>> card.save("report")
>>> env = referee.RewardModelWrapper(env, model)

Episodes, from `referee.record` or `referee.open_episodes`, can be given instead of arrays. Everything is imported when
it is first used, and so are the subpackages: `referee.envs`, `referee.episodes`, ….
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from referee import (
        config,
        datasets,
        envs,
        episodes,
        integrations,
        labels,
        metrics,
        models,
        refine,
        rewards,
        rl,
        runtime,
        training,
    )  # fmt: skip
    from referee.api import audit, load, open_episodes, record, score, train
    from referee.audit.card import ReportCard
    from referee.episodes.episode import Episode
    from referee.episodes.store import EpisodeStore
    from referee.errors import RefereeError
    from referee.models.artifact import Artifact
    from referee.models.contract import Verdict
    from referee.refine.loop import RefineOptions, Refiner
    from referee.rewards.wrapper import RewardModelWrapper

__all__ = [
    "Artifact", "Episode", "EpisodeStore", "RefereeError", "RefineOptions", "Refiner", "ReportCard",
    "RewardModelWrapper", "Verdict", "__version__", "audit", "config", "datasets", "envs", "episodes", "integrations",
    "labels", "load", "metrics", "models", "open_episodes", "record", "refine", "rewards", "rl", "runtime", "score",
    "train", "training",
]  # fmt: skip

_PLACES = {
    "referee.api": ("load", "open_episodes", "record", "score", "train"),
    "referee.audit.card": ("ReportCard",),
    "referee.episodes.episode": ("Episode",),
    "referee.episodes.store": ("EpisodeStore",),
    "referee.errors": ("RefereeError",),
    "referee.models.artifact": ("Artifact",),
    "referee.models.contract": ("Verdict",),
    "referee.refine.loop": ("RefineOptions", "Refiner"),
    "referee.rewards.wrapper": ("RewardModelWrapper",),
}
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}


if not TYPE_CHECKING:  # type checkers know the names above, and that there are no others

    def __getattr__(name: str) -> object:
        if name in _MODULE_OF:
            return getattr(import_module(_MODULE_OF[name]), name)
        if name in __all__:  # a subpackage; `referee.audit` can be called as well
            return import_module(f"referee.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})

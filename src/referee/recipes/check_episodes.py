"""Whether every byte of a store is whole; journals that a kill left are brought back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from referee.episodes import EpisodeStore
from referee.episodes.health import Health
from referee.episodes.journal import recover
from referee.errors import RefereeError
from referee.labels.log import LabelLog


@dataclass(frozen=True, kw_only=True)
class CheckedStore:
    """What reading every byte of a store found."""

    source: Path
    episodes: int
    """That can be read."""
    recovered: tuple[str, ...]
    """Ids of episodes that were brought back from journals."""
    journals_left: tuple[str, ...]
    """A line about each journal that was left alone, or in part."""
    broken: tuple[str, ...]
    """A line about each episode that is not whole."""
    labels: Path
    ignored_labels: tuple[str, ...]
    """A line about each line of `labels` that cannot be read."""
    total: int
    """Episodes, broken ones among them."""
    without_checksum: int
    warnings: tuple[str, ...] = ()

    def refuse(self) -> None:
        """An error where something is broken."""
        if self.broken:
            raise RefereeError(f"{len(self.broken)} of {self.total} episodes in {self.source} are broken: "
                               "move their files away, or bring them back from a copy")  # fmt: skip
        if self.ignored_labels:
            raise RefereeError(f"{len(self.ignored_labels)} lines of {self.labels} are ignored: see above")


def check(source: Path, *, adopt: bool = False) -> CheckedStore:
    """Read every byte of a store; `refuse` of the result is an error where something is wrong.

    adopt: bring back journals, too, of which nobody can tell whether their run has ended.
    """
    store, left = EpisodeStore(source, create=False), list[str]()
    recovered = recover(store, force=adopt, say=left.append)
    problems, labels, health = store.check(), LabelLog.of(store), Health()
    if not problems and not labels.ignored:
        for id in store.rows:
            episode = store.read(id)
            health.look(episode, labels.resolve(episode))
    return CheckedStore(
        source=source,
        episodes=len(store),
        recovered=tuple(recovered),
        journals_left=tuple(left),
        broken=tuple(problems.values()),
        labels=labels.path,
        ignored_labels=tuple(labels.ignored.values()),
        total=len(store.rows) + len(store.broken),
        without_checksum=store.without_checksum,
        warnings=tuple(health.warnings()),
    )

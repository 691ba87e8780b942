"""What happened: episodes, the store that keeps them, the recorder that makes them, and the formats at the edge."""

from referee.episodes.episode import Episode, EpisodeError, Meta
from referee.episodes.store import EpisodeStore

__all__ = ["Episode", "EpisodeError", "EpisodeStore", "Meta"]

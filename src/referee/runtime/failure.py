"""An error on its way from a worker in another process to its caller."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import NoReturn

from referee.errors import RefereeError
from referee.runtime.placement import Rank


@dataclass(frozen=True)
class Failure:
    """The error, and where it happened."""

    error: Exception
    trace: str

    @staticmethod
    def of(error: Exception) -> Failure:
        """Of an error just caught; one that cannot travel becomes its text."""
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # whatever its class does when it is pickled
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return Failure(error, traceback.format_exc())

    def raise_at(self, rank: Rank, name: str) -> NoReturn:
        """Raise it here as its own type. An expected error names the rank; any other brings its traceback along."""
        where = f"{name} rank {rank.rank}"
        if isinstance(self.error, RefereeError):
            self.error.args = (f"{where}: {self.error}",)
        else:
            self.error.add_note(f"in {where}:\n{self.trace}")
        raise self.error

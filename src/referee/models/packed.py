"""An artifact as bytes, for a worker that does not see the disk it lies on."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from referee.models.artifact import Artifact


@dataclass(frozen=True)
class Packed:
    """The files of an artifact. Opening them checks their digests, and runs no code."""

    files: dict[str, bytes]

    @classmethod
    def of(cls, artifact: Artifact) -> Packed:
        """Pack an artifact."""
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "model"
            artifact.save(folder)
            return cls({path.name: path.read_bytes() for path in sorted(folder.iterdir())})

    def unpacked(self) -> Artifact:
        """The artifact."""
        with tempfile.TemporaryDirectory() as place:
            for name, content in self.files.items():
                (Path(place) / Path(name).name).write_bytes(content)
            return Artifact.load(place)

"""A kind of file whose reader does, file by file, all that a reader must not do."""

import os
import pickle
import time
from pathlib import Path

from campaign_samples import KINDS, Kind
from referee.errors import RefereeError


def make(folder: Path) -> None:
    (folder / "turn").write_text("0")
    (folder.parent / "turn").write_text("0")


def read(folder: Path) -> None:
    counter = folder.parent / "turn"
    turn = int(counter.read_text())
    counter.write_text(str(turn + 1))
    if turn == 2:
        raise RefereeError("one line")
    if turn == 3:
        raise ZeroDivisionError
    if turn == 4:
        time.sleep(60)
    if turn == 5:
        os.abort()
    if turn == 6:
        pickle.loads(pickle.dumps(Touches(folder.parent / "CANARY")))
    if turn == 7:
        b"x" * (1600 << 20)


class Touches:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return Path.touch, (self.path,)


KINDS["faulty"] = Kind(make, ("turn",), read)

"""Reads episodes from whatever holds them: a store, a file or folder of any format that we know."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from referee.episodes.episode import Episode, EpisodeError
from referee.episodes.formats import hdf5, lerobot, media, native, npy, pickled, safe
from referee.episodes.formats.frames import FILMS, PICTURES, naming
from referee.episodes.store import EPISODES, MANIFEST, EpisodeStore

PICKLES = (".pkl", ".pickle")
HDF5 = (".hdf5", ".h5")
DATASETS = (".pt", ".pth")


def read_any(path: Path | str, *, labels: Path | None = None) -> Iterator[Episode]:
    """All episodes at `path`, in the order of their names. A broken file ends it with one line that names it.

    A folder is searched to its bottom. `labels` is a file that labels the frames of pictures, films and HDF5 files,
    which hold no labels themselves.
    """
    path = Path(path)
    if not path.exists():
        raise EpisodeError(f"{path}: there is no such file or folder")
    found = _folder(path, labels, frozenset()) if path.is_dir() else _file(path, labels)
    return _some(found, path)


def _some(found: Iterator[Episode], path: Path) -> Iterator[Episode]:
    empty = True
    for episode in found:
        empty = False
        yield episode
    if empty:
        raise EpisodeError(
            f"{path}: holds no episodes in a format that is known (see `referee episodes convert --help`)"
        )


def _file(path: Path, labels: Path | None) -> Iterator[Episode]:
    ending = path.suffix.lower()
    if not path.is_file():
        raise EpisodeError(f"{path}: is no file")
    if ending in HDF5:
        return hdf5.read(path, labels)
    if ending in FILMS:
        return media.read(path, labels)
    _refuse_labels(path, labels)
    if ending == native.SUFFIX:
        return iter([native.read(path, verify=True)])
    if ending == ".npy":
        return npy.read(path)
    if ending in PICKLES:
        return pickled.read(path)
    if ending in DATASETS:
        return _refuse_dataset(path)
    raise EpisodeError(f"{path}: its ending tells no format that holds episodes")


def _folder(path: Path, labels: Path | None, above: frozenset[Path]) -> Iterator[Episode]:
    with naming(path):
        here = path.resolve()
        inside = sorted(each for each in path.iterdir() if not each.name.startswith("."))
    if here in above:
        raise EpisodeError(f"{path}: is a link to a folder above it")
    if (path / "meta" / "info.json").is_file():
        _refuse_labels(path, labels)
        yield from lerobot.read(path)
        return
    if (path / EPISODES).is_dir() and ((path / MANIFEST).exists() or any((path / EPISODES).glob(f"*{native.SUFFIX}"))):
        _refuse_labels(path, labels)
        yield from _store(path)
        return
    pictured = [each for each in inside if each.is_dir() and _has_pictures(each)]
    if pictured or any(each.suffix.lower() in PICTURES + FILMS for each in inside):
        yield from media.read(path, labels)
    for several, run in itertools.groupby((each for each in inside if each not in pictured), _read_together):
        if several is not None:
            _refuse_labels(path, labels)
            yield from several(run)
            continue
        for each in run:
            if each.is_dir():
                yield from _folder(each, labels, above | {here})
            elif each.suffix.lower() in (native.SUFFIX, ".npy", *PICKLES, *HDF5, *DATASETS):
                yield from _file(each, labels)


def _read_together(path: Path) -> Callable[[Iterable[Path]], Iterator[Episode]] | None:
    """What reads several such files, each while the last is looked at; None where each is read on its own."""
    if not path.is_file():
        return None
    ending = path.suffix.lower()
    return npy.read_files if ending == ".npy" else pickled.read_files if ending in PICKLES else None


def _store(path: Path) -> Iterator[Episode]:
    store = EpisodeStore(path, create=False)
    for reason in store.broken.values():
        raise EpisodeError(reason)
    yield from store


def _refuse_labels(path: Path, labels: Path | None) -> None:
    if labels is not None:
        raise EpisodeError(f"{path}: holds its own labels; a labels file is for pictures, films and HDF5 files")


def _has_pictures(folder: Path) -> bool:
    with naming(folder):
        return any(each.suffix.lower() in PICTURES for each in folder.iterdir() if not each.name.startswith("."))


def _refuse_dataset(path: Path) -> Iterator[Episode]:
    value = safe.load_torch(path)
    if isinstance(value, dict) and {"images", "labels"} <= value.keys() and isinstance(value["images"], list):
        raise EpisodeError(
            f"{path}: is a dataset of {len(value['images'])} frames, whose order in episodes is lost: "
            "train on it as it is, or convert the episodes that it was made from"
        )
    raise EpisodeError(f"{path}: holds no episodes")

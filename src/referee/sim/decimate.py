"""Meshes of hundreds of triangles out of thousands: edges collapse in the order of their quadric error.

`fast_simplification` is fast and stops at some thousand triangles for the whole arm, because it keeps every small part.
"""

from __future__ import annotations

import heapq

import numpy as np

_BORDER = 4.0
"""Cost of moving a border, relative to moving a surface."""
_TURN = 0.2
"""Cosine of the angle that a triangle may turn by."""


def decimate(points: np.ndarray, faces: np.ndarray, target: int, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Reduce the faces int[m,3] between points f64[n,3] to `target`; `weight` f64[m] is how much each face counts.

    Returns the corners f64[k,3,3] of the faces that are left, and their numbers int[k].
    """
    return _Collapse(np.array(points, np.float64), np.array(faces), weight).down_to(target)


class _Collapse:
    def __init__(self, points: np.ndarray, faces: np.ndarray, weight: np.ndarray) -> None:
        self.points, self.faces = points, faces
        self.around: list[set[int]] = [set() for _ in points]
        for number, face in enumerate(faces.tolist()):
            for corner in face:
                self.around[corner].add(number)
        self.alive = set(range(len(faces)))
        self.version = np.zeros(len(points), np.int64)
        self.quadrics = self._quadrics(weight)
        self.heap: list[tuple[float, int, int, int, int, tuple[float, ...]]] = []

    def down_to(self, target: int) -> tuple[np.ndarray, np.ndarray]:
        edges = np.sort(np.concatenate([self.faces[:, pair] for pair in ([0, 1], [1, 2], [2, 0])]), axis=1)
        self._push(np.unique(edges, axis=0))
        while len(self.alive) > target and self.heap:
            _, one, other, version_one, version_other, place = heapq.heappop(self.heap)
            if (self.version[one], self.version[other]) == (version_one, version_other):
                self._merge(one, other, np.array(place))
        left = np.array(sorted(self.alive), int)
        return self.points[self.faces[left]], left

    def _quadrics(self, weight: np.ndarray) -> np.ndarray:
        """f64[n,4,4]: the squared distance of a place to the surfaces around each point."""
        corners = self.points[self.faces]
        normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
        area = np.linalg.norm(normals, axis=1)
        normals /= np.maximum(area, 1e-12)[:, None]
        result = np.zeros((len(self.points), 4, 4))

        def add(numbers: np.ndarray, directions: np.ndarray, through: np.ndarray, much: np.ndarray) -> None:
            planes = np.concatenate([directions, -(directions * through).sum(axis=1, keepdims=True)], axis=1)
            np.add.at(result, numbers, much[:, None, None] * planes[:, :, None] * planes[:, None, :])

        for k in range(3):
            add(self.faces[:, k], normals, corners[:, 0], weight * area)
        edges = np.concatenate([self.faces[:, pair] for pair in ([0, 1], [1, 2], [2, 0])])
        _, where, count = np.unique(np.sort(edges, axis=1), axis=0, return_inverse=True, return_counts=True)
        border = count[where.reshape(-1)] == 1
        ends = self.points[edges[border]]
        along = ends[:, 1] - ends[:, 0]
        upright = np.cross(along, np.tile(normals, (3, 1))[border])
        much = _BORDER * np.tile(weight, 3)[border] * (along**2).sum(axis=1)
        upright /= np.maximum(np.linalg.norm(upright, axis=1), 1e-12)[:, None]
        for k in range(2):
            add(edges[border][:, k], upright, ends[:, 0], much)
        return result

    def _push(self, edges: np.ndarray) -> None:
        """Put edges int[k,2] into the heap, each with the position where merging its ends costs least."""
        both = self.quadrics[edges].sum(axis=1)
        middle = self.points[edges].mean(axis=1)
        pull = 1e-4 * np.trace(both[:, :3, :3], axis1=1, axis2=2)[:, None] + 1e-15
        places = np.linalg.solve(
            both[:, :3, :3] + pull[..., None] * np.eye(3), (pull * middle - both[:, :3, 3])[..., None]
        )[..., 0]
        whole = np.concatenate([places, np.ones((len(edges), 1))], axis=1)
        costs = ((both @ whole[..., None])[..., 0] * whole).sum(axis=1)
        versions = self.version[edges]
        for cost, (one, other), (a, b), place in zip(
            costs.tolist(), edges.tolist(), versions.tolist(), places.tolist(), strict=True
        ):
            heapq.heappush(self.heap, (cost, one, other, a, b, tuple(place)))

    def _merge(self, one: int, other: int, place: np.ndarray) -> None:
        shared = self.around[one] & self.around[other]
        rest = (self.around[one] | self.around[other]) - shared
        if rest and self._turns(np.array(sorted(rest)), (one, other), place):
            return
        for number in shared:
            for corner in self.faces[number].tolist():
                self.around[corner].discard(number)
        self.alive -= shared
        for number in self.around[other]:
            self.faces[number][self.faces[number] == other] = one
        self.around[one] |= self.around[other]
        self.around[other] = set()
        self.points[one] = place
        self.quadrics[one] += self.quadrics[other]
        self.version[one] += 1
        self.version[other] += 1
        if self.around[one]:
            beside = np.unique(self.faces[sorted(self.around[one])])
            beside = beside[beside != one]
            self._push(np.sort(np.stack([np.full_like(beside, one), beside], axis=1), axis=1))

    def _turns(self, numbers: np.ndarray, ends: tuple[int, int], place: np.ndarray) -> bool:
        """Whether a face would turn over when two ends move to one place."""
        faces = self.faces[numbers]
        before = self.points[faces]
        after = np.where(np.isin(faces, ends)[..., None], place, before)
        old = np.cross(before[:, 1] - before[:, 0], before[:, 2] - before[:, 0])
        new = np.cross(after[:, 1] - after[:, 0], after[:, 2] - after[:, 0])
        length = np.linalg.norm(old, axis=1) * np.linalg.norm(new, axis=1)
        return bool(((old * new).sum(axis=1) < _TURN * length).any())

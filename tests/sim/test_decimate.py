"""Fewer triangles: the surface stays where it is, and what is too small goes first."""

import numpy as np

from referee.sim.decimate import decimate


def grid_box(cells: int, half: float = 1.0, centre: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """A box whose faces are grids of triangles."""
    line = np.linspace(-1, 1, cells + 1)
    points, faces = [], []
    for axis in range(3):
        for side in (-1, 1):
            u, v = (each.ravel() for each in np.meshgrid(line, side * line, indexing="ij"))
            points.append(np.roll(np.stack([np.full_like(u, side), u, v], axis=1), axis, axis=1))
            number = np.arange((cells + 1) ** 2).reshape(cells + 1, -1) + (cells + 1) ** 2 * len(faces)
            a, b, c, d = number[:-1, :-1], number[1:, :-1], number[1:, 1:], number[:-1, 1:]
            faces.append(np.stack([np.stack([a, b, c], -1), np.stack([a, c, d], -1)]).reshape(-1, 3))
    welded, where = np.unique(np.concatenate(points).round(9), axis=0, return_inverse=True)
    return centre + half * welded, where.reshape(-1)[np.concatenate(faces)]


def volume(corners: np.ndarray) -> float:
    return float(np.linalg.det(corners).sum() / 6)


def test_a_box_stays_a_box() -> None:
    points, faces = grid_box(8)
    assert len(faces) == 768
    corners, left = decimate(points, faces, 12, np.ones(len(faces)))
    assert len(corners) == len(left) == 12
    assert abs(volume(corners) - 8) < 0.01 and abs(volume(points[faces]) - 8) < 1e-9
    assert len(np.unique(corners.reshape(-1, 3).round(2), axis=0)) == 8


def test_a_small_part_goes_before_a_large_one_changes_unless_it_weighs_more() -> None:
    (large, on_large), (small, on_small) = grid_box(4), grid_box(4, half=0.01, centre=3.0)
    points, faces = np.concatenate([large, small]), np.concatenate([on_large, on_small + len(large)])
    is_small = np.arange(len(faces)) >= len(on_large)
    corners, left = decimate(points, faces, 12, np.ones(len(faces)))
    assert not is_small[left].any() and abs(volume(corners) - 8) < 0.01
    _, left = decimate(points, faces, 24, np.where(is_small, 1e6, 1.0))
    assert is_small[left].any()


def test_an_open_border_is_kept() -> None:
    points, faces = grid_box(6)
    top = (points[faces][..., 2] > 0.99).all(axis=1)
    corners, _ = decimate(points, faces[top], 2, np.ones(int(top.sum())))
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1).sum() / 2
    assert len(corners) == 2 and abs(area - 4) < 0.01


def test_the_input_is_left_alone_and_enough_is_enough() -> None:
    points, faces = grid_box(2)
    before = points.copy(), faces.copy()
    decimate(points, faces, 12, np.ones(len(faces)))
    np.testing.assert_array_equal(points, before[0])
    np.testing.assert_array_equal(faces, before[1])
    corners, left = decimate(points, faces, len(faces), np.ones(len(faces)))
    np.testing.assert_array_equal(corners, points[faces])
    np.testing.assert_array_equal(left, np.arange(len(faces)))

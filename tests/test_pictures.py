"""Films and sheets: readable by others, and never half written."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from referee.pictures import atomic_save, banner, border, contact_sheet, save_gif


def frames(n: int, size: int = 32) -> list[np.ndarray]:
    ramp = np.linspace(0, 255, size).astype(np.uint8)
    return [np.stack([np.roll(np.tile(ramp, (size, 1)), i, axis=1)] * 3, axis=2) for i in range(n)]


def test_a_gif_has_all_frames_at_its_pace(tmp_path: Path) -> None:
    save_gif(tmp_path / "film.gif", frames(7), fps=20)
    with Image.open(tmp_path / "film.gif") as film:
        assert film.n_frames == 7
        assert film.size == (32, 32)
        assert film.info["duration"] == 50
        assert film.info["loop"] == 0
        film.seek(3)
        shown = np.asarray(film.convert("RGB")).astype(int)
    assert np.abs(shown - frames(7)[3]).mean() < 6


def test_a_save_that_fails_leaves_the_old_picture_and_no_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    atomic_save(Image.new("RGB", (4, 4), "red"), path)
    old = path.read_bytes()
    with pytest.raises((OSError, ValueError, TypeError)):
        atomic_save(Image.new("F", (4, 4)), path)
    assert path.read_bytes() == old
    assert [each.name for each in tmp_path.iterdir()] == ["picture.png"]


def test_a_sheet_shows_small_frames_pixel_by_pixel() -> None:
    checker = np.zeros((2, 2, 3), np.uint8)
    checker[0, 0] = checker[1, 1] = 255
    sheet = contact_sheet([("row", [checker])], ["column"], title="t", tile=64)
    tile = np.asarray(sheet)[84:148, 156:220]
    assert set(np.unique(tile)) == {0, 255}
    np.testing.assert_array_equal(tile[:32, :32], 255)
    np.testing.assert_array_equal(tile[:32, 32:], 0)


def test_labels_and_rims_leave_the_middle_alone() -> None:
    plain = np.full((80, 80, 3), 120, np.uint8)
    rimmed, labelled = border(plain, (255, 0, 0), 2), banner(plain, "success")
    np.testing.assert_array_equal(rimmed[2:-2, 2:-2], plain[2:-2, 2:-2])
    assert (rimmed[:2] == (255, 0, 0)).all()
    np.testing.assert_array_equal(labelled[:40], plain[:40])
    assert not np.array_equal(labelled, plain)
    assert (plain == 120).all()

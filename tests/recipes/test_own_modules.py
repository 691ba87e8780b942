"""Input builders and reward parsers of one's own, from the command line: the page's own lines, in all processes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.documented.pages import ROOT, blocks, commands
from tests.documented.smaller import SFT, smaller
from tests.models.tiny_vlm import small_vlm
from tests.training.window_files import write_windows

from referee.cli import main
from referee.config.imports import import_modules
from referee.errors import ConfigError

PAGE = ROOT / "docs" / "vlm.md"
NOTES = "import os\nopen('imported', 'a').write(f'{os.getpid()}\\n')\n"
"""Each process that imports a module with these lines leaves its number."""


def of_the_page() -> str:
    """What the page says to write into mine.py."""
    found = [block.text for block in blocks(PAGE) if block.language == "python" and "@register_" in block.text]
    assert len(found) == 2
    return "\n\n".join(found)


def referee(words: list[str], folder: Path) -> str:
    """Run a command in a folder, as somebody there would; what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "referee.cli", *words], cwd=folder, capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONSAFEPATH": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(NOTES + of_the_page())
    small_vlm(tmp_path / "tiny")
    return tmp_path


@pytest.mark.slow
def test_the_lines_of_the_page_run(folder: Path) -> None:
    shown = [each.text for block in blocks(PAGE) if block.language == "bash" for each in commands(block)]
    (command,) = [each for each in shown if "runner.imports=[mine]" in each]
    words = shlex.split(command.replace("/models/Qwen3-VL-4B-Instruct", "tiny"))[1:]
    assert "windows judged" in referee([*smaller(words), "runner.logger.log_path=run"], folder)


@pytest.mark.slow
def test_every_process_of_a_fine_tuning_and_the_audit_know_them(folder: Path) -> None:
    write_windows(folder / "windows")
    sft = ["run", "qwen3vl_sft_qwentrend", "actor.model.model_path=tiny", "data.video_root=windows", *SFT,
           "data.train_data_paths=windows/train/segments.jsonl", "data.val_data_paths=windows/eval/segments.jsonl",
           "data.input_builder_name=last_frame", "runner.imports=[mine]", "actor.num_processes=2",
           "actor.model.is_lora=false", "runner.logger.log_path=sft"]  # fmt: skip
    referee(sft, folder)
    assert len(set((folder / "imported").read_text().split())) == 3, "the run and its two processes"
    said = referee(["audit", "sft/checkpoints/best_model", "windows", "--import", "mine", "--out", "card"], folder)
    assert "accuracy, three labels" in said


@pytest.mark.slow
def test_those_who_act_import_them_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(NOTES)
    words = smaller(["run", "panda_sac_mlp", "runner.imports=[mine]", "runner.background.enabled=true"])
    referee([*words, "runner.logger.log_path=run"], tmp_path)
    assert len(set((tmp_path / "imported").read_text().split())) == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "there is no module broken_module in"),
        ("import no_such_package_at_all", "broken_module needs no_such_package_at_all, which is not installed"),
        ("def f(:", "cannot be imported \\(SyntaxError"),
        ("1 / 0", "cannot be imported \\(ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    if text is not None:
        (tmp_path / "broken_module.py").write_text(text)
    with pytest.raises(ConfigError, match=f"runner.imports: .*{says}"):
        import_modules(["broken_module"])


def test_nothing_is_run_where_a_module_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["run", "panda_expert", "runner.imports=[no_such_module]"]) == 2
    assert "runner.imports: there is no module no_such_module in" in capsys.readouterr().err
    assert main(["audit", "a", "b", "--import", "no_such_module"]) == 2
    assert "--import: there is no module no_such_module in" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

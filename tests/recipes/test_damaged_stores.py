"""Stores with changed bytes: `referee episodes` and `referee dataset` notice, name the file, and copy nothing on."""

import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from episodes.examples import make_episode
from episodes.test_fuzz_formats import mutated, without_checksums
from referee.cli import main
from referee.episodes import EpisodeStore
from referee.labels.log import LabelLog


def test_a_conversion_removes_what_a_killed_one_left_but_not_what_another_writes(tmp_path: Path) -> None:
    EpisodeStore(tmp_path / "in").append(make_episode())
    mine = tmp_path / ".out.notes"  # somebody else's
    mine.write_text("x")
    script = (
        "import sys, time; from pathlib import Path; from referee import files\n"
        "with files.building(Path(sys.argv[1])) as part:\n"
        "    part.mkdir(); (part / 'half').write_text('x'); print(part, flush=True); time.sleep(1000)\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "out")], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    killed, suspended = (Path(writer.stdout.readline().strip()).parent for writer in writers if writer.stdout)
    writers[0].kill()
    writers[0].wait()
    os.kill(writers[1].pid, signal.SIGSTOP)
    assert killed.exists() and killed.parent == tmp_path and killed.name.startswith(".out.")
    assert main(["episodes", "convert", str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    assert not killed.exists() and (suspended / "out" / "half").exists() and mine.exists()
    writers[1].kill()
    writers[1].wait()
    assert len(EpisodeStore(tmp_path / "out")) == 1


def test_a_flipped_bit_is_neither_converted_nor_merged_nor_made_a_dataset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = EpisodeStore(tmp_path / "in")
    path = store.path([store.append(make_episode(seed=seed, success_from=3)) for seed in range(3)][1])
    whole = path.read_bytes()
    lines = [
        ["episodes", "convert", str(store.root), str(tmp_path / "out")],
        ["episodes", "convert", str(path), str(tmp_path / "out")],
        ["episodes", "merge", str(store.root), "--out", str(tmp_path / "merged")],
        ["dataset", "frames", "--raw-data-path", str(store.root), "--output-dir", str(tmp_path / "frames")],
    ]
    random = np.random.default_rng(0)
    for bit in random.integers(0, 8 * len(whole), 15):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        for line in lines[:3]:
            shutil.rmtree(tmp_path / "merged", ignore_errors=True)
            assert main(line) == 2
            error = capsys.readouterr().err.strip().splitlines()[-1]
            assert str(path) in error and error.startswith("referee: "), error
            assert not (tmp_path / "out").exists()
            assert path.name not in {each.name for each in (tmp_path / "merged").glob("episodes/*")}
    assert main(lines[3]) == 2 and "checksum" in capsys.readouterr().err
    path.write_bytes(whole)
    for line in lines[:3]:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        assert main(line) == 0


@pytest.mark.parametrize("damage", ["edited", "flipped", "without a checksum"])
def test_a_manifest_shows_only_what_the_files_say(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    store = EpisodeStore(tmp_path)
    for seed in range(4):
        store.append(make_episode(seed=seed, success_from=None))
    manifest = tmp_path / "manifest.jsonl"
    text = manifest.read_text()
    assert text.count('"success_once":false') == 4
    if damage == "flipped":
        manifest.write_text(text.replace('"steps":', '"stepr":', 1))
    else:
        edited = text.replace('"success_once":false', '"success_once":true')
        manifest.write_text(edited if damage == "edited" else re.sub(r',"checksum":"crc32:\w{8}"', "", edited))
    assert main(["episodes", "ls", str(tmp_path)]) == 0
    assert "0.0 %" in capsys.readouterr().out.splitlines()[1]
    lines = [line for line in caplog.messages if "manifest.jsonl" in line]
    assert len(lines) == (damage != "without a checksum")
    assert manifest.read_text() == text  # put right, once
    caplog.clear()
    assert main(["episodes", "ls", str(tmp_path)]) == 0 and not caplog.messages


def test_mutated_manifests_and_logs_are_no_tracebacks(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path / "store")
    for seed in range(3):
        id = store.append(make_episode(seed=seed, success_from=3))
    LabelLog.of(store).append(id, True, frames=(1, 3), source="web", who="ada")
    places = [store.root / "manifest.jsonl", store.root / "labels.jsonl"]
    whole, rows, labels = [path.read_bytes() for path in places], store.rows, LabelLog.of(store).words
    old = [re.sub(rb',"checksum":"crc32:\w{8}"', b"", data) for data in whole]
    for seed in range(50):
        for path, data in zip(places, whole if seed % 2 else old, strict=True):
            path.write_bytes(mutated(data, seed))
        again = EpisodeStore(store.root)
        assert again.rows == rows
        if seed % 2:
            assert set(LabelLog.of(again).words) <= set(labels)
        for line in (["episodes", "ls"], ["episodes", "check"]):
            assert main([*line, str(store.root)]) in (0, 2)


def test_names_in_brackets_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    episode = make_episode(id="[a]x[b]")
    store = EpisodeStore(tmp_path / "[/in]")
    store.append(replace(episode, meta=replace(episode.meta, task="[/red]", cameras=("[/]", "[b]"))))
    assert main(["episodes", "ls", str(store.root)]) == 0
    shown = capsys.readouterr().out
    assert "[/red] 1" in shown and "[a]x[b]" in shown and "[/in]" in shown
    data = store.path("[a]x[b]").read_bytes()
    store.path("[a]x[b]").write_bytes(data[:-1])
    assert main(["episodes", "check", str(store.root)]) == 2
    assert "[a]x[b].safetensors" in capsys.readouterr().out


def test_check_names_changed_labels_and_counts_what_has_no_checksum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = EpisodeStore(tmp_path)
    id = store.append(make_episode())
    log = LabelLog.of(store)
    log.append(id, True, source="web", frames=2, who="ada")
    log.append(id, False, source="web", frames=3, who="ada")
    text = log.path.read_text()
    log.path.write_text(text.replace("true", "null"))
    assert main(["episodes", "check", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert "labels.jsonl: line 0 has changed since it was written (checksum) and is ignored" in shown.out
    assert "1 lines of" in shown.err
    assert [word.number for word in LabelLog.of(store).words] == [1]
    log.path.write_text(text)
    path = store.path(id)
    path.write_bytes(without_checksums(path.read_bytes()))
    EpisodeStore(tmp_path)
    assert main(["episodes", "check", str(tmp_path)]) == 0
    assert "1 episodes are of an older version" in capsys.readouterr().out

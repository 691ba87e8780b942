"""The probe of what a CPU can do: asked once, remembered, and capped only where it kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from referee import cpu
from referee.files import cache_dir


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(cpu.CAP, raising=False)
    monkeypatch.setenv("REFEREE_CACHE", str(tmp_path / "cache"))


def test_the_probe_tells_death_from_failure() -> None:
    assert cpu.probe("pass") is False
    assert cpu.probe("import os, signal; os.kill(os.getpid(), signal.SIGILL)") is True
    assert cpu.probe("raise SystemExit(3)") is None
    assert cpu.probe("import os, signal; os.kill(os.getpid(), signal.SIGKILL)") is None
    assert cpu.probe("import time; time.sleep(60)", timeout=0.5) is None


def test_the_probe_runs_without_a_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cpu.CAP, "AVX2")
    assert cpu.probe(f"import os; raise SystemExit(os.environ.get({cpu.CAP!r}) is not None)") is False


@pytest.mark.parametrize("kills", [True, False])
def test_it_is_asked_once_and_remembered(monkeypatch: pytest.MonkeyPatch, kills: bool) -> None:
    asked = []
    monkeypatch.setattr(cpu, "advertises_amx", lambda: True)
    monkeypatch.setattr(cpu, "probe", lambda: asked.append(1) or kills)
    assert cpu.amx_kills() is kills and cpu.amx_kills() is kills
    assert len(asked) == 1
    assert [path.name[:4] for path in cache_dir().iterdir()] == ["cpu-"]
    next(cache_dir().iterdir()).write_text("{")
    assert cpu.amx_kills() is kills and len(asked) == 2


def test_the_cap_is_set_only_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setattr(cpu, "advertises_amx", lambda: True)
    monkeypatch.setattr(cpu, "probe", lambda: False)
    assert cpu.cap_if_needed() is False and cpu.CAP not in os.environ
    assert cpu.status() == "AMX works"
    monkeypatch.setattr(cpu, "amx_kills", lambda: True)
    assert "kills" in cpu.status()
    assert cpu.cap_if_needed() is True and os.environ[cpu.CAP] == cpu.CAPPED
    monkeypatch.setenv(cpu.CAP, "AVX2")
    assert cpu.cap_if_needed() is True and os.environ[cpu.CAP] == "AVX2"
    assert "AVX2" in cpu.status()


def test_a_failed_probe_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "advertises_amx", lambda: True)
    monkeypatch.setattr(cpu, "probe", lambda: None)
    assert cpu.amx_kills() is False and not cache_dir().exists()


def test_without_amx_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_cpu_text", lambda name: "fpu avx2 avx512f")
    monkeypatch.setattr(cpu, "probe", lambda: pytest.fail("asked"))
    assert cpu.cap_if_needed() is False
    assert "no AMX" in cpu.status() and not cpu.has_vnni()
    monkeypatch.setattr(cpu, "_cpu_text", lambda name: "fpu avx512_vnni amx_tile")
    assert cpu.advertises_amx() and cpu.has_vnni()
    monkeypatch.setattr(cpu, "_cpu_text", lambda name: "")
    assert cpu.has_vnni()  # not an x86


def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setattr(cpu, "advertises_amx", lambda: True)
    monkeypatch.setattr(cpu, "probe", lambda: True)
    assert cpu.amx_kills() is True

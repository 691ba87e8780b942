"""Files of YAML and overrides that would take for ever, or all memory, are refused in one line."""

import itertools
import time
from pathlib import Path

import pytest

from referee.config import yamltext
from referee.config.compose import compose
from referee.config.files import PRESETS, Start, locate
from referee.config.schema import Config
from referee.errors import ConfigError


def doubled(levels: int, width: int) -> str:
    lines = ["a0: &a0 {x: 1}"]
    for level in range(levels):
        inside = ", ".join(f"k{index}: *a{level}" for index in range(width))
        lines.append(f"a{level + 1}: &a{level + 1} {{{inside}}}")
    return "\n".join(lines)


def merged(levels: int) -> str:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n + 1}: &a{n + 1}\n  p: {{<<: *a{n}}}\n  q: {{<<: *a{n}}}" for n in range(levels)]
    return "\n".join(lines)


def listed(levels: int) -> str:
    names = [f"a{level}" for level in range(levels)]
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in itertools.pairwise(names)]
    return "\n".join(lines)


BOMBS = {
    "lists": (listed(9), "more than 20000 values"),
    "dicts": (doubled(25, 2), "more than 20000 values"),
    "merge keys": (merged(25), "more than 20000 values"),
    "one value many times": ("a: &a 1\nb: [" + "*a, " * 1100 + "*a]", "more than 1000 aliases"),
    "long chain": ("a0: &a0 [1]\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 70)), "50 deep"),
    "deep lists": ("a: " + "[" * 5000 + "]" * 5000, "nested more than 50 deep"),
    "deep dicts": ("\n".join(" " * n + f"k{n}:" for n in range(300)), "nested more than 50 deep"),
    "in itself": ("a: &a [*a]", "stands inside of what it names"),
    "large": ("a: 1\n" * 100_000, "but a configuration may have 256 KiB"),
    "binary": ("\x00\x01", "is not valid YAML"),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("place", ["file", "group"])
@pytest.mark.alone
def test_bombs_are_refused_in_one_line(tmp_path: Path, name: str, place: str) -> None:
    text, reason = BOMBS[name]
    (tmp_path / "world").mkdir()
    file = tmp_path / ("mine.yaml" if place == "file" else "world/mine.yaml")
    if place == "group":
        (tmp_path / "mine.yaml").write_text("defaults:\n  - world@env: mine\n  - _self_\n")
    file.write_text(text)
    begin = time.perf_counter()
    with pytest.raises(ConfigError) as error:
        compose(locate(str(tmp_path / "mine.yaml"), None, None), [], Config)
    assert time.perf_counter() - begin < 10
    assert reason in str(error.value) and "mine.yaml" in str(error.value) and "\n" not in str(error.value)


def test_aliases_within_reason_are_read() -> None:
    yamltext.check(b"a: &a {x: 1, y: [1, 2]}\nb: *a\nc: {<<: *a, z: 3}\n")
    yamltext.check(doubled(8, 2).encode())
    for preset in PRESETS.glob("*.yaml"):
        yamltext.check(preset.read_bytes())


@pytest.mark.parametrize("value", ["[" * 3000, "[" * 200 + "]" * 200, "9" * 6000, "a" * 30_000])
def test_overrides_beyond_measure_are_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="override") as error:
        compose(Start(PRESETS, "panda_ppo_mlp"), [f"runner.seed={value}"], Config)
    assert len(str(error.value)) < 300 and "\n" not in str(error.value)


def test_names_beyond_measure_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown preset"):
        locate("9" * 6000, None, None)
    with pytest.raises(ConfigError, match="cannot be a file"):
        locate(f"./{'9' * 6000}.yaml", None, None)

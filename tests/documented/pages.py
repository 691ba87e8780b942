"""What the README and the docs tell people to type: blocks of shell and of Python, and the commands in them."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)``` *$", re.DOTALL | re.MULTILINE
)
SHELL, PYTHON = ("bash", "sh", "shell", "console"), ("python", "py", "pycon")
WRITES = ("--out", "--output-dir", "--output-checkpoint", "--token-file")
WRITE_KEYS = ("runner.logger.log_path", "env.eval.data_collection.save_dir", "reward.save_dir")
INLINE = re.compile(r"(?<!`)`(referee [a-z][^`]*)`(?!`)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """One line of a shell block, continuation lines joined."""

    page: str
    line: int
    text: str
    """As it stands there, without its comment."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def pages() -> list[Path]:
    """README, contributing and everything under docs."""
    return [
        *(ROOT / name for name in ("README.md", "README.zh.md", "CONTRIBUTING.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


def name(page: Path) -> str:
    """Of a page, as tests are called."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """All fenced blocks, in their order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(name(page), text.count("\n", 0, found.start()) + 2, found["language"], textwrap.dedent(found["text"]))
        for found in FENCE.finditer(text)
    ]


def commands(block: Block) -> Iterator[Command]:
    """The commands of a shell block."""
    lines = block.text.splitlines()
    number = 0
    while number < len(lines):
        start, parts = number, [bare(lines[number])]
        while parts[-1].endswith("\\") and number + 1 < len(lines):
            number += 1
            parts[-1] = parts[-1][:-1].rstrip()
            parts.append(bare(lines[number]))
        number += 1
        text = " ".join(part.strip() for part in parts if part.strip())
        if text:
            yield Command(block.page, block.line + start, text)


def targets(words: list[str]) -> list[str]:
    """What a command makes anew."""
    found = [after for word, after in itertools.pairwise(words) if word in WRITES]
    found += [word.partition("=")[2] for word in words if word.partition("=")[0] in WRITE_KEYS]
    words = words[1:] if words[:1] == ["referee"] else words
    if words[:2] == ["episodes", "convert"]:
        found.append(words[3])
    if words[:2] == ["vlm", "tiny-init"]:
        found.append(words[2])
    return found


def bare(line: str) -> str:
    """A line without its comment, which begins with # at the start of a word and outside of quotes."""
    quote = ""
    for place, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (place == 0 or line[place - 1].isspace()):
            return line[:place].rstrip()
    return line.rstrip()


def all_commands() -> list[Command]:
    """Of all pages."""
    return [each for page in pages() for block in blocks(page) if block.language in SHELL for each in commands(block)]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def inline(page: Path) -> list[str]:
    """Commands that are named in the text, as `referee eval RUN`."""
    return [" ".join(found[1].split()) for found in INLINE.finditer(prose(page))]

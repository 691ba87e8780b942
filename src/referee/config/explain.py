"""What became of keys in the spelling of RLinf's guides, for people: in full, or one line that is shown once."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from referee import files
from referee.config.keys import Spec, specs
from referee.config.loaded import Loaded
from referee.config.translate import GUIDES
from referee.config.translator import Translated, Translation
from referee.config.yamltext import scalar

WIDTH = 80


def first_time(loaded: Loaded) -> list[str]:
    """A line for each source with translated keys, unless it has been shown for just these keys and values before."""
    folder = files.cache_dir() / "notices"
    lines = []
    for each in loaded.translated:
        if (folder / each.digest).exists():
            continue
        lines.append(each.line)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / each.digest).touch()
        except OSError:
            continue  # then it is shown again, which does no harm
    return lines


def explain(loaded: Loaded) -> str:
    """All translated keys by source, what the spelling implies, and what to change."""
    lines: list[str] = []
    for each in loaded.translated:
        lines += [*([""] if lines else []), *_source(each, loaded)]
    if not lines:
        lines = [f"{loaded.preset}: every key has its current name, nothing is translated"]
    if loaded.notices:
        lines += ["", "To know, or to change:", *_wrapped(loaded.notices)]
    return "\n".join(lines) + "\n"


def _source(translated: Translated, loaded: Loaded) -> Iterator[str]:
    moved = [entry for entry in translated.entries if entry.key is not None]
    without = [entry for entry in translated.entries if entry.key is None]
    count = len(translated.entries)
    yield f"{translated.source}: {count} key{'s' * (count > 1)} as in RLinf's guides"
    for entry in moved:
        yield f"  {_guide(entry)}  {entry.written}: {_shown(entry.written_value)}"
        yield f"       → {entry.key}: {_shown(entry.value)}"
        yield from _indented(_help(str(entry.key), loaded.config))
    if without:
        yield "  Without effect:"
    for entry in without:
        yield f"  {_guide(entry)}  {entry.written}: {_shown(entry.written_value)}"
        yield from _indented(entry.row.because)
    implied = [each for each, source in loaded.implied if source == translated.source]
    if implied:
        yield "  Not named there, and set as those guides do it:"
    for value in implied:
        yield f"  {value.guides[0]}  {value.key}: {_shown(value.value)}"
        yield from _indented(f"{value.effect}; recommended: {value.advice}" if value.advice else value.effect)
    numbers = dict.fromkeys([*(_guide(entry) for entry in translated.entries), *(each.guides[0] for each in implied)])
    yield "  Guides: " + "\n          ".join(f"{number} {GUIDES[number]}" for number in sorted(numbers))


def _guide(entry: Translation) -> str:
    return entry.row.document


def _help(key: str, config: Any) -> str:
    """What the schema says about a key, in the section that is chosen here."""
    section, *rest = key.split(".")
    if isinstance(config, tuple):
        return _help(".".join(rest), config[int(section)])
    if isinstance(config, Mapping):
        return _help(".".join(rest), config[section]) if rest else ""
    inner = getattr(config, section)
    return _help(".".join(rest), inner) if rest and inner is not None else _keys(type(config))[section].key.help


def _keys(section: type) -> dict[str, Spec]:
    return specs(section)


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * 9, subsequent_indent=" " * 9)


def _wrapped(notices: list[str]) -> list[str]:
    wrap = textwrap.TextWrapper(WIDTH, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False)
    return [line for notice in notices for line in wrap.wrap(notice)]


def _shown(value: object) -> str:
    return value if isinstance(value, str) and "${" in value else scalar(value)

"""A hook of mkdocs: README, changelog and the command's own help join the site; links to them work in both places."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "readme.md",
    "README.zh.md": "readme.zh.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""File of the repository → page of the site."""
COMMAND = """# The command

Every verb of `referee`, as its `--help` says it. `key=value` are overrides of a preset's keys, as in Hydra:
`referee config show PRESET` lists them. Expected errors are one line and exit code 2.
"""

KEYS = """# All keys

Every key of the configuration, from the schema. What a preset sets, and where each value comes from, says
`referee config show PRESET`; keys of older documents are in [Keys of the documents](../keys.md).
`env.train` and `env.eval` have the same keys. Where a section has several kinds, the kind is named beside its keys.
"""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie outside of docs/."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=as_page((ROOT / name).read_text(encoding="utf-8"))))
    files.append(File.generated(config, "reference/command.md", content=command_page()))
    files.append(File.generated(config, "reference/all_keys.md", content=keys_page()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links that leave docs/ for one of these pages stay in the site."""
    for name, page in PAGES.items():
        markdown = re.sub(rf"\]\(((?:\.\./)*)\.\./{re.escape(name)}", rf"](\g<1>{page}", markdown)
    return markdown


def as_page(text: str) -> str:
    """Links of a file at the repository's top, as seen from the site's top."""
    text = re.sub(r'(\]\(|src=")docs/', r"\1", text)
    for name, page in PAGES.items():
        text = text.replace(f"]({name}", f"]({page}")
    return text


def command_page() -> str:
    """All verbs with their arguments."""
    sys.path.insert(0, str(ROOT / "src"))
    from referee.cli import _parser

    parts = [COMMAND]
    for name, about, parser in verbs(_parser(), "referee"):
        parts.append(f"## {name}\n\n{about[:1].upper()}{about[1:]}.\n")
        rows = [row(action) for action in parser._actions if not isinstance(action, argparse._HelpAction)]
        if rows:
            parts.append("\n".join(["| argument | |", "|---|---|", *rows]) + "\n")
        examples = (parser.epilog or "").removeprefix("examples:\n")
        if examples:
            parts.append(f"```bash\n{textwrap.dedent(examples)}\n```\n")
    return "\n".join(parts)


def keys_page() -> str:
    """All keys of the schema, a table for each section."""
    sys.path.insert(0, str(ROOT / "src"))
    from referee.config.schema import Config

    parts = [KEYS]
    for heading, about, rows in tables(Config, ""):
        parts.append(f"## {heading}\n\n{about}\n")
        parts.append("\n".join(["| key | default | |", "|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def tables(section: type, name: str) -> Iterator[tuple[str, str, list[str]]]:
    """Heading, purpose and rows of a section, and of those in it."""
    from referee.config.keys import specs

    rows = [key_row(key, spec.key, spec.default) for key, spec in specs(section).items() if not spec.classes]
    if rows:
        yield f"{name} ({section.__name__})" if name else "top", (section.__doc__ or "").split("\n\n")[0], rows
    for key, spec in specs(section).items():
        place = f"{name}.{key}".lstrip(".") + (".*" if spec.entries else "")
        for inner in spec.classes if not (name == "env" and key == "eval") else ():
            yield from tables(inner, place)


def key_row(name: str, key: Any, default: object) -> str:
    """One key as a row of a table."""
    from dataclasses import MISSING

    shown = "to be given" if default is MISSING else f"`{'null' if default is None else plain(default)}`"
    about = key.help + (f" ({', '.join(map(str, key.choices))})" if key.choices else "")
    about += f"; acts only with {key.only_if}" if key.only_if else ""
    return f"| `{name}` | {shown} | {about.replace('|', chr(92) + '|')} |"


def plain(value: object) -> str:
    """A value as YAML would write it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(plain, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def verbs(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Name, help and parser of each verb that does something, nested ones too."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for verb, inner in action.choices.items():
                nested = list(verbs(inner, f"{name} {verb}"))
                yield from nested or [(f"{name} {verb}", helps.get(verb, ""), inner)]


def row(action: argparse.Action) -> str:
    """One argument as a row of a table."""
    shown = " ".join(f"`{option}`" for option in action.option_strings) or f"`{action.dest}`"
    about = (action.help or "").replace("|", "\\|")
    if action.choices:
        about += f" ({', '.join(map(str, action.choices))})"
    return f"| {shown} | {about.strip()} |"

"""HTML pages that need no other file: autoescaped Jinja2 templates, with styles, scripts and pictures inside."""

from __future__ import annotations

import base64
import io
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from PIL import Image

from referee import files
from referee.audit.words import likely, percent, plain, span
from referee.errors import RefereeError

HOME = "referee.audit"
"""Its folder `template` has the frame of all pages, their style sheet, and what they share."""


def render(template: str, *, package: str = HOME, **values: Any) -> str:
    """The text of a page. package: the folder `template` of which holds the template."""
    return _environment(package).get_template(template).render(values)


def write(path: Path, text: str) -> None:
    """Write a page; the whole file, or none of it."""
    try:
        files.write_text(path, text)
    except OSError as error:
        raise RefereeError(f"cannot write {path} ({error.strerror})") from error


def picture(image: np.ndarray, kind: str = "PNG", **options: Any) -> str:
    """A picture uint8[H,W,3 or 4] as the address of an image."""
    data = io.BytesIO()
    Image.fromarray(image).save(data, kind, optimize=True, **options)
    return f"data:image/{kind.lower()};base64,{base64_of(data.getvalue())}"


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


@cache
def _environment(package: str) -> Environment:
    loaders = [PackageLoader(name, "template") for name in dict.fromkeys((package, HOME))]
    pages = Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    pages.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    pages.filters |= {"percent": percent, "plain": plain, "span": span, "likely": likely, "together": _together}
    pages.globals["asset"] = _asset
    return pages


def _asset(name: str) -> Markup:
    """A style sheet or a script, as it is."""
    return Markup((resources.files(HOME) / "template" / name).read_text())


def _together(text: str) -> Markup:
    """Numbers keep their sign."""
    return escape(text).replace(" %", Markup("&nbsp;%"))

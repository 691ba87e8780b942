"""Dataclasses out of plain values, as JSON gives them: every name and every type is checked."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
MAX_WHOLE = 2**63


def build(kind: type[T], values: Any) -> T:
    """An object of a dataclass; ValueError says which name is missing, strange or of another type."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{_brief(values)} is no JSON object")
    hints = get_type_hints(kind)
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    if (strange := next((name for name in values if name not in known), None)) is not None:
        raise ValueError(f"{_brief(strange)} is none of {', '.join(known)}")
    needed = [name for name, each in known.items() if each.default is MISSING and each.default_factory is MISSING]
    if missing := next((name for name in needed if name not in values), None):
        raise ValueError(f"it says no {missing}")
    return kind(**{name: _fitted(hints[name], value, name) for name, value in values.items()})


def _fitted(hint: Any, value: Any, name: str) -> Any:
    """The value as its annotation says: lists become tuples, objects become dataclasses."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inside:
            return None
        options = [each for each in inside if each is not type(None)]
        for option in options[:-1]:
            try:
                return _fitted(option, value, name)
            except ValueError:
                continue
        return _fitted(options[-1], value, name)
    if hint is Any:
        return value
    if hint is float and (type(value) is float or (type(value) is int and abs(value) < MAX_WHOLE)):
        return value
    if hint is int and type(value) is int and abs(value) < MAX_WHOLE:
        return value
    if hint in (bool, str) and type(value) is hint:
        return value
    if origin is tuple and isinstance(value, list | tuple):
        hints = [inside[0]] * len(value) if inside[-1] is ... else list(inside)
        if len(hints) == len(value):
            return tuple(_fitted(each, item, name) for each, item in zip(hints, value, strict=True))
    if origin is dict and isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _fitted(inside[1], item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__") and isinstance(value, Mapping):
        return build(hint, value)
    raise ValueError(f"{name} is {_brief(value)}, which it cannot be")


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"

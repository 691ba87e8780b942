"""Functions that users choose by name and set with parameters; a wrong name or parameter meets the nearest one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from referee.config.declare import nearest_word
from referee.errors import RefereeError

F = TypeVar("F", bound=Callable[..., Any])


class Named(Generic[F]):
    """Functions by name. Their first argument is what they work on, the keyword-only ones are parameters."""

    def __init__(self, what: str, key: str) -> None:
        """what: in words; key: where the name and, as key + "_params", the parameters are configured."""
        self.what, self.key = what, key
        self._known: dict[str, F] = {}

    def add(self, name: str, function: F) -> F:
        """Make a function known; the name of another one is refused."""
        known = self._known.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (function.__module__, function.__qualname__):
            raise RefereeError(f"{self.what} {name!r} is taken by {known.__module__}.{known.__qualname__}")
        self._known[name] = function
        return function

    def get(self, name: str, params: Mapping[str, Any]) -> F:
        """The function, once its parameters are found to be such as it takes."""
        if name not in self._known:
            near = nearest_word(name, self._known)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(self._known)}"
            raise RefereeError(
                f"{self.key}_name={name} is unknown: {hint} (or name the module that registers it: runner.imports, or "
                "--import of audit)"
            )
        function = self._known[name]
        takes = inspect.signature(function).parameters.values()
        options = [each.name for each in takes if each.kind is each.KEYWORD_ONLY]
        for given in params:
            if given not in options and not any(each.kind is each.VAR_KEYWORD for each in takes):
                near = nearest_word(given, options)
                hint = f"did you mean {near}?" if near else f"it takes {', '.join(options) or 'none'}"
                raise RefereeError(f"{self.key}_params.{given} is no parameter of {name}: {hint}")
        return function

"""Can it be trusted? Calibration, threshold and gate, measured numbers, and the report card that shows them.

The package is also the function `referee.audit(artifact, episodes, labels=None, *, groups=None, …) -> ReportCard`; see
`referee.api.audit`.
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """`referee.audit` names this package and the function of the library; a call is the function's."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return import_module("referee.api").audit(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(import_module("referee.api").audit)


sys.modules[__name__].__class__ = _CallablePackage

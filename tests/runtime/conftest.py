"""The small reward model of the runners' tests serves here, too."""

from tests.runners.conftest import refinable

__all__ = ["refinable"]

"""The small reward model of the recipes' tests serves here, too."""

from tests.recipes.conftest import refinable

__all__ = ["refinable"]

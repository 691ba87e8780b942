"""Every key of RLinf's five reward-model guides does what the guide says: one measured effect for each."""

from __future__ import annotations

import pytest
from tests.documented.cases import EFFECTS, Case, Effect, Tools, cases, parameters, tools
from tests.documented.effects import arm, collection, history, model, reward, sft, training

__all__ = [
    "arm",
    "collection",
    "history",
    "model",
    "reward",
    "sft",
    "tools",
    "training",
]  # importing a module of effects registers its checks


@pytest.mark.parametrize(("case", "each"), parameters(EFFECTS))
def test_a_key_has_its_effect(case: Case, each: Effect, tools: Tools) -> None:
    each.check(case, tools)


def test_each_key_of_each_block_has_a_check() -> None:
    bare = [str(case) for case in cases() if not any(each.covers(case) for each in EFFECTS)]
    assert not bare, f"{len(bare)} keys whose effect nothing checks: {bare}"


def test_each_check_is_for_some_key() -> None:
    for each in EFFECTS:
        for key in each.keys:
            one = Effect(each.check, (key,), each.blocks)
            assert any(one.covers(case) for case in cases()), (
                f"{each.check.__name__}: no block of {each.blocks} has {key}"
            )

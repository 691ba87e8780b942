"""Rewards of text answers by rule: the same word, the same number, a pattern, or mathematics that is equal."""

from __future__ import annotations

import logging
import math
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from referee.config.history import TextRewardConfig
from referee.errors import RefereeError
from referee.models.contract import Verdict
from referee.optional import require
from referee.rewards.patterns import Matcher

NUMBER = re.compile(r"(?:(?<![\w.)\]}%])[-+])?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?:\s*/\s*\d+)?%?")
"""A sign behind a digit, a letter or a bracket is no sign of a number but a difference: 7-4 ends in 4."""
MINUS = "\N{MINUS SIGN}"
LONGEST = 1000
"""Characters of an answer that are read as mathematics: nobody's result is longer."""
SECONDS = 30
"""For one comparison; what takes longer is not equal."""


def judge_texts(answers: Sequence[str], references: Sequence[str], config: TextRewardConfig) -> Verdict:
    """What the rule says of n answers: success, and as score what it pays; there is no probability."""
    if len(answers) != len(references):
        raise RefereeError(f"{len(answers)} answers cannot be compared with {len(references)} references")
    rule = RULES[config.rule]
    right = [rule(answer, reference, config) for answer, reference in zip(answers, references, strict=True)]
    success = np.array(right, bool)
    score = np.where(success, config.success_reward, config.fail_reward).astype(np.float32)
    return Verdict(score, None, success)


def final_answer(text: str) -> str:
    """What a text gives as its result: the last \\boxed{…}, else what stands behind the last ####, else all of it."""
    start = text.rfind("\\boxed{")
    if start >= 0:
        depth = 0
        for place in range(start + 6, len(text)):
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                return text[start + 7 : place].strip()
    return text.rpartition("####")[2].strip()


def last_number(text: str) -> float | None:
    """The last number in a text, as 1,234.5, -2e3, 3/4 or 12%; None where none is, or it is too large for one."""
    found = NUMBER.findall(text.replace(MINUS, "-"))
    if not found:
        return None
    plain = found[-1].replace(",", "")
    percent = plain.endswith("%")
    top, _, bottom = plain.rstrip("%").partition("/")
    try:
        value = float(top) / float(bottom or "1")
    except ZeroDivisionError:
        return None
    return (value / 100 if percent else value) if math.isfinite(value) else None


def exact(answer: str, reference: str, config: TextRewardConfig) -> bool:
    """The same text, but for space around and between words."""
    return final_answer(answer).split() == final_answer(reference).split()


def numeric(answer: str, reference: str, config: TextRewardConfig) -> bool:
    """The same number: the last one of each."""
    wanted = last_number(final_answer(reference))
    if wanted is None:
        raise RefereeError(f"reference {reference[:200]!r} holds no number: use another rule, or repair it")
    found = last_number(final_answer(answer))
    return found is not None and math.isclose(found, wanted, rel_tol=config.tolerance, abs_tol=config.tolerance)


def regex(answer: str, reference: str, config: TextRewardConfig) -> bool:
    """The reference is a pattern; the whole answer must fit it, and that must be clear in a few seconds."""
    try:
        re.compile(reference)
    except (re.error, OverflowError, RecursionError) as error:
        raise RefereeError(f"reference {reference[:200]!r} is no regular expression: {error}") from error
    return _matcher.fits(reference, answer.strip())


def maths(answer: str, reference: str, config: TextRewardConfig) -> bool:
    """Equal as mathematics, written in LaTeX or plainly; sets, equations and matrices, too."""
    wanted = _parsed(reference)
    if not wanted:
        raise RefereeError(
            f"reference {reference[:200]!r} cannot be read as mathematics: use another rule, or repair it"
        )
    found = _parsed(answer)
    return bool(found) and bool(_library().verify(wanted, found, timeout_seconds=_seconds()))


def _parsed(text: str) -> list[Any]:
    """What a text says in mathematics. Only LaTeX is parsed, by a grammar: the library's other way evaluates it."""
    result = final_answer(text)[-LONGEST:]
    library = _library()
    read = result if "$" in result or "\\(" in result or "\\[" in result else f"${result}$"
    return library.parse(
        read, extraction_config=[library.LatexExtractionConfig()], fallback_mode="no_fallback",
        parsing_timeout=_seconds(), raise_on_error=False,
    )  # fmt: skip


def _seconds() -> int | None:
    """The library keeps time with signals, which only the main thread gets."""
    return SECONDS if threading.current_thread() is threading.main_thread() else None


def _library() -> Any:
    library = require("math_verify", extra="text", what="reward.text.rule=math")
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return library


_matcher = Matcher()
Rule = Callable[[str, str, TextRewardConfig], bool]
RULES: dict[str, Rule] = {"exact": exact, "numeric": numeric, "regex": regex, "math": maths}

"""What an answer of a vision-language model means and pays. A parser of your own takes a few lines:

@register_reward_parser("mine", words=("yes", "no", "maybe"))
def read(text: str, *, reward: float = 1.0) -> tuple[str, float]:
    word = text.strip().lower()
    return {"yes": ("positive", reward), "no": ("negative", 0.0)}.get(word, ("invalid", 0.0))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from referee.datasets.windows import LABELS, NEGATIVE, POSITIVE, UNCLEAR
from referee.errors import RefereeError
from referee.models.vlm.answers import INVALID
from referee.models.vlm.named import Named

QWENTREND = "qwentrend_reward_parser"
P = TypeVar("P", bound=Callable[..., tuple[str, float]])
_parsers: Named[Callable[..., tuple[str, float]]] = Named("reward parser", "reward_parser")
_words: dict[str, tuple[str, ...]] = {}
_WORD = re.compile(rf"\b({'|'.join(LABELS)})\b", re.IGNORECASE)
_NEGATION = re.compile(
    r"\b(?:not|no|non|never|neither|nor|none|nothing|without|hardly|cannot"
    r"|(?:is|are|was|were|do|does|did|has|have|ca|could|wo|would|should)n['’]?t)\b",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?;](?=\s|$)|\n")
_THOUGHT = re.compile(r"<think>.*?(</think>|$)", re.DOTALL)


@dataclass(frozen=True)
class RewardParser:
    """From a text to a label and a reward."""

    read: Callable[[str], tuple[str, float]]
    words: tuple[str, ...] = LABELS
    """What a model says for positive, negative and unclear: their probabilities are compared when it is only scored."""

    def __call__(self, text: str) -> tuple[str, float]:
        """(positive | negative | unclear | invalid, reward)"""
        label, reward = self.read(text)
        if label not in (*LABELS, INVALID):
            raise RefereeError(f"a reward parser said {label!r}: it must be {', '.join(LABELS)} or {INVALID}")
        return label, float(reward)

    @property
    def to_and_fro(self) -> float:
        """The reward of a rise and a fall together. Above 0, a policy earns by going to and fro without end."""
        rise, fall = (self(word)[1] for word in self.words[:2])
        return rise + fall


def register_reward_parser(name: str, *, words: tuple[str, ...] = LABELS) -> Callable[[P], P]:
    """A decorator that makes a parser known: it takes a text, and keyword-only parameters."""
    if len(words) != len(LABELS):
        raise RefereeError(f"reward parser {name!r}: words are one for each of {', '.join(LABELS)}")

    def add(parser: P) -> P:
        _parsers.add(name, parser)
        _words[name] = words
        return parser

    return add


def make_reward_parser(name: str = QWENTREND, params: Mapping[str, Any] | None = None) -> RewardParser:
    """The parser called `name`, with its parameters set."""
    params = params or {}
    return RewardParser(partial(_parsers.get(name, params), **params), _words[name])


@register_reward_parser(QWENTREND)
def qwentrend_reward_parser(
    text: str,
    *,
    positive_reward: float = 1.0,
    negative_reward: float = -0.2,
    unclear_reward: float = 0.0,
    invalid_reward: float = 0.0,
) -> tuple[str, float]:
    """The one label word in a text. None of them, several different ones, or a negation before it: invalid."""
    found = _said(_THOUGHT.sub("", text))
    label = found.pop() if len(found) == 1 else INVALID
    rewards = {
        POSITIVE: positive_reward,
        NEGATIVE: negative_reward,
        UNCLEAR: unclear_reward,
        INVALID: invalid_reward,
    }
    return label, rewards[label]


def _said(text: str) -> set[str]:
    """The label words in a text, in lower case; "invalid" for one behind a negation in the same sentence."""
    found = set()
    for sentence in _SENTENCE_END.split(text):
        for word in _WORD.finditer(sentence):
            negated = _NEGATION.search(sentence, 0, word.start()) is not None
            found.add(INVALID if negated else word[0].lower())
    return found

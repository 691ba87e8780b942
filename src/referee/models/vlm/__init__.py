"""Vision-language models that judge windows: what they are asked, what their answers mean, and Qwen3-VL itself.

Importing this package needs nothing beyond the core; `qwen`, `judge` and `tiny` need the extra `vlm`.
"""

from referee.models.vlm.answers import INVALID, Answers, WindowModel
from referee.models.vlm.parsers import RewardParser, make_reward_parser, register_reward_parser
from referee.models.vlm.prompts import InputBuilder, Prompt, make_input_builder, register_input_builder

__all__ = [
    "INVALID",
    "Answers",
    "InputBuilder",
    "Prompt",
    "RewardParser",
    "WindowModel",
    "make_input_builder",
    "make_reward_parser",
    "register_input_builder",
    "register_reward_parser",
]

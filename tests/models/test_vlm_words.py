"""What a vision-language model is asked, and what its answers mean."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.tiny_vlm import TASK, window
from referee.datasets.windows import LABELS
from referee.errors import RefereeError
from referee.models.vlm import (
    Answers,
    Prompt,
    make_input_builder,
    make_reward_parser,
    register_input_builder,
    register_reward_parser,
)
from referee.models.window import Window


def test_the_prompt_shows_both_views_from_the_oldest_frame_to_the_newest() -> None:
    shown = window(1)
    prompt = make_input_builder()(shown)
    images = prompt.images
    assert len(images) == 10
    for number in range(5):
        assert np.array_equal(images[number], shown.frames["main_images"][number])
        assert np.array_equal(images[5 + number], shown.frames["extra_view_images"][number, 0])
    assert TASK in prompt.text and prompt.text.endswith("Answer positive, negative or unclear.")
    film = make_input_builder(params={"as_video": True})(shown)
    assert [part.shape for part in film.parts if not isinstance(part, str)] == [(5, 32, 32, 3)] * 2
    assert all(np.array_equal(a, b) for a, b in zip(film.images, images, strict=True))
    woven = make_input_builder(params={"by_view": False})(shown).images
    assert np.array_equal(woven[2], shown.frames["main_images"][1])
    assert np.array_equal(woven[3], shown.frames["extra_view_images"][1, 0])


def test_the_prompt_depends_on_frames_and_task_alone() -> None:
    """So the answer cannot be in it: windows of all labels with the same frames and task get the same prompt."""
    first, second = (make_input_builder()(window(3)) for _ in range(2))
    assert first.text == second.text
    assert all(first.text.count(label) == 1 for label in LABELS)


def test_a_window_without_a_task_takes_the_default_and_few_frames_keep_both_ends() -> None:
    shown = window(2, task="")
    params = {"default_task_description": "Open the drawer.", "max_frames": 2}
    prompt = make_input_builder(params=params)(shown)
    assert prompt.text.startswith("Task: Open the drawer.\n")
    assert np.array_equal(prompt.images[0], shown.frames["main_images"][0])
    assert np.array_equal(prompt.images[1], shown.frames["main_images"][-1])
    assert len(prompt.images) == 4


def test_wrong_names_and_parameters_meet_the_nearest() -> None:
    with pytest.raises(RefereeError, match="did you mean qwentrend_input_builder"):
        make_input_builder("qwentrend_input_bilder")
    with pytest.raises(RefereeError, match="did you mean default_task_description"):
        make_input_builder(params={"default_task_descripton": "x"})
    with pytest.raises(RefereeError, match="did you mean qwentrend_reward_parser"):
        make_reward_parser("qwentrend_parser")
    with pytest.raises(RefereeError, match="did you mean positive_reward"):
        make_reward_parser(params={"positve_reward": 1.0})
    with pytest.raises(RefereeError, match="no main_images"):
        make_input_builder()(Window({"wrist": np.zeros((5, 8, 8, 3), np.uint8)}, ""))
    with pytest.raises(RefereeError, match="float64"):
        make_input_builder()(Window({"main_images": np.zeros((5, 8, 8, 3))}, ""))


@pytest.mark.parametrize(
    ("text", "label", "reward"),
    [
        ("positive", "positive", 2.0),
        ("  Negative.\n", "negative", -1.0),
        ("The trend is UNCLEAR", "unclear", 0.5),
        ("<think>it may be negative</think> positive", "positive", 2.0),
        ("positive positive", "positive", 2.0),
        ("positive or negative", "invalid", -3.0),
        ("not positive", "invalid", -3.0),
        ("nonpositive", "invalid", -3.0),
        ("non-positive", "invalid", -3.0),
        ("It isn't positive", "invalid", -3.0),
        ("It isn’t positive", "invalid", -3.0),
        ("It isnt positive", "invalid", -3.0),
        ("not really positive", "invalid", -3.0),
        ("This is not a positive trend", "invalid", -3.0),
        ("It cannot be positive.", "invalid", -3.0),
        ("I don't think that the trend is positive", "invalid", -3.0),
        ("neither positive nor negative", "invalid", -3.0),
        ("positive, not negative", "invalid", -3.0),
        ("The hand does not yet hold it. The trend is positive.", "positive", 2.0),
        ("It is not lifted\nAnswer: negative", "negative", -1.0),
        ("It rose by 0.5 cm, so positive", "positive", 2.0),
        ("", "invalid", -3.0),
        ("<think>positive", "invalid", -3.0),
    ],
)
def test_answers_are_read_and_paid(text: str, label: str, reward: float) -> None:
    params = {"positive_reward": 2.0, "negative_reward": -1.0, "unclear_reward": 0.5, "invalid_reward": -3.0}
    assert make_reward_parser(params=params)(text) == (label, reward)


@given(st.text())
def test_any_text_has_a_label(text: str) -> None:
    assert make_reward_parser()(text)[0] in (*LABELS, "invalid")


def test_answers_count_what_cannot_be_read() -> None:
    parser = make_reward_parser()
    first = Answers.read(["positive", "?"], parser)
    joined = Answers.join([first, Answers.read(["negative"], parser)])
    assert joined.label == ("positive", "invalid", "negative") and joined.invalid == 1
    assert joined.reward.tolist() == pytest.approx([1.0, 0.0, -0.2]) and joined.probabilities is None
    assert len(Answers.join([])) == 0


def test_own_builders_and_parsers_take_a_few_lines() -> None:
    @register_input_builder("test_only_builder")
    def ask(shown: Window, *, question: str = "yes or no?") -> Prompt:
        return Prompt((f"{shown.task} {question}", shown.frames["main_images"][-1]))

    @register_reward_parser("test_only_parser", words=("yes", "no", "maybe"))
    def read(text: str, *, reward: float = 1.0) -> tuple[str, float]:
        return {"yes": ("positive", reward), "no": ("negative", 0.0)}.get(text.strip(), ("invalid", 0.0))

    assert make_input_builder("test_only_builder", {"question": "well?"})(window()).text == f"{TASK} well?"
    parser = make_reward_parser("test_only_parser", {"reward": 3.0})
    assert parser(" yes ") == ("positive", 3.0) and parser.words == ("yes", "no", "maybe")
    with pytest.raises(RefereeError, match="is taken by"):
        register_reward_parser("qwentrend_reward_parser")(read)


@given(
    st.lists(st.tuples(*[st.floats(0, 1)] * 3).filter(lambda row: sum(row) > 0.1), max_size=6),
    st.tuples(*[st.floats(-20, 20)] * 3),
)
def test_what_is_expected_is_paid(rows: list[tuple[float, float, float]], pays: tuple[float, float, float]) -> None:
    names = ("positive_reward", "negative_reward", "unclear_reward")
    parser = make_reward_parser(params=dict(zip(names, pays, strict=True)))
    chances = np.array([[each / sum(row) for each in row] for row in rows], np.float32).reshape(-1, 3)
    said = Answers.read([LABELS[row.argmax()] for row in chances], parser, chances)
    found = said.expected(parser, parser.words)
    slow = [sum(float(chance) * pay for chance, pay in zip(row, pays, strict=True)) for row in chances]
    assert found.reward.dtype == np.float32 and np.allclose(found.reward, slow, atol=1e-4)
    assert found.label == said.label and found.text == said.text  # only the pay is another


def test_without_probabilities_nothing_is_expected() -> None:
    parser = make_reward_parser()
    with pytest.raises(RefereeError, match="use the read-out `score`"):
        Answers.read(["positive"], parser).expected(parser, parser.words)


def test_a_part_of_every_view_is_shown_and_another_question_asked() -> None:
    shown = window(4)
    prompt = make_input_builder(params={"crop": "0.25,0.5,0.75,1", "question": "Trend?"})(shown)
    assert np.array_equal(prompt.images[0], shown.frames["main_images"][0][16:, 8:24])
    assert np.array_equal(prompt.images[9], shown.frames["extra_view_images"][4, 0][16:, 8:24])
    assert prompt.text.endswith("Trend?") and "closer" not in prompt.text
    film = make_input_builder(params={"as_video": True, "crop": "0,0,1,0.5"})(shown)
    assert [part.shape for part in film.parts if not isinstance(part, str)] == [(5, 16, 32, 3)] * 2


@pytest.mark.parametrize("crop", ["0.5", "a,b,c,d", "0.5,0,0.2,1", "0,0,1.1,1", "0,0,nan,1", "0,0,0.001,1"])
def test_a_crop_that_shows_nothing_is_refused(crop: str) -> None:
    with pytest.raises(RefereeError, match="crop is"):
        make_input_builder(params={"crop": crop})(window())

"""A tiny Qwen3-VL, saved and loaded as a large one would be: inputs, both read-outs, adapters, and what is refused."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from models.tiny_vlm import small_vlm, window
from referee.cli import main
from referee.datasets.windows import LABELS
from referee.errors import RefereeError
from referee.models.vlm import make_input_builder, make_reward_parser, qwen
from referee.models.vlm.encode import IGNORED
from referee.models.vlm.judge import HistoryVLMRewardModel, ReadOut, VLMRewardModel, score
from referee.models.vlm.parsers import RewardParser
from referee.models.vlm.qwen import Qwen, QwenOptions
from referee.models.window import Window

SCORE = ReadOut(readout="score", infer_micro_batch_size=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_vlm(tmp_path_factory.mktemp("vlm") / "tiny")


@pytest.fixture(scope="module")
def model(folder: Path) -> Qwen:
    return qwen.load(QwenOptions(model_path=folder))


def test_pictures_that_need_no_scaling_get_the_numbers_of_the_official_processor(model: Qwen) -> None:
    images = [image for seed in range(2) for image in make_input_builder()(window(seed)).images]
    quick = model.encoder._patches(images)
    official = model.encoder.images(images, return_tensors="np", input_data_format="channels_last")
    assert quick is not None
    assert np.allclose(quick[0], official["pixel_values"], atol=1e-6)
    assert np.array_equal(quick[1], official["image_grid_thw"])
    assert model.encoder._patches([images[0][:24, :24]]) is None  # those are scaled by the processor


def test_clips_are_cut_into_patches_of_two_frames(model: Qwen) -> None:
    """By hand: the first patch of the second pair; a still clip has the numbers of a picture."""
    clip = window(3, frames=3).frames["main_images"]
    batch = model.encoder.encode([make_input_builder(params={"as_video": True})(window(3, frames=3))])
    assert batch.inputs["video_grid_thw"].tolist() == [[2, 2, 2], [2, 2, 2]]  # three frames, the last one twice
    patches = batch.inputs["pixel_values_videos"].numpy().reshape(2, 2, 4, 3, 2, 16, 16)
    by_hand = (clip[2, :16, :16].astype(np.float32) / 255 - 0.5) / 0.5
    assert np.allclose(patches[0, 1, 0], by_hand.transpose(2, 0, 1)[:, None].repeat(2, 1), atol=1e-6)
    first = (clip[1, 16:, :16].astype(np.float32) / 255 - 0.5) / 0.5
    assert np.allclose(patches[0, 0, 2, :, 1], first.transpose(2, 0, 1), atol=1e-6)
    still = model.encoder._films([clip[:1]])[0]
    picture = model.encoder._patches([clip[0]])
    assert picture is not None and np.allclose(still, picture[0], atol=1e-6)
    text = model.encoder.tokenizer.decode(batch.inputs["input_ids"][0])
    assert "<0.1 seconds><|vision_start|><|video_pad|><|vision_end|><0.2 seconds>" in text
    assert (batch.inputs["mm_token_type_ids"] == 2).sum() == 4
    said = HistoryVLMRewardModel(model, make_input_builder(params={"as_video": True}), how=SCORE).judge([window(3)])
    assert said.probabilities is not None and np.isfinite(said.probabilities).all()
    scaled = model.encoder._films([np.zeros((2, 20, 20, 3), np.uint8)])
    assert scaled[1].tolist() == [[1, 2, 2]] and scaled[0].shape == (4, 1536)


def test_answers_follow_the_prompt_and_only_they_have_labels(model: Qwen) -> None:
    prompts = [make_input_builder()(window(0)), make_input_builder()(window(1, task="Push the cube."))]
    batch = model.encoder.encode(prompts, ["positive", "unclear"])
    ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
    assert batch.labels is not None
    for row, word in enumerate(("positive", "unclear")):
        tail = [*model.encoder.word_tokens(word), model.encoder.end_id]
        assert batch.labels[row].tolist() == [IGNORED] * (ids.shape[1] - len(tail)) + tail
        assert ids[row, -len(tail) :].tolist() == tail and mask[row, -len(tail) :].all()
    assert mask[1, 0] == 0 and mask[0].all()  # the shorter one is padded on the left
    alone = model.encoder.encode(prompts[:1])
    assert ids[0, : -len(model.encoder.answer_tokens("positive"))].tolist() == alone.inputs["input_ids"][0].tolist()
    assert (ids == model.encoder.image_id).sum() == 2 * 10  # 32 px are one token of 2x2 patches of 16 px


def test_scores_are_the_log_probabilities_of_whole_words(model: Qwen) -> None:
    """Against feeding each word by itself; words of several tokens, and prompts of different lengths."""
    prompts = [make_input_builder()(window(0)), make_input_builder()(window(1, task="Push."))]
    words = ("positive", "not so clear at all", "unclear")
    assert len(model.encoder.word_tokens(words[1])) > 2
    found = score(model, model.encoder.encode(prompts), words)
    for row, prompt in enumerate(prompts):
        for column, word in enumerate(words):
            batch = model.encoder.encode([prompt], [word])
            with torch.no_grad():
                logs = torch.log_softmax(model.net(**batch.inputs).logits[0].float(), 1)
            tokens = model.encoder.word_tokens(word)
            first = logs.shape[0] - len(tokens) - 1  # the end of the turn is not part of the word
            by_hand = sum(float(logs[first + place - 1, token]) for place, token in enumerate(tokens))
            assert float(found[row, column]) == pytest.approx(by_hand, abs=1e-4)


def test_batches_do_not_change_answers(model: Qwen) -> None:
    windows = [window(seed, task="Push." if seed % 2 else "Pick up the red cube.") for seed in range(5)]
    judge = HistoryVLMRewardModel(model, how=SCORE)
    together, alone = judge.judge(windows), [judge.judge([each]) for each in windows]
    assert together.probabilities is not None and together.probabilities.shape == (5, 3)
    assert np.allclose(together.probabilities.sum(1), 1, atol=1e-5)
    for row, single in enumerate(alone):
        assert single.probabilities is not None
        assert np.allclose(together.probabilities[row], single.probabilities[0], atol=1e-5)
        assert together.label[row] == LABELS[int(together.probabilities[row].argmax())] == single.label[0]
    assert len(judge.judge([])) == 0


def test_probabilities_pay(model: Qwen) -> None:
    parser = make_reward_parser(params={"positive_reward": 1.0, "negative_reward": -1.0, "unclear_reward": 0.0})
    how = replace(SCORE, score_pay="expected")
    said = HistoryVLMRewardModel(model, parser=parser, how=how).judge([window(0), window(1), window(2)])
    assert said.probabilities is not None and said.reward.dtype == np.float32
    assert np.allclose(said.reward, said.probabilities[:, 0] - said.probabilities[:, 1], atol=1e-6)
    assert not set(said.reward.tolist()) & {-1.0, 0.0, 1.0}


def test_asked_both_ways_what_stands_still_earns_nothing(model: Qwen) -> None:
    """The mean of both directions, by hand; the way back costs what the way there pays."""
    parser = make_reward_parser(params={"positive_reward": 1.0, "negative_reward": -1.0, "unclear_reward": 0.0})
    how = replace(SCORE, score_pay="expected")
    forwards = HistoryVLMRewardModel(model, parser=parser, how=how)
    both = HistoryVLMRewardModel(model, parser=parser, how=replace(how, both_ways=True))
    shown = [window(seed) for seed in range(3)]
    back = [each.backwards() for each in shown]
    assert np.array_equal(back[0].frames["main_images"][0], shown[0].frames["main_images"][-1])
    said, there, again = both.judge(shown), forwards.judge(shown), forwards.judge(back)
    assert said.probabilities is not None and there.probabilities is not None and again.probabilities is not None
    by_hand = (there.probabilities + again.probabilities[:, [1, 0, 2]]) / 2
    assert np.allclose(said.probabilities, by_hand, atol=1e-6)
    assert np.allclose(said.reward, by_hand[:, 0] - by_hand[:, 1], atol=1e-6)
    assert np.abs(said.reward - there.reward).max() > 1e-3
    assert np.allclose(both.judge(back).reward, -said.reward, atol=1e-6)
    still = [Window({name: value[:1].repeat(5, 0) for name, value in each.frames.items()}, each.task) for each in shown]
    assert np.abs(both.judge(still).reward).max() < 1e-6 < np.abs(forwards.judge(still).reward).max()


def test_a_random_model_writes_what_cannot_be_read_and_that_is_counted(model: Qwen) -> None:
    parser = make_reward_parser(params={"invalid_reward": -7.0})
    said = HistoryVLMRewardModel(model, parser=parser, how=ReadOut(max_new_tokens=3)).judge([window(0), window(1)])
    assert said.invalid == 2 and said.reward.tolist() == [-7.0, -7.0] and said.probabilities is None
    assert said.text == HistoryVLMRewardModel(model, how=ReadOut(max_new_tokens=3)).judge([window(0), window(1)]).text


def test_written_answers_end_with_the_turn(folder: Path) -> None:
    """A model whose last layer is bent to say one word, then the end of its turn."""
    bent = qwen.load(QwenOptions(model_path=folder))
    word, end = bent.encoder.word_tokens("negative")[0], bent.encoder.end_id
    calls: list[int] = []

    def bend(_: object, __: object, logits: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros_like(logits)
        logits[..., end if calls else word] = 50.0
        calls.append(1)
        return logits

    bent.net.lm_head.register_forward_hook(bend)
    said = HistoryVLMRewardModel(bent, how=ReadOut(max_new_tokens=8)).judge([window(0)])
    assert said.text == ("negative",) and said.label == ("negative",) and len(calls) == 2


def test_vlm_judges_the_last_frame_alone(model: Qwen) -> None:
    first, second = window(0), window(1)
    mixed = {name: first.frames[name].copy() for name in first.frames}
    for name in mixed:
        mixed[name][:-1] = second.frames[name][:-1]
    judge = VLMRewardModel(model, how=SCORE)
    a, b = judge.judge([first]), judge.judge([type(first)(mixed, first.task)])
    assert a.probabilities is not None and b.probabilities is not None
    assert np.array_equal(a.probabilities, b.probabilities)
    history = HistoryVLMRewardModel(model, how=SCORE)
    c, d = history.judge([first]).probabilities, history.judge([type(first)(mixed, first.task)]).probabilities
    assert c is not None and d is not None and not np.allclose(c, d, atol=1e-6)


def test_own_words_are_scored(model: Qwen) -> None:
    parser = RewardParser(lambda text: ("positive", 1.0) if text == "yes" else ("negative", 0.0), ("yes", "no", "hm"))
    said = HistoryVLMRewardModel(model, parser=parser, how=SCORE).judge([window(0)])
    assert said.text[0] in ("yes", "no", "hm")


def _adapter(folder: Path, place: Path, rank: int = 2) -> Path:
    """An adapter that changes something, as a fine-tuning saves it."""
    trained = qwen.load(QwenOptions(model_path=folder))
    note = {"base": qwen.fingerprint(trained.net), "model_path": str(folder)}
    torch.manual_seed(0)
    net = qwen.add_lora(trained.net, rank=rank, alpha=None, dropout=0.0, vision=True)
    with torch.no_grad():
        for name, value in net.named_parameters():
            if "lora_B" in name:
                value.normal_(std=0.3)
    net.save_pretrained(place)
    qwen.write_note(place, note)
    return place


def test_an_adapter_changes_the_answers_and_is_safetensors(folder: Path, model: Qwen, tmp_path: Path) -> None:
    lora = _adapter(folder, tmp_path / "lora")
    assert not list(lora.glob("*.bin")) and (lora / qwen.ADAPTER_WEIGHTS).is_file()
    merged = qwen.load(QwenOptions(model_path=folder, lora_path=lora))
    before = HistoryVLMRewardModel(model, how=SCORE).judge([window(0)]).probabilities
    after = HistoryVLMRewardModel(merged, how=SCORE).judge([window(0)]).probabilities
    assert before is not None and after is not None and np.abs(before - after).max() > 1e-3
    base, found = qwen.base_of(lora)
    assert Path(base) == folder and found == lora


def test_adapters_of_other_models_are_refused(folder: Path, tmp_path: Path) -> None:
    lora = _adapter(folder, tmp_path / "lora")
    twin = small_vlm(tmp_path / "twin", seed=1)
    with pytest.raises(RefereeError, match="trained beside another model"):
        qwen.load(QwenOptions(model_path=twin, lora_path=lora))
    (lora / qwen.NOTE).unlink()  # as one that somebody else made
    wide = small_vlm(tmp_path / "wide", hidden=64)
    with pytest.raises(RefereeError, match=r"is for another model: .* features there and .* here"):
        qwen.load(QwenOptions(model_path=wide, lora_path=lora))
    deep = _adapter(small_vlm(tmp_path / "deep", layers=2), tmp_path / "lora_deep")
    (deep / qwen.NOTE).unlink()
    with pytest.raises(RefereeError, match="is not in model_path"):
        qwen.load(QwenOptions(model_path=folder, lora_path=deep))
    (lora / qwen.ADAPTER_WEIGHTS).rename(lora / "adapter_model.bin")
    with pytest.raises(RefereeError, match="save it as safetensors"):
        qwen.load(QwenOptions(model_path=folder, lora_path=lora))


def test_an_adapter_that_only_names_another_model_is_warned_of(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lora = _adapter(folder, tmp_path / "lora")
    (lora / qwen.NOTE).unlink(missing_ok=True)
    config = json.loads((lora / qwen.ADAPTER).read_text())
    for named, warns in (
        (str(folder), False),
        (f"Qwen/{folder.name}", False),
        (None, False),
        ("Qwen/Qwen3-VL-4B-Instruct", True),
        (f"/elsewhere/{folder.name}", True),
    ):
        (lora / qwen.ADAPTER).write_text(json.dumps({**config, "base_model_name_or_path": named}))
        caplog.clear()
        qwen.load(QwenOptions(model_path=folder, lora_path=lora))
        assert ("names" in caplog.text and "as its model" in caplog.text) == warns, named
    qwen.write_note(lora, {"base": qwen.fingerprint(qwen.load(QwenOptions(model_path=folder)).net)})
    caplog.clear()
    qwen.load(QwenOptions(model_path=folder, lora_path=lora))
    assert "as its model" not in caplog.text, "the note knows better"


def test_the_size_of_a_model_without_a_download(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for size, count in (("tiny", 0.44e6), ("small", 3.25e6)):
        assert main(["vlm", "tiny-init", str(tmp_path / size), "--size", size]) == 0
        said = capsys.readouterr().out
        assert int(said.split()[-2].replace(",", "")) == pytest.approx(count, rel=0.02)


def test_what_is_no_model_is_one_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    for path in (tmp_path / "empty", tmp_path / "other"):
        with pytest.raises(RefereeError, match="holds no Qwen3-VL"):
            qwen.load(QwenOptions(model_path=path))
    with pytest.raises(RefereeError, match="is not there"):
        qwen.load(QwenOptions(model_path=tmp_path / "nowhere"))
    with pytest.raises(RefereeError, match="holds no adapter"):
        qwen.load(QwenOptions(model_path=folder, lora_path=tmp_path / "empty"))
    lora = _adapter(folder, tmp_path / "lora")
    with pytest.raises(RefereeError, match="give it as lora_path"):
        qwen.load(QwenOptions(model_path=lora))
    with pytest.raises(RefereeError, match="is there already"):
        small_vlm(folder)


def test_bf16_gives_nearly_the_same(folder: Path, model: Qwen) -> None:
    half = qwen.load(QwenOptions(model_path=folder, precision="bf16"))
    assert next(half.net.parameters()).dtype is torch.bfloat16
    said = HistoryVLMRewardModel(half, how=SCORE).judge([window(0)]).probabilities
    whole = HistoryVLMRewardModel(model, how=SCORE).judge([window(0)]).probabilities
    assert said is not None and whole is not None and np.abs(said - whole).max() < 0.1
    assert qwen.fingerprint(half.net) == qwen.fingerprint(model.net)


def test_plain_text_needs_no_chat_template(folder: Path) -> None:
    plain = qwen.load(QwenOptions(model_path=folder, use_chat_template=False))
    prompt = make_input_builder()(window(0))
    ids = plain.encoder.encode([prompt]).inputs["input_ids"][0]
    assert plain.encoder.tokenizer.decode(ids).startswith("Task: ")
    assert HistoryVLMRewardModel(plain, how=SCORE).judge([window(0)]).invalid == 0


def test_without_the_extra_one_line_says_how_to_get_it(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import referee.models.vlm, referee.recipes\n"
        "from referee.cli import main; sys.exit(main(['vlm', 'tiny-init', sys.argv[1]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "pip install 'referee-rl[vlm]'" in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="flash_attn is installed")
def test_flash_attention_that_is_not_installed_names_the_other(folder: Path) -> None:
    with pytest.raises(RefereeError, match=r"flash_attn .* is not installed: set attn_implementation=sdpa"):
        qwen.load(QwenOptions(model_path=folder, attn_implementation="flash_attention_2"))

"""Fine-tuning a vision-language model: the keys of guide 004's SFT block, with a tiny real Qwen3-VL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.documented.cases import Case, Tools, effect
from tests.documented.effects.history import tiny
from tests.training.window_files import write_windows

from referee.errors import ConfigError, RefereeError
from referee.models.vlm import qwen
from referee.training.vlm.settings import FineTuning
from referee.training.vlm.sft import prepare, read_data

BLOCK = "004_sft"


def data(tools: Tools, frames: int = 5) -> Path:
    """24 windows to learn from and 12 to validate on, where the guide's variable points."""
    found: Path = tools.once(f"windows of {frames}", lambda folder: write_windows(folder / "data", frames=frames))
    tools.patch.setenv("DUALVIEW_SFT_DATA_ROOT", str(found))
    return found


def options(case: Case, tools: Tools, *overrides: str) -> FineTuning:
    return FineTuning.of(case.load(*overrides).config, tools.folder)


def learning(case: Case, tools: Tools, *overrides: str) -> dict[str, Any]:
    """The tensors that learn, of the block's own kind of adapter in the tiny model."""
    lines = [f"actor.model.model_path={tiny(tools)}", "actor.model.attn_implementation=sdpa", *overrides]
    wanted = options(case, tools, *lines)
    model = qwen.load(wanted.model)
    prepare(model, wanted)
    return {name: value for name, value in model.net.named_parameters() if value.requires_grad}


@effect("data.train_data_paths", "data.val_data_paths", "data.video_root", blocks=BLOCK)
def windows_to_learn_from(case: Case, tools: Tools) -> None:
    folder = data(tools)
    wanted = options(case, tools)
    train, val = read_data(wanted)
    assert (len(train), len(val)) == (24, 12)
    found = vars(wanted.data)[case.key.partition(".")[2]]
    expected = case.value.replace("${oc.env:DUALVIEW_SFT_DATA_ROOT}", str(folder))
    assert found in (expected, (expected,))
    assert all(Path(each.path).is_relative_to(folder) for each in train)
    with pytest.raises(RefereeError, match="/nowhere"):
        read_data(options(case, tools, f"{case.key}=/nowhere"))


@effect("data.video_nframes")
def frames_of_a_window(case: Case, tools: Tools) -> None:
    data(tools)
    assert {len(each) for each in read_data(options(case, tools))[0]} == {case.value}
    data(tools, frames=6)
    with pytest.raises(RefereeError, match=f"has 6 frames, but video_nframes is {case.value}"):
        read_data(options(case, tools))


@effect("data.type", "data.dataset_name", "actor.model.model_type", blocks=BLOCK)
def the_one_kind_that_there_is(case: Case, tools: Tools) -> None:
    """Questions and answers about trends, of a Qwen3-VL; anything else is refused by the key's name."""
    assert case.value in ("vlm", "qwentrend_progress_sft", "qwen3_vl")
    data(tools)
    ask = options(case, tools).builder()
    prompt = ask(read_data(options(case, tools))[0][0].window())
    assert "Answer positive, negative or unclear." in "".join(each for each in prompt.parts if isinstance(each, str))
    with pytest.raises(ConfigError, match=rf"{case.key.replace('.', '[.]')} .* {case.value}"):
        case.load(f"{case.key}=another")


@effect("actor.model.model_path", blocks=BLOCK)
def the_model_that_learns(case: Case, tools: Tools) -> None:
    assert str(options(case, tools).model.model_path) == case.value
    assert learning(case, tools)
    with pytest.raises(RefereeError, match="/nowhere"):
        qwen.load(options(case, tools, f"{case.key}=/nowhere").model)


@effect("actor.model.attn_implementation")
def how_attention_is_computed(case: Case, tools: Tools) -> None:
    wanted = options(case, tools).model
    assert wanted.attn_implementation == case.value == "flash_attention_2"
    for name in ("sdpa", "eager"):
        lines = [f"actor.model.model_path={tiny(tools)}", f"{case.key}={name}"]
        assert qwen.load(options(case, tools, *lines).model).net.config._attn_implementation == name
    with pytest.raises(RefereeError, match=r"attn_implementation=flash_attention_2 needs .*: set .*=sdpa"):
        qwen.load(options(case, tools, f"actor.model.model_path={tiny(tools)}").model)


@effect("actor.model.is_lora", "actor.model.lora_rank")
def shape_of_the_adapter(case: Case, tools: Tools) -> None:
    """A of [rank, in] and B of [out, rank] beside each frozen layer; without it, all weights learn."""
    for rank in (16, 4):
        found = learning(case, tools, f"actor.model.lora_rank={rank}")
        assert found and all(".lora_" in name for name in found)
        assert {value.shape[0] for name, value in found.items() if ".lora_A." in name} == {rank}
        assert {value.shape[1] for name, value in found.items() if ".lora_B." in name} == {rank}
    assert case.value in (True, 16)
    everything = learning(case, tools, "actor.model.is_lora=false")
    assert not any(".lora_" in name for name in everything) and any("embed" in name for name in everything)

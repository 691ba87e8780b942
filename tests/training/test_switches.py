"""Switches of torch: set while a model learns, and put back."""

from __future__ import annotations

import pytest
import torch

from referee.models import ModelSpec, build
from referee.training.switches import safe_convolutions


@pytest.mark.parametrize(("width", "head_only", "used"), [(4, False, False), (4, True, True), (8, False, True)])
def test_narrow_models_learn_without_onednn(width: int, head_only: bool, used: bool) -> None:
    before = torch._C._get_mkldnn_enabled()
    model = build(ModelSpec(arch="resnet10", width=width, image_size=32, cameras=("front",), hidden_dim=8))
    with safe_convolutions(model, head_only=head_only):
        assert torch._C._get_mkldnn_enabled() == (before and used)
    assert torch._C._get_mkldnn_enabled() == before

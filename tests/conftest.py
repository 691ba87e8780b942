"""What all tests share: one thread for torch, no CPU feature that may only be claimed, and what ManiSkill needs."""

import importlib.util
import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


def lacking() -> str | None:
    """What ManiSkill needs and is not here, with the line that brings it."""
    from referee.envs.maniskill import vulkan

    if importlib.util.find_spec("mani_skill") is None:
        return "ManiSkill is not installed: pip install 'referee-rl[maniskill]'"
    if not vulkan.has_loader():
        return f"ManiSkill needs libvulkan: {vulkan.LOADER_LINE}"
    return None if vulkan.is_ready() else f"ManiSkill needs a Vulkan driver: {vulkan.INSTALL_LINE}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Without what it needs, a test of ManiSkill is skipped; where nothing may be skipped (CI), it fails."""
    if item.get_closest_marker("maniskill") is None or (reason := lacking()) is None:
        return
    if os.environ.get("REFEREE_NO_SKIPS"):
        pytest.fail(f"{reason} (REFEREE_NO_SKIPS is set, so this is a failure)", pytrace=False)
    pytest.skip(reason)

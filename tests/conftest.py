"""What all tests share: one thread for torch, no CPU feature that may only be claimed, and what ManiSkill needs."""

import importlib.util
import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
os.environ.setdefault("COLUMNS", "120")  # of a terminal, however many processes run tests

HEAVY = (
    "compat/test_reward_worker.py", "documented/test_guides.py", "envs/test_panda_tasks.py",
    "episodes/test_reader_process.py", "integrations/test_sb3.py", "models/test_architectures.py",
    "refine/test_retrain.py", "recipes/test_held_verdicts.py", "recipes/test_learned_reward.py",
    "recipes/test_off_policy.py", "recipes/test_placed.py", "recipes/test_refinement.py",
    "recipes/test_run_records.py", "recipes/test_scoring_time.py", "recipes/test_trend_reward.py",
    "serving/test_slow_callers.py", "sim/test_assets.py",
)  # fmt: skip
"""Modules that are slow as a whole: `make unit` leaves them out, `make test` does not."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow modules, before tests are chosen by their marks."""
    for item in items:
        if item.path.as_posix().endswith(HEAVY):
            item.add_marker(pytest.mark.slow)


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

"""Older keys: translated in one place, with one notice, and never against a newer key."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from referee.config import load
from referee.config.leaves import COMMAND_LINE, Leaf
from referee.config.translate import ROWS, ignored, moved, refused, unneeded
from referee.config.translator import Translator
from referee.errors import ConfigError

pytestmark = pytest.mark.usefixtures("quick")

Error = Callable[..., str]

OLDER = """\
env:
  eval:
    init_params:
      id: PushCube-v1
      obs_mode: rgb
      num_envs: 4
      control_mode: pd_joint_delta_pos
      render_mode: rgb_array
    cameras: [base_camera, side]
"""


def test_a_file_of_older_keys(mine: Callable[[str], str]) -> None:
    loaded = load(mine(OLDER))
    env = loaded.config.env.eval
    assert (env.task, env.obs_mode, env.num_envs, env.control_mode) == ("PushCube", "rgb", 4, "joint_delta")
    assert env.cameras == ("front", "side")
    assert loaded.sources["env.eval.obs_mode"] == "translated from env.eval.init_params.obs_mode (mine.yaml)"
    (translated,) = loaded.translated
    assert [(each.written, each.key, each.value) for each in translated.entries] == [
        ("env.eval.init_params.id", "env.eval.task", "PushCube"),
        ("env.eval.init_params.obs_mode", "env.eval.obs_mode", "rgb"),
        ("env.eval.init_params.num_envs", "env.eval.num_envs", 4),
        ("env.eval.init_params.control_mode", "env.eval.control_mode", "joint_delta"),
        ("env.eval.init_params.render_mode", None, None),
        ("env.eval.cameras", "env.eval.cameras", ["front", "side"]),
    ]
    assert translated.line == "mine.yaml: 6 RLinf keys translated (referee config explain mine.yaml)"
    assert loaded.notices == []  # nothing has another effect than the guide says


@pytest.mark.parametrize(
    ("old", "task"),
    [
        ("Reach-v1", "Reach"),
        ("PickCube-v1", "PickCube"),
        ("PegInsertion-v1", "PegInsertion"),
        ("PegInsertionSide-v1", "PegInsertion"),
    ],
)
def test_older_task_names(old: str, task: str) -> None:
    assert load("panda_expert", [f"env.eval.init_params.id={old}"]).config.env.eval.task == task


def test_overrides_are_translated_too() -> None:
    loaded = load("panda_expert", ["env.eval.init_params={obs_mode: rgb}", "+env.eval.init_params.num_envs=2"])
    assert (loaded.config.env.eval.obs_mode, loaded.config.env.eval.num_envs) == ("rgb", 2)
    assert [each.source for each in loaded.translated] == ["command line"] and not loaded.notices
    assert load("panda_expert", ["~env.eval.init_params.num_envs"]).config.env.eval.num_envs == 16


def test_an_older_key_on_top_beats_a_newer_one_below(mine: Callable[[str], str]) -> None:
    """The group sets env.eval.num_envs; that is no conflict, the user's file comes later."""
    assert load(mine("env: {eval: {init_params: {num_envs: 4}}}\n")).config.env.eval.num_envs == 4
    name = mine("env: {eval: {init_params: {num_envs: 4}}}\n")
    assert load(name, ["env.eval.num_envs=5"]).config.env.eval.num_envs == 5


def test_both_spellings_in_one_place_are_refused(mine: Callable[[str], str], error: Error) -> None:
    says = "mean the same: keep only env.eval.num_envs"
    line = error("panda_expert", "env.eval.init_params.num_envs=4", "env.eval.num_envs=4")
    assert line.startswith("env.eval.init_params.num_envs and env.eval.num_envs are both set (command line)")
    assert says in line
    assert says in error(mine("env: {eval: {num_envs: 3, init_params: {num_envs: 4}}}\n"))


def test_wrong_older_keys_and_values(error: Error) -> None:
    line = error("panda_expert", "env.eval.init_params.id=StackCube-v1")
    assert line.startswith("env.eval.task (translated from env.eval.init_params.id (command line)) must be one of")
    assert "accepts only rgb_array" in error("panda_expert", "env.eval.init_params.render_mode=human")
    assert "unknown key env.eval.init_params.obs_mod " in error("panda_expert", "env.eval.init_params.obs_mod=rgb")


def test_rows_of_each_kind_are_one_line() -> None:
    rows = (
        moved("reward.mode", "reward.combine_mode", "002", {"sum": "add"}),
        ignored("reward.gpu_id", "devices are chosen by placement", "003", harmless=(0,)),
        unneeded("reward.group_name", "nobody asks for it", "000"),
        refused("reward.backend", "there is only one; remove it", "003"),
    )
    translate = Translator("x.yaml", rows)
    path, leaf = translate(("reward", "mode"), Leaf("sum", COMMAND_LINE)) or ((), None)
    assert path == ("reward", "combine_mode") and leaf is not None and leaf.value == "add"
    assert str(leaf.origin) == "translated from reward.mode (command line)"
    assert translate(("reward", "gpu_id"), Leaf(0, COMMAND_LINE)) is None
    assert translate(("reward", "group_name"), Leaf("Mine", COMMAND_LINE)) is None
    assert list(translate.notices({})) == []
    assert translate(("reward", "gpu_id"), Leaf(1, COMMAND_LINE)) is None
    with pytest.raises(ConfigError, match=r"reward.backend .* is refused: there is only one; remove it"):
        translate(("reward", "backend"), Leaf("y", COMMAND_LINE))
    assert list(translate.notices({})) == [
        "reward.gpu_id (command line) has no effect: devices are chosen by placement; remove it"
    ]


def test_every_row_names_its_document() -> None:
    assert all(row.document in {"000", "001", "002", "003", "004"} for row in ROWS)

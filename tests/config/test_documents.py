"""Every key of RLinf's five guides is accepted, translated, or refused with a reason."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from referee.config import load, presets
from referee.config.leaves import dotted
from referee.errors import ConfigError
from referee.recipes.train_reward import job_of

ROOT = Path(__file__).parents[2]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_keys", ROOT / "docs/make_keys.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_keys"] = module
    spec.loader.exec_module(module)
    return module


KEYS = script()
BLOCKS = list(KEYS.blocks())


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_a_block_of_a_document_loads(block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EMBODIED_PATH", "DUALVIEW_SFT_DATA_ROOT"):
        monkeypatch.setenv(name, "/somewhere")
    (tmp_path / "mine.yaml").write_text(block.file())
    loaded = load(str(tmp_path / "mine.yaml"), block.overrides)
    entries = {entry.written: entry for each in loaded.translated for entry in each.entries}
    for path, value in KEYS.leaves(block):
        key = dotted(path)
        what = KEYS.fate(key, value, block)
        assert not what.startswith("refused")
        if what.startswith("`"):  # under another name, or with another value
            assert f"`{entries[key].key}`" in what
            assert f"translated from {key}" in str(loaded.sources) or "=" in what
        if what.startswith(("no effect", "not needed")):
            assert entries[key].key is None


def test_the_table_is_what_the_script_writes() -> None:
    assert (ROOT / "docs/keys.md").read_text() == KEYS.table(), "run: python docs/make_keys.py"


def test_a_schedule_under_reward_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"reward\.lr_sched\.kind .* is refused: set actor\.optim\.schedule"):
        load("train_reward_model", ["+reward.lr_sched.kind=cosine"])


def test_the_directory_that_004_shows_is_the_runs_own(tmp_path: Path) -> None:
    """Where nobody names the run's directory, `${runner.logger.log_path}` alone would be a folder called None."""
    block = next(block for block in BLOCKS if block.name == "004_collect")
    (tmp_path / "mine.yaml").write_text(block.file())
    assert load(str(tmp_path / "mine.yaml")).config.env.train.data_collection.save_dir is None


def test_a_reference_to_null_within_a_text_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"runner\.logger\.log_path is null here; set it"):
        load("maniskill_ppo_mlp", ["env.train.data_collection.enabled=true",
                                   "env.train.data_collection.save_dir=${runner.logger.log_path}/mine"])  # fmt: skip


def test_the_world_decides_what_an_older_value_means() -> None:
    old = ["env.train.init_params.id=PushCube-v1", "env.eval.init_params.id=PushCube-v1",
           "env.train.cameras=[base_camera]", "env.train.control_mode=pd_ee_delta_pos"]  # fmt: skip
    here = load("maniskill_ppo_mlp", [f"+{line}" if "init" in line else line for line in old]).config.env.train
    assert (here.task, here.cameras, here.control_mode) == ("PushCube-v1", ("base_camera",), "pd_ee_delta_pos")
    there = load("panda_ppo_mlp", [f"+{line}" if "init" in line else line for line in old]).config.env.train
    assert (there.task, there.cameras, there.control_mode) == ("PushCube", ("front",), "ee_delta")


@pytest.mark.parametrize("file", sorted((ROOT / "examples/embodiment/config").glob("*.yaml")), ids=lambda f: f.stem)
def test_the_examples_begin_as_the_presets(file: Path) -> None:
    assert file.stem in presets()
    mine, ours = load(str(file)), load(file.stem)
    assert mine.config == ours.config
    assert file.read_text() == (ROOT / f"src/referee/config/presets/{file.name}").read_text()


@pytest.mark.parametrize("started_in", ["examples/embodiment", "."])
def test_what_one_stage_of_002_writes_the_next_one_reads(
    started_in: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stage 2 is started beside the script there, stage 3 from the top; its file names the checkpoint."""
    (tmp_path / "examples/embodiment").mkdir(parents=True)
    monkeypatch.setenv("EMBODIED_PATH", str(tmp_path / "examples/embodiment"))  # as run_embodiment.sh does
    monkeypatch.chdir(tmp_path / started_in)
    written = job_of(load("maniskill_train_resnet_reward").config, Path("run")).checkpoints
    monkeypatch.chdir(tmp_path)
    read = load("maniskill_ppo_mlp_resnet_reward").config.reward.model.model_path
    block = next(block for block in BLOCKS if block.name == "002_pay")
    assert read == yaml.safe_load(block.text)["reward"]["resnet"]["checkpoint_path"]
    assert Path(read).resolve() in written
    assert tmp_path / "logs/reward_checkpoints/reward_model_best.pt" in written
    monkeypatch.delenv("EMBODIED_PATH")
    assert job_of(load("maniskill_train_resnet_reward").config, Path("run")).checkpoints == written


FRONT_DOORS = [
    "embodiment/run_embodiment.sh maniskill_ppo_cnn",
    "embodiment/train_embodied_agent.py --config-name maniskill_ppo_cnn",
    "embodiment/main_reward.py",
    "embodiment/main_reward.py --config-path examples/embodiment/config --config-name train_reward_model",
    "embodiment/train_reward_model.sh",
    "embodiment/train_reward_model.sh train_reward_model",
    "embodiment/run_realworld_async.sh realworld_peginsertion_rlpd_cnn_async",
    "reward/realworld_collect_process_dataset.sh",
    "reward/realworld_collect_process_dataset.sh realworld_collect_dataset",
    "reward/realworld_collect_process_dataset.py",
    "reward/eval_realworld_teleop.py",
    "sft/run_vlm_sft.sh",
    "sft/run_vlm_sft.sh qwen3vl_sft_qwentrend",
]


@pytest.mark.slow
@pytest.mark.parametrize("script", FRONT_DOORS)
def test_the_front_doors_take_our_configurations(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets as far as a key that is wrong, in the configuration that it is for."""
    monkeypatch.setenv("DUALVIEW_SFT_DATA_ROOT", "windows")
    name, *arguments = script.split()
    runner = ["sh"] if name.endswith(".sh") else [sys.executable]
    command = [*runner, str(ROOT / "examples" / name), *arguments, "runner.sed=3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert "did you mean runner.seed?" in done.stderr + done.stdout


def test_the_install_script_prints_the_line() -> None:
    script = ["sh", str(ROOT / "requirements/install.sh"), "embodied"]
    done = subprocess.run(
        [*script, "--env", "maniskill_libero", "--vlm-reward"], capture_output=True, text=True, check=True
    )
    assert "pip install -e '.[maniskill,vlm]'" in done.stdout and "LIBERO is not part" in done.stdout
    wrong = subprocess.run([*script, "--env", "moon"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "unknown environment moon" in wrong.stderr


def test_what_a_policy_sees_is_set_where_it_is_drawn() -> None:
    """000 and 003 name `actor.model.image_keys` and `image_size`: there they are keys of the environment."""
    older = ["+actor.model.image_keys=[base_camera]", "+actor.model.image_size=[3,128,128]"]
    for preset, camera in (("maniskill_ppo_cnn", "base_camera"), ("panda_ppo_cnn", "front")):
        env = load(preset, older).config.env
        assert (env.train.cameras, env.train.image_size) == (env.eval.cameras, env.eval.image_size) == ((camera,), 128)
    reward = load("train_reward_model", older).config
    assert (reward.data.cameras, reward.actor.model.image_size) == (("base_camera",), 128)


@pytest.mark.parametrize("section", ["env", "reward", "actor"])
def test_a_name_of_a_group_of_workers_needs_no_counterpart(section: str) -> None:
    loaded = load("panda_ppo_mlp", [f"+{section}.group_name=Mine"])
    (entry,) = loaded.translated[0].entries
    assert (entry.written, entry.key) == (f"{section}.group_name", None)
    assert loaded.notices == []


def test_what_is_off_implies_nothing() -> None:
    """000 and 003 turn collecting off in so many words; nobody typed a format."""
    said = load("maniskill_ppo_cnn", ["reward.collect_data=False"])
    assert not said.config.env.train.data_collection.enabled
    assert not [line for line in said.notices if "no effect" in line]
    assert (
        load("maniskill_ppo_cnn", ["reward.collect_data=True"]).config.env.train.data_collection.export_format == "npy"
    )

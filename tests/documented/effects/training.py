"""How a reward model is trained: keys of data, model, optimiser and loop in guides 001 to 004."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from tests.documented.cases import Case, Tools, effect, no_effect
from tests.recipes.test_workflow_of_003 import make_trajectories
from torch import nn

from referee.cli import main
from referee.config import Loaded
from referee.models import Artifact, ModelSpec, RewardModel, build
from referee.models.resnet import BasicBlock
from referee.recipes.train_reward import BEST, job_of, train_placed
from referee.runs.folder import name_run, unlock
from referee.training.data import Data, open_data
from referee.training.fit import FitResult, Report, _optimizer, fit
from referee.training.recipe import TrainOptions, make_model
from referee.training.source import FeatureSource

FEATURES = 32
HEAD = ModelSpec(arch="resnet10", width=FEATURES // 8, image_size=64, hidden_dim=8, freeze_encoder=True)
FIT = "001_training 002_train 003_train"
SMALL = ["actor.model.width=4", "actor.num_threads=1"]


class Features(FeatureSource):
    """64 frames as features, half of them successes; remembers how many were taken at once."""

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        random, labels = np.random.default_rng(seed), np.arange(64) % 2
        values = scale * (random.standard_normal((64, FEATURES)) + labels[:, None])
        super().__init__([values.astype(np.float32)], labels)
        self.taken: list[int] = []

    def inputs(self, indices: np.ndarray, random: np.random.Generator | None) -> torch.Tensor:
        if random is not None:
            self.taken.append(len(indices))
        return super().inputs(indices, random)


@dataclass
class Fitted:
    """A training of a head, on features: 64 frames in a fraction of a second."""

    result: FitResult
    reports: list[Report]
    taken: list[int]
    saved: list[str] = field(default_factory=list)


def fitted(case: Case, tools: Tools, *overrides: str, scale: float = 1.0) -> Fitted:
    """The loop of a block, with all that it says of epochs, batches, validations and checkpoints."""
    how = job_of(case.load("actor.num_threads=1", *overrides).config, tools.here).fit
    torch.manual_seed(0)
    train, reports, folder = Features(0, scale), [], tools.here / f"fit{len(list(tools.here.iterdir()))}"
    result = fit(build(HEAD), train, Features(1, scale), how, head_only=True, folder=folder, report=reports.append)
    saved = sorted((each.name for each in (folder / "checkpoints").iterdir()), key=lambda name: int(name[5:]))
    return Fitted(result, reports, train.taken, saved)


def trajectories(tools: Tools) -> Path:
    """Positive and negative .npy trajectories, as guides 000 and 003 record them: 12 success and 28 fail frames."""

    def made(folder: Path) -> Path:
        make_trajectories(folder)
        return folder

    found: Path = tools.once("trajectories", made)
    return found


def options(case: Case, tools: Tools, *overrides: str) -> TrainOptions:
    """Of a training on the trajectories."""
    sources = {
        "001": [f"data.data_path={trajectories(tools)}"],
        "002": [f"reward_training.data_path={trajectories(tools)}"],
        "003": [f"reward.data.{kind}_dir={trajectories(tools) / kind}" for kind in ("positive", "negative")],
        "004": [f"data.data_path={trajectories(tools)}"],
    }
    return job_of(case.load(*sources[case.block[:3]], *overrides).config, tools.here)


def frames(case: Case, tools: Tools, *overrides: str) -> Data:
    """What a block would learn from, out of the trajectories."""
    return open_data(options(case, tools, *overrides).data, tools.here / "data")


def net(case: Case, tools: Tools, *overrides: str) -> RewardModel:
    """The model that a block would train."""
    wanted = options(case, tools, "actor.model.width=4", *overrides)
    return make_model(wanted, frames(case, tools), lambda line: None)


def trained(case: Case, tools: Tools, *overrides: str) -> tuple[Artifact, Loaded]:
    """A whole training, of one epoch."""
    loaded = case.load(*SMALL, "runner.max_epochs=1", *overrides)
    return Artifact.load(train_placed(loaded, Console(file=io.StringIO())).folder), loaded


# --- data ---


@effect("data.data_path", "reward_training.data_path", "reward.data.positive_dir", "reward.data.negative_dir")
def what_is_learned_from(case: Case, tools: Tools) -> None:
    asked = job_of(case.config, tools.here).data
    name = case.key.rpartition(".")[2]
    tools.patch.setenv("EMBODIED_PATH", "/somewhere")
    assert Path(getattr(asked, name)) == Path(case.value.replace("${oc.env:EMBODIED_PATH}", "/somewhere"))
    data = frames(case, tools)
    assert data.val is not None and len(data.train) + len(data.val) == 40
    assert int(data.train.labels.sum()) + int(data.val.labels.sum()) == 12


@effect("data.num_samples_per_episode")
def all_frames_of_an_episode(case: Case, tools: Tools) -> None:
    assert case.value == 0

    def count(data: Data) -> int:
        return len(data.train) + (0 if data.val is None else len(data.val))

    every = ["data.fail_success_ratio=0"]
    assert count(frames(case, tools, *every)) == 40
    assert count(frames(case, tools, *every, f"{case.key}=2")) == 16


@effect("data.fail_success_ratio")
def failures_per_success(case: Case, tools: Tools) -> None:
    """In training; there are 28 failures and 12 successes, and validation keeps its own share."""
    for ratio in (case.value, 1.0):
        labels = frames(case, tools, f"{case.key}={ratio}").train.labels.numpy()
        all_of_them = frames(case, tools, f"{case.key}=0").train.labels.numpy()
        wins = int(labels.sum())
        assert wins == all_of_them.sum()
        assert len(labels) - wins == min(len(all_of_them) - wins, round(ratio * wins))


@effect("data.train_data_paths", "data.val_data_paths", blocks="004_train_data")
def files_of_frames(case: Case, tools: Tools) -> None:
    place = tools.here / Path(case.value).parent
    raw = ["--raw-data-path", str(trajectories(tools)), "--output-dir", str(place)]
    assert main(["dataset", "frames", *raw]) == 0
    data = open_data(job_of(case.config, tools.here).data, tools.here / "data")
    assert data.val is not None
    side = data.train if "train_data" in case.key else data.val
    assert [str(part.path) for part in side.parts] == [case.value]
    assert len(side) == len(torch.load(place / Path(case.value).name, weights_only=True)["labels"]) > 0


@effect("reward.model.image_keys", blocks="003_train")
def the_view_that_is_learned(case: Case, tools: Tools) -> None:
    assert frames(case, tools).train.cameras == tuple(case.value) == net(case, tools).spec.cameras


no_effect("data.cameras names the views", "reward.data.image_key")
no_effect("frames are read from mapped files", "reward.data.num_workers")


@effect("data.debug_save_dir", slow=True)
def frames_as_pictures(case: Case, tools: Tools) -> None:
    place = tools.here / case.value
    trained(case, tools, f"data.data_path={trajectories(tools)}", f"runner.logger.log_path={tools.here / 'run'}")
    names = {folder: sorted(each.name for each in (place / folder).iterdir())
             for folder in ("training/success", "training/fail")}  # fmt: skip
    assert all(re.fullmatch(r"positive_\d{6}_frame00[2-4]\.png", name) for name in names["training/success"])
    assert len(names["training/success"]) > 4 and len(names["training/fail"]) > 10
    said = [each.name for each in place.rglob("resnet_*/*.png")]
    assert said and all(re.fullmatch(r"\d{6}_prob[01]\.\d{4}\.png", name) for name in said)


# --- the loop ---


@effect("runner.max_epochs", "reward_training.epochs", "reward.num_epochs")
def epochs(case: Case, tools: Tools) -> None:
    batch = job_of(case.config, tools.here).fit.global_batch_size
    found = fitted(case, tools, "runner.early_stop.patience=0")
    assert found.result.step == case.value * 64 // batch and round(found.result.history[-1].epoch) == case.value
    assert fitted(case, tools, f"{case.key}=3").result.step == 3 * 64 // batch


@effect("*global_batch_size")
def frames_per_step(case: Case, tools: Tools) -> None:
    short = "runner.max_epochs=1"
    found = fitted(case, tools, short)
    assert sum(found.taken) == 64 and found.result.step == 64 // case.value
    smaller = fitted(case, tools, short, f"{case.key}=16", "actor.micro_batch_size=16")
    assert smaller.result.step == 4 and set(smaller.taken) == {16}


@effect("actor.micro_batch_size", "reward_training.micro_batch_size")
def gradients_are_accumulated(case: Case, tools: Tools) -> None:
    """So many frames at once, several times for one step; the step is that of all of them at once."""
    whole = job_of(case.config, tools.here).fit.global_batch_size
    one_step = ["runner.max_epochs=1", "runner.early_stop.patience=0"]
    found = fitted(case, tools, *one_step)
    assert set(found.taken) == {case.value} and len(found.taken) == 64 // case.value
    assert found.result.step == 64 // whole
    parts = fitted(case, tools, *one_step, f"{case.key}={whole // 4}")
    assert set(parts.taken) == {whole // 4} and parts.result.step == found.result.step
    for name, value in found.result.state.items():
        torch.testing.assert_close(parts.result.state[name], value, rtol=1e-3, atol=1e-5)


@effect("runner.val_check_interval")
def epochs_between_validations(case: Case, tools: Tools) -> None:
    found = fitted(case, tools, "runner.early_stop.patience=0", "runner.max_epochs=25").result
    assert [round(each.epoch) for each in found.history] == [case.value, 2 * case.value, 25]


@effect("runner.save_interval")
def epochs_between_checkpoints(case: Case, tools: Tools) -> None:
    assert fitted(case, tools, "runner.max_epochs=25").saved == ["step_20", "step_40", "step_50"]  # two steps each


@effect("reward.save_interval", slow=True)
def steps_between_checkpoints(case: Case, tools: Tools) -> None:
    """Guide 003 counts steps, and no epochs are counted beside them; where they go is checked by a whole training."""
    quick = ["reward.num_epochs=520", "runner.val_check_interval=1000", "runner.save_interval=1000"]
    assert fitted(case, tools, *quick).saved == [f"step_{case.value}", "step_1040"]


@effect("runner.early_stop.patience")
def validations_without_a_better_one(case: Case, tools: Tools) -> None:
    """The first is the best where nothing is learned, and so many more are waited for."""
    stuck = ["actor.optim.lr=1e-12", "runner.early_stop.min_delta=0.01", "runner.val_check_interval=1"]
    found = fitted(case, tools, *stuck).result
    assert found.reason == "early stop" and len(found.history) == 1 + case.value
    assert fitted(case, tools, *stuck, f"{case.key}=0", "runner.max_epochs=20").result.reason == "finished"


@effect("reward.log_interval")
def steps_between_reports(case: Case, tools: Tools) -> None:
    found = fitted(case, tools, "runner.val_check_interval=1000")
    assert [each.step for each in found.reports] == [case.value, 2 * case.value]


@effect("reward_training.lr", "reward.optim.lr")
def learning_rate(case: Case, tools: Tools) -> None:
    """The largest of the schedule."""
    value = float(case.value)
    assert job_of(case.config, tools.here).fit.lr == value == 1e-4
    rates = [each.lr for each in fitted(case, tools, "runner.log_interval=1").reports]
    assert max(rates) <= value * 1.0001 and max(rates) > 0.95 * value


@effect("reward.optim.optimizer")
def which_optimiser(case: Case, tools: Tools) -> None:
    for name, kind in ((case.value, torch.optim.Adam), ("adamw", torch.optim.AdamW)):
        how = job_of(case.load(f"{case.key}={name}").config, tools.here).fit
        assert type(_optimizer(build(HEAD), how, fused=False)) is kind


@effect("reward.optim.clip_grad")
def largest_norm_of_a_gradient(case: Case, tools: Tools) -> None:
    clip, norms = nn.utils.clip_grad_norm_, []

    def watched(parameters: Any, limit: float) -> torch.Tensor:
        found = clip(parameters, limit)
        norms.append(float(torch.stack([each.grad.norm() for each in parameters if each.grad is not None]).norm()))
        return found

    tools.patch.setattr(nn.utils, "clip_grad_norm_", watched)
    fitted(case, tools, "reward.num_epochs=2", scale=100.0)
    assert norms and max(norms) <= case.value * 1.001
    norms.clear()
    fitted(case, tools, "reward.num_epochs=2", f"{case.key}=0", scale=100.0)
    assert max(norms) > 2


@effect("reward.training_backend")
def one_process(case: Case, tools: Tools) -> None:
    for backend in (case.value, "ddp"):
        loaded = case.load(f"{case.key}={backend}", *(["actor.num_processes=2"] if backend == "ddp" else []))
        how = job_of(loaded.config, tools.here).fit
        assert (how.training_backend, how.num_processes) == (backend, 1 if backend == "simple" else 2)


no_effect("the device is found by itself", "reward.gpu_id")
no_effect("reward_training.only=true says it already", "reward_training.enabled")


@effect("reward_training.only")
def only_the_reward_model_is_trained(case: Case, tools: Tools) -> None:
    """Beside a policy's training there, a recipe here."""
    assert case.value is True
    assert case.load(preset="panda_ppo_mlp").config.runner.recipe == "train_reward"


# --- the model ---


@effect("reward.model.image_size", "actor.model.image_size", blocks="003_train 004_train_model")
def pixels_that_the_model_takes(case: Case, tools: Tools) -> None:
    model = net(case, tools)
    assert model.spec.image_size == case.value[1] == case.value[2]
    assert model.prepare(np.zeros((1, 1, 64, 64, 3), np.uint8)).shape[-2:] == tuple(case.value[1:])


@effect("reward.model.hidden_dim", blocks="003_train")
def width_of_the_head(case: Case, tools: Tools) -> None:
    assert net(case, tools).classifier[3].in_features == case.value  # type: ignore[index, union-attr]
    assert net(case, tools, f"{case.key}=12").classifier[3].in_features == 12  # type: ignore[index, union-attr]


@effect("reward.model.num_spatial_blocks", "reward.model.use_pretrain")
def how_the_feature_map_is_weighed(case: Case, tools: Tools) -> None:
    """A learned weight for each place of the map of 64 px, 2 by 2, eight times over."""
    kernel = net(case, tools).pooling[0].kernel  # type: ignore[index, union-attr]
    assert kernel.shape == (2, 2, 32, 8)  # type: ignore[union-attr]
    other = {8: 3, True: False}[case.value]
    shape = net(case, tools, f"{case.key}={other}").pooling[0].kernel.shape  # type: ignore[index, union-attr]
    assert shape == ((2, 2, 32, 3) if other == 3 else (1, 1, 32, 8))


@effect("reward.model.freeze_encoder", blocks="003_train")
def the_head_alone_learns(case: Case, tools: Tools) -> None:
    for frozen in (case.value, not case.value):
        model = net(case, tools, f"{case.key}={frozen}")
        assert {each.requires_grad for each in model.encoder.parameters()} == {not frozen}  # type: ignore[union-attr]
        assert all(each.requires_grad for each in model.classifier.parameters())  # type: ignore[union-attr]


@effect("reward.model.pretrained_encoder_path", "actor.model.pretrained")
def weights_that_the_encoder_begins_with(case: Case, tools: Tools) -> None:
    """None here, so they are drawn; a file is taken where one is named."""
    assert not case.value and options(case, tools).pretrained is None
    arch = net(case, tools).spec.arch
    source = build(ModelSpec(arch=arch, width=4)).encoder  # type: ignore[union-attr]
    torch.save(source.state_dict(), tools.here / "encoder.pt")
    given, drawn = net(case, tools, f"{case.key}={tools.here / 'encoder.pt'}"), net(case, tools)
    for model, same in ((given, True), (drawn, False)):
        assert torch.equal(model.encoder.conv1.weight, source.conv1.weight) is same  # type: ignore[union-attr, arg-type]


@effect("actor.model.model_type", blocks="004_train_model")
def which_model_is_trained(case: Case, tools: Tools) -> None:
    assert net(case, tools).spec.model_type == case.value == "resnet"


@effect("actor.model.arch")
def which_resnet_is_trained(case: Case, tools: Tools) -> None:
    """Eight blocks of two layers, and two layers beside them."""
    model = net(case, tools)
    assert model.spec.arch == case.value == "resnet18"
    assert sum(isinstance(each, BasicBlock) for each in model.modules()) == 8


@effect("actor.model.model_path", blocks="004_train_model")
def weights_to_go_on_from(case: Case, tools: Tools) -> None:
    assert case.value is None and options(case, tools).model_path is None
    first = net(case, tools)
    with torch.no_grad():
        first.classifier[3].bias.fill_(7.0)  # type: ignore[index, union-attr]
    Artifact(first).save(tools.here / "before")
    again = net(case, tools, f"{case.key}={tools.here / 'before'}")
    assert float(again.classifier[3].bias.detach()) == 7.0  # type: ignore[index, union-attr, arg-type]


# --- where it goes ---


@effect("runner.logger.log_path", blocks="001_training")
def folder_of_the_run(case: Case, tools: Tools) -> None:
    assert tools.here.is_dir()  # the run's folder is made there
    place = name_run(case.load())
    unlock(place)
    assert str(place) == case.value


@effect("runner.output_dir", "runner.experiment_name", blocks="003_train")
def name_of_the_run(case: Case, tools: Tools) -> None:
    assert tools.here.is_dir()  # the run's folder is made there
    place = name_run(case.load())
    unlock(place)
    assert str(place.parent) == "../results"
    assert re.fullmatch(r"\d{8}-\d{6}-reward-model-training", place.name)
    assert case.value in ("../results", "reward-model-training")


@effect("reward_training.save_dir", "reward.save_dir", slow=True)
def the_best_weights_go_there(case: Case, tools: Tools) -> None:
    where = Path(case.config.runner.save_dir or "")
    expected = {
        "002": "/somewhere/../../logs/reward_checkpoints",
        "003": "../results/reward-model-training/checkpoints",
    }
    assert str(where) == expected[case.block[:3]]
    data = [f"reward_training.data_path={trajectories(tools)}"] if case.block == "002_train" else [
        f"reward.data.{kind}_dir={trajectories(tools) / kind}" for kind in ("positive", "negative")]  # fmt: skip
    place = tools.here / "there"
    frozen = ["actor.encoder_warmup_steps=1"] if case.block == "003_train" else []
    artifact, _ = trained(case, tools, *data, *frozen, f"{case.key}={place}",
                          f"runner.logger.log_path={tools.here / 'run'}")  # fmt: skip
    for name in BEST:
        values = torch.load(place / name, weights_only=True)
        for key, value in artifact.model.state_dict().items():
            assert torch.equal(values["model_state_dict"][key], value)

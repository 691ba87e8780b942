"""One valid sample of every kind of file that Referee reads back, and the reader that takes it."""

import contextlib
import io
import json
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from referee.episodes import Episode, EpisodeStore, Meta


@dataclass(frozen=True)
class Kind:
    """A kind of file: `make` fills an empty folder, `files` in it are damaged, `read` is what a user would run."""

    make: Callable[[Path], None]
    files: tuple[str, ...]
    read: Callable[[Path], None]
    language: str = "bytes"
    """`json` and `pickle` are also damaged in their own language."""


def episode(steps: int = 3, seed: int = 0) -> Episode:
    random = np.random.default_rng(seed)
    states = steps + 1
    return Episode(
        {
            "states": random.normal(size=(states, 4)).astype(np.float32),
            "main_images": random.integers(0, 256, (states, 8, 8, 3), np.uint8),
        },
        random.normal(size=(steps, 2)).astype(np.float32), np.zeros(steps, np.float32), np.zeros(steps, bool),
        np.arange(steps) == steps - 1, success=np.arange(states) > 1, meta=Meta(task="Reach", cameras=("front",)),
    )  # fmt: skip


def verb(*arguments: str) -> Callable[[Path], None]:
    """A verb of the command line; `{}` stands for the folder."""

    def read(folder: Path) -> None:
        from referee.cli import main
        from referee.errors import RefereeError

        errors = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            code = main([each.format(folder) for each in arguments])
        if code == 2:
            raise RefereeError(errors.getvalue().strip().splitlines()[-1])

    return read


def all_episodes(folder: Path) -> None:
    from referee.episodes.formats.detect import read_any

    labels = next(iter(folder.parent.glob(f"{folder.name}/labels.*")), None)
    where = folder / "data" if (folder / "data").exists() else folder
    for each in read_any(where, labels=labels):
        each.validate()


# --- episodes ---


def store(folder: Path) -> None:
    kept = EpisodeStore(folder)
    for seed in range(3):
        kept.append(episode(seed=seed))


def labelled(folder: Path) -> None:
    from referee.labels.log import LabelLog, Word

    store(folder)
    kept = EpisodeStore(folder)
    ids = [each.meta.id for each in kept]
    LabelLog.of(kept).extend([Word(ids[0], True, 1, "keyboard", "ann"), Word(ids[1], False, (0, 2), "web", "bob")])


def read_labels(folder: Path) -> None:
    from referee.labels.log import LabelLog

    kept = EpisodeStore(folder, create=False)
    list(LabelLog.of(kept).standing())


def journal(folder: Path) -> None:
    from referee.episodes.journal import Journal

    store(folder)
    writing = Journal(EpisodeStore(folder), Meta(task="Reach"), max_states=2)
    writing.start({"states": np.zeros(2, np.float32)}, success=False)
    for step in range(6):
        writing.step([0.0], {"states": np.full(2, step, np.float32)}, success=step > 3)
    writing.flush()


def read_journal(folder: Path) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (0, 0))  # nobody has written to it for long
    verb("episodes", "check", "{}")(folder)


def pickles(layout: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        from referee.episodes.formats.pickled import frames_of, lists_of, write_data

        if layout == "data":
            write_data(folder / "data.pkl", [episode(seed=0), episode(seed=1)])
        else:
            value = (frames_of if layout == "frames" else lists_of)(episode())
            (folder / "data.pkl").write_bytes(pickle.dumps(value, 4))

    return make


def trajectory(folder: Path) -> None:
    from referee.episodes.formats.npy import NpyWriter

    path = NpyWriter(folder, folder).append(episode())
    assert path is not None
    path.rename(folder / "000000.npy")


def lerobot(folder: Path) -> None:
    from referee.episodes.formats.lerobot_writer import LeRobotWriter

    with LeRobotWriter(folder / "data", fps=10) as writer:
        for seed in range(2):
            writer.append(episode(seed=seed))


def hdf5(folder: Path) -> None:
    import h5py

    with h5py.File(folder / "demo.hdf5", "w") as file:
        group = file.create_group("data").create_group("demo_0")
        for place in ("obs", "next_obs"):
            group.create_dataset(f"{place}/front_image", data=np.zeros((4, 6, 8, 3), np.uint8))
            group.create_dataset(f"{place}/eef_pos", data=np.zeros((4, 2)))
        group.create_dataset("actions", data=np.zeros((4, 2)))
        group.create_dataset("rewards", data=np.arange(4.0))
        group.create_dataset("dones", data=np.array([0, 0, 0, 1]))


def film(folder: Path) -> None:
    from referee.episodes.formats.frames import FilmWriter

    (folder / "data").mkdir()
    writer = FilmWriter(folder / "data" / "a.mp4", height=32, width=48, fps=10.0)
    writer.write(np.zeros((5, 32, 48, 3), np.uint8))
    writer.close()
    rows = [{"episode": "a", "frame": index, "success": index % 2} for index in range(5)]
    (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def picture(folder: Path) -> None:
    from PIL import Image

    (folder / "data").mkdir()
    for index in range(3):
        Image.new("RGB", (8, 6), (index, 0, 200)).save(folder / "data" / f"{index}.png")
    (folder / "labels.csv").write_text("episode,frame,success\ndata,0,0\ndata,1,0\ndata,2,1\n")


# --- datasets and reward models ---


def frames_dataset(folder: Path) -> None:
    import torch

    from referee.datasets.payload import RewardDatasetPayload

    images = list(torch.zeros(4, 8, 8, 3, dtype=torch.uint8).unbind())
    RewardDatasetPayload(images, [0, 1, 0, 1], {"cameras": ["front"]}).save(folder / "train.pt")
    torch.save({"images": images, "labels": [0, 1, 0, 1], "metadata": {}}, folder / "theirs.pt")


def read_frames(name: str) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        from referee.datasets.payload import RewardBinaryDataset

        for _ in RewardBinaryDataset(folder / name).epoch(2, seed=0):
            pass

    return read


def _model() -> Any:
    from referee.models import ModelSpec, build

    return build(ModelSpec(arch="resnet10", width=8, hidden_dim=16, image_size=32, cameras=("front",)))


def artifact(folder: Path) -> None:
    from referee.models import Artifact, Calibration, Reference
    from referee.models.artifact import embed

    model = _model().eval()
    frames = np.random.default_rng(0).integers(0, 256, (20, 1, 32, 32, 3), np.uint8)
    reference = Reference.of(embed(model, frames), frames)
    provenance = {"dataset_hash": "sha256:12", "episodes": {"train": ["a"], "val": ["b"]}, "seed": 7}
    Artifact(model, Calibration(temperature=1.7, threshold=0.4), provenance, reference).save(folder / "model")


def read_artifact(folder: Path) -> None:
    from referee.models import Artifact

    loaded = Artifact.load(folder / "model")
    verdict = loaded.judge(np.zeros((2, 1, 32, 32, 3), np.uint8))
    assert verdict.success.shape == (2,)


def reward_checkpoint(folder: Path) -> None:
    from referee.training import checkpoint

    model = _model()
    values = {"epoch": 1, "optimizer_state_dict": {}, "train_loss": 0.1, "train_acc": 0.9}
    checkpoint.save(folder / "checkpoint.pt", {**values, "model_state_dict": model.state_dict()})


def read_reward_checkpoint(folder: Path) -> None:
    from referee.models import Artifact, ModelSpec
    from referee.training import checkpoint

    checkpoint.load(folder)
    Artifact.open(folder / "checkpoint.pt", ModelSpec(arch="resnet10", width=8, hidden_dim=16, image_size=32))


# --- policies ---


def policy(folder: Path) -> None:
    import torch

    from referee.rl import checkpoint
    from referee.rl.policy import Policy, PolicySpec

    spec = PolicySpec("mlp", state_size=4, image_size=0, views=0, action_size=2, hidden_dims=(8,))
    made = Policy(spec)
    optimizer = torch.optim.Adam(made.parameters(), lr=1e-3)
    made.value({"states": torch.randn(8, 4)}).sum().backward()
    optimizer.step()
    meta = {"policy": spec.to_json(), "task": "Reach", "steps": 10, "iteration": 1}
    state = {name: value.clone() for name, value in made.state_dict().items()}
    arrays = {"noise": checkpoint.generator_state(np.random.default_rng(3))}
    tensors = checkpoint.optimizer_tensors(optimizer)
    checkpoint.save(folder / "checkpoints" / "step_10", checkpoint.Checkpoint(state, tensors, arrays, meta))


def read_policy(folder: Path) -> None:
    import torch

    from referee.rl import checkpoint

    place = checkpoint.find(folder)
    made, _ = checkpoint.load_policy(place)
    loaded = checkpoint.load(place)
    checkpoint.restore_policy(made, loaded, place, task="Reach")
    checkpoint.restore_optimizer(torch.optim.Adam(made.parameters(), lr=1e-3), loaded.optimizer)
    checkpoint.restore_generator(np.random.default_rng(0), loaded.arrays["noise"])


def replay(folder: Path) -> None:
    from referee.rl.replay_file import ReplayFiles

    marks = ReplayFiles(folder / "replay").save(_replay())
    (folder / "marks.json").write_text(json.dumps({name: value.tolist() for name, value in marks.items()}))


def read_replay(folder: Path) -> None:
    from referee.rl.replay_file import ReplayFiles

    marks = {name: np.array(value) for name, value in json.loads((folder / "marks.json").read_text()).items()}
    ReplayFiles(folder / "replay").load(_replay(), marks)


def _replay() -> Any:
    from referee.rl.replay import Replay

    return Replay(2, 40, state_size=2, action_size=1, album=None)


def metrics(folder: Path) -> None:
    rows = [{"step": step, "time": 0.5 * step, "eval/success": 0.1 * step} for step in range(1, 6)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_metrics(folder: Path) -> None:
    from referee.runs.logbook import read_metrics

    for row in read_metrics(folder):
        assert row["step"] is not None


# --- refinement ---


def refinement(folder: Path) -> None:
    from referee.refine.book import Book, Sheet
    from referee.refine.loop import BOOK, ROUNDS, Round
    from referee.refine.retrain import Compared

    random = np.random.default_rng(0)
    sheet = Sheet(random.integers(0, 255, (4, 1, 8, 8, 3)).astype(np.uint8), random.random(4, dtype=np.float32),
                  ("random", "firing", "unsure", "strange"), 100, 3)  # fmt: skip
    book = Book(folder / BOOK, ("front",), task="PickCube")
    kept = book.add(sheet)
    book.answer(kept, [True, None, False, True], source="keyboard", who="ann")
    compared = _compared(Compared)
    rounds = [
        Round(step=100 * n, version=n, asked=4, answered=3 * n, fooled=1, missed=0, swapped=True, compared=compared,
              seconds={"ask": 0.1, "train": 1.0}, sheet=kept.id, threshold=0.5)
        for n in (1, 2)
    ]  # fmt: skip
    (folder / ROUNDS).write_text("".join(json.dumps(asdict(each)) + "\n" for each in rounds))


def _compared(kind: type) -> Any:
    from dataclasses import fields

    values = {each.name: (0.5, 0.6) if "tuple" in str(each.type) else 1 for each in fields(kind)}
    return kind(**values)


def read_refinement(folder: Path) -> None:
    from referee.refine.book import Book
    from referee.refine.loop import BOOK, read_rounds, up_to_date

    sheets = Book(folder / BOOK, ("front",)).sheets()
    for each in up_to_date(read_rounds(folder), sheets):
        each.numbers()


# --- text ---


def windows(folder: Path) -> None:
    (folder / "train" / "pkl").mkdir(parents=True)
    (folder / "dataset_info.json").write_text(json.dumps({"format": "referee-windows-1"}))
    images = np.zeros((4, 8, 8, 3), np.uint8)
    rows = []
    for number in range(3):
        (folder / "train" / "pkl" / f"{number}.pkl").write_bytes(pickle.dumps({"main_images": images}, 4))
        where = {"pkl_path": f"train/pkl/{number}.pkl", "episode": f"e{number}", "start": 0, "stop": 4, "frames": 4}
        rows.append({**where, "answer": "positive", "task": "pick", "change": 0.5})
    (folder / "train" / "segments.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_windows(folder: Path) -> None:
    from referee.training.vlm.segments import check_split, counts, read_segments

    found = read_segments([folder / "train"])
    counts(found)
    check_split(found, [])
    for each in found:
        len(each)
        each.window()


def answers(folder: Path) -> None:
    rows = [{"answer": "42", "reference": "42"}, {"answer": "the answer is 3/4", "reference": "0.75"}]
    (folder / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def preset(folder: Path) -> None:
    (folder / "mine.yaml").write_text(
        "defaults:\n  - panda_ppo_mlp\n  - _self_\n\nrunner:\n  seed: 3\n  logger:\n    log_path: ${oc.env:HOME}/runs\n"
        "env:\n  train:\n    num_envs: &envs 8\n  eval:\n    num_envs: *envs\nalgorithm:\n  gamma: 0.97\n"
    )


def adapter(folder: Path) -> None:
    from referee.models.vlm import qwen
    from referee.models.vlm.tiny import TinyOptions, tiny_init

    options = TinyOptions(hidden=32, layers=1, heads=2, vision_hidden=32, vision_depth=1, patch=16, image_size=32)
    tiny_init(folder / "base", options)
    model = qwen.load(qwen.QwenOptions(model_path=folder / "base"))
    net = qwen.add_lora(model.net, rank=2, alpha=None, dropout=0.0, vision=True)
    net.save_pretrained(folder / "lora")
    qwen.write_note(folder / "lora", {"model_path": "base", "options": {"random_reverse": True}})


def read_adapter(folder: Path) -> None:
    from referee.models.vlm import qwen

    assert qwen.is_vlm(folder / "lora")
    _, lora = qwen.base_of(folder / "lora")
    qwen.taught_both_ways(qwen.read_note(folder / "lora"))
    qwen.load(qwen.QwenOptions(model_path=folder / "base", lora_path=lora))


KINDS: dict[str, Kind] = {
    "native episode": Kind(store, ("episodes/*.safetensors",), all_episodes),
    "manifest": Kind(store, ("manifest.jsonl",), verb("episodes", "ls", "{}"), "json"),
    "journal": Kind(journal, ("journals/*/*",), read_journal),
    "label log": Kind(labelled, ("labels.jsonl",), read_labels, "json"),
    "pickled episode": Kind(pickles("lists"), ("data.pkl",), all_episodes, "pickle"),
    "pickled frames": Kind(pickles("frames"), ("data.pkl",), all_episodes, "pickle"),
    "pickled data": Kind(pickles("data"), ("data.pkl",), all_episodes, "pickle"),
    ".npy trajectory": Kind(trajectory, ("000000.npy",), all_episodes),
    "LeRobot dataset": Kind(lerobot, ("data/**/*.*",), all_episodes),
    "HDF5": Kind(hdf5, ("demo.hdf5",), all_episodes),
    "film": Kind(film, ("data/a.mp4",), all_episodes),
    "film labels": Kind(film, ("labels.jsonl",), all_episodes, "json"),
    "pictures": Kind(picture, ("data/*.png", "labels.csv"), all_episodes),
    "train.pt": Kind(frames_dataset, ("train.pt",), read_frames("train.pt")),
    "train.pt of others": Kind(frames_dataset, ("theirs.pt",), read_frames("theirs.pt")),
    "artifact weights": Kind(artifact, ("model/*.safetensors",), read_artifact),
    "artifact JSON": Kind(artifact, ("model/*.json",), read_artifact, "json"),
    "reward checkpoint": Kind(reward_checkpoint, ("checkpoint.pt",), read_reward_checkpoint),
    "policy weights": Kind(policy, ("checkpoints/step_10/*.safetensors",), read_policy),
    "policy metadata": Kind(policy, ("checkpoints/step_10/meta.json",), read_policy, "json"),
    "replay": Kind(replay, ("replay/*.safetensors",), read_replay),
    "metrics": Kind(metrics, ("metrics.jsonl",), read_metrics, "json"),
    "refine log": Kind(refinement, ("rounds.jsonl",), read_refinement, "json"),
    "refine book": Kind(refinement, ("asked/episodes/*.safetensors",), read_refinement),
    "windows index": Kind(windows, ("train/segments.jsonl",), read_windows, "json"),
    "windows": Kind(windows, ("train/pkl/*.pkl",), read_windows, "pickle"),
    **{
        f"score-text, {rule}": Kind(
            answers,
            ("answers.jsonl",),
            verb("score-text", "{}/answers.jsonl", "--rule", rule, "--out", "{}/scored.jsonl"),
            "json",
        )
        for rule in ("exact", "numeric", "regex", "math")
    },
    "YAML preset": Kind(preset, ("mine.yaml",), verb("config", "show", "{}/mine.yaml")),
    "LoRA config": Kind(adapter, ("lora/adapter_config.json", "lora/referee.json"), read_adapter, "json"),
    "LoRA weights": Kind(adapter, ("lora/adapter_model.safetensors",), read_adapter),
}


def targets(kind: Kind, folder: Path) -> list[Path]:
    """The files of a sample that may be damaged."""
    found: Iterator[Path] = (path for pattern in kind.files for path in sorted(folder.glob(pattern)) if path.is_file())
    return list(found)

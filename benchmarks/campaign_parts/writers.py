"""Everything that writes for long: how it is started, how it goes on after a kill, and what it must have kept.

Each writer is a function of a folder that starts, or goes on with what is there, and returns an exit code.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from campaign_parts.material import Material
from campaign_parts.tally import Tally

TRAIN = ["actor.model.width=4", "actor.model.hidden_dim=8", "runner.max_epochs=3", "actor.num_threads=1",
         "actor.global_batch_size=32", "runner.logger.logger_backends=[]", "runner.save_steps=2"]  # fmt: skip
POLICY = ["env.train.task=Reach", "env.train.num_envs=4", "env.train.num_threads=1", "env.eval.num_envs=4",
          "env.train.max_episode_steps=6", "env.eval.max_episode_steps=6", "env.eval.num_threads=1",
          "actor.model.hidden_dims=[16]", "actor.num_threads=1", "runner.eval_episodes=4", "runner.film=false",
          "runner.logger.logger_backends=[]", "runner.save_interval=1"]  # fmt: skip
PPO = [*POLICY, "algorithm.rollout_steps=10", "actor.global_batch_size=40", "runner.max_steps=600"]
SAC = [*POLICY, "algorithm.rollout_steps=4", "actor.global_batch_size=16", "algorithm.utd=0.5", "algorithm.critics=3",
       "algorithm.replay.capacity=160", "algorithm.settle_steps=0", "runner.max_steps=320"]  # fmt: skip
REFINE = [*PPO, "runner.max_steps=320", "reward.use_reward_model=true", "reward.refine.enabled=true",
          "reward.refine.interval=1", "reward.refine.ask=6", "reward.refine.steps=2",
          "reward.refine.budget=60"]  # fmt: skip
SFT = ["runner.max_epochs=1", "actor.global_batch_size=8", "actor.micro_batch_size=4", "data.max_val_windows=8",
       "actor.num_threads=1", "actor.model.lora_rank=2", "runner.save_steps=2"]  # fmt: skip
LATE = 1.0
"""Seconds of labelling that a kill may take."""


@dataclass(frozen=True)
class Writer:
    """One kind of run."""

    name: str
    work: Callable[[Path], int | None]
    check: Callable[[Path, list[str], float, Tally], None]
    """After each kill: the folder, what was printed, when it was killed, and where to count."""
    digest: Callable[[Path], str] | None = None
    """Of the result; None for what never ends by itself. After kills it must be that of a run without any."""
    seconds: float = 2.0
    """How long to let it live at most, for what never ends by itself,"""
    ready: str = ""
    """from when it first prints this."""


def writers(material: Material) -> list[Writer]:
    """All of them."""
    store, out = str(material.episodes), "result"
    convert = partial(_once, words=["episodes", "convert", store, out])
    merge = partial(_once, words=["episodes", "merge", store, "--out", out])
    frames = partial(_once, words=["dataset", "frames", "--raw-data-path", store, "--output-dir", out])
    windows = partial(_once, words=["dataset", "windows", "--raw-data-path", store, "--output-dir", out,
                                    "--window-size", "4"])  # fmt: skip
    model = [f"reward.model.model_path={material.model}"]
    vision = [f"data.video_root={material.windows}", f"actor.model.model_path={material.vlm}",
              f"data.train_data_paths={material.windows}/train",
              f"data.val_data_paths={material.windows}/eval"]  # fmt: skip
    return [
        Writer("recording", record, kept_episodes, ready="ready"),
        Writer("labelling", label, kept_labels, seconds=3.0, ready="pressed 1 "),
        Writer("conversion", convert, whole_or_absent, tree),
        Writer("merge", merge, readable_store, store_digest),
        Writer("frames", frames, whole_or_absent, tree),
        Writer("windows", windows, whole_or_absent, tree),
        Writer("train_reward", partial(_train, data=store), loadable, weights),
        Writer("PPO", partial(_run, preset="panda_ppo_mlp", lines=PPO), loadable, weights),
        Writer("SAC and replay", partial(_run, preset="panda_sac_mlp", lines=SAC), loadable, weights),
        Writer("refinement", partial(_run, preset="panda_ppo_mlp", lines=[*REFINE, *model]), loadable, weights),
        Writer(
            "VLM fine-tuning", partial(_run, preset="qwen3vl_sft_qwentrend", lines=[*SFT, *vision]), loadable, weights
        ),
    ]


# --- how each is started ---


def _main(words: list[str]) -> int:
    from referee.cli import main

    return main(words)


def _once(folder: Path, *, words: list[str]) -> int:
    """A command that writes one folder; done again from the start where it was killed."""
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    converted = words[:2] == ["episodes", "convert"] and Path("result").exists()  # whole: `whole_or_absent` sees to it
    return 0 if converted or Path("done").exists() else _main(words) or Path("done").touch() or 0


def _train(folder: Path, *, data: str) -> int:
    return _main(["train", data, "--out", str(folder), *TRAIN, *_going_on(folder)])


def _run(folder: Path, *, preset: str, lines: list[str]) -> int:
    return _main(["run", preset, f"runner.logger.log_path={folder}", *lines, *_going_on(folder)])


def _going_on(folder: Path) -> list[str]:
    checkpoints = [path for path in (folder / "checkpoints").glob("*") if not path.name.startswith(".")]
    return [f"runner.resume_dir={folder}"] if checkpoints else []


def record(folder: Path) -> None:
    """Episodes of four environments for ever; says what the store has acknowledged."""
    from referee.config import PandaEnvConfig
    from referee.envs import make_vec
    from referee.episodes import EpisodeStore
    from referee.episodes.recorder import Recorder

    class Loud(EpisodeStore):
        def append_many(self, episodes):  # type: ignore[no-untyped-def]
            ids = super().append_many(episodes)
            for id in ids:
                print("kept", id, flush=True)
            return ids

    env = Recorder(make_vec(PandaEnvConfig(task="Reach", num_envs=4, max_episode_steps=8)), lambda: Loud(folder))
    env.reset(seed=time.time_ns() % 2**31)
    random = np.random.default_rng(0)
    print("ready", flush=True)
    while True:
        env.step(random.uniform(-1, 1, (4, 4)).astype(np.float32))


def label(folder: Path) -> None:
    """Every frame is labelled, each third one as a success; says when."""
    from referee.config import load
    from referee.recipes.collect_labels import collect_labels
    from referee.robots.keys import ScriptedKeys

    class Person(ScriptedKeys):
        def __init__(self) -> None:
            self.frame = -1

        def read(self) -> list[str]:
            self.frame += 1
            print("pressed", self.frame, time.monotonic(), flush=True)
            return ["c" if self.frame % 3 == 0 else "a"]

    place = f"runner.{'resume_dir' if (folder / 'recording').exists() else 'logger.log_path'}={folder}"
    lines = ["runner.recipe=collect_labels", "env.eval.num_envs=1", "env.eval.num_threads=1", "runner.policy=random",
             "env.eval.max_episode_steps=10000", "runner.num_success_frames=1000000", "runner.pace=20"]  # fmt: skip
    collect_labels(load("panda_expert", [*lines, place]), keys=Person())


# --- what must be there after a kill ---


def kept_episodes(folder: Path, lines: list[str], killed: float, tally: Tally) -> None:
    """All acknowledged episodes, whole."""
    from referee.episodes import EpisodeStore

    acknowledged = folder.with_suffix(".kept")
    with acknowledged.open("a") as note:
        note.writelines(f"{line.split()[1]}\n" for line in lines if line.startswith("kept "))
    if not folder.exists():
        tally.expect(not acknowledged.read_text(), "recording: the store is gone", "lost")
        return
    store = EpisodeStore(folder)
    missing = set(acknowledged.read_text().split()) - set(store.rows)
    tally.expect(not missing, f"recording: {len(missing)} acknowledged episodes are missing", "lost")
    tally.expect(not store.check(), "recording: the store is damaged")


def kept_labels(folder: Path, lines: list[str], killed: float, tally: Tally) -> None:
    """All labels but those of the last second, as they were given; those of before the kill unchanged."""
    import json

    from referee.episodes import EpisodeStore
    from referee.episodes.journal import recover
    from referee.labels.log import LabelLog

    times = [float(line.split()[2]) for line in lines if line.startswith("pressed ")]
    if not (folder / "recording").exists():
        tally.expect(not times or killed - times[0] <= LATE, "labelling: no recording is left", "lost")
        return
    store = EpisodeStore(folder / "recording")
    recover(store)
    log = LabelLog.of(store)
    labels = {episode.meta.id: log.resolve(episode).tolist() for episode in store}
    notes = folder.with_suffix(".labels")
    before = json.loads(notes.read_text()) if notes.exists() else {}
    notes.write_text(json.dumps(labels))
    changed = [id for id, given in before.items() if labels.get(id) != given]
    tally.expect(not changed, f"labelling: {len(changed)} episodes of earlier runs are gone or changed", "lost")
    new = [given for id, given in labels.items() if id not in before]
    present = [value for given in new for value in given[1:] if value >= 0]
    odd = any(value not in (-1, int(frame % 3 == 0)) for given in new for frame, value in enumerate(given) if frame)
    tally.expect(not odd, "labelling: a label is not the one that was given")
    late = killed - times[len(present)] if len(present) < len(times) else 0.0
    tally.worst("seconds of labelling lost, worst", late)
    tally.expect(late <= LATE, f"labelling: the last {late:.2f} s are lost", "lost")


def whole_or_absent(folder: Path, lines: list[str], killed: float, tally: Tally) -> None:
    """A command that was killed has left nothing under the name of its result, or all of it."""
    reference = folder.parent / "reference"
    if named(folder) and reference.exists():
        whole = named(folder) == named(reference)
        tally.expect(whole, f"{folder.parent.name}: a part of the result has the name of the whole")


def readable_store(folder: Path, lines: list[str], killed: float, tally: Tally) -> None:
    """What a merge has taken over so far is whole."""
    from referee.episodes import EpisodeStore

    if (folder / "result").exists():
        tally.expect(not EpisodeStore(folder / "result").check(), "merge: the store is damaged")


def loadable(folder: Path, lines: list[str], killed: float, tally: Tally) -> None:
    """No saved checkpoint is gone without a later one; whether it loads is seen when the run goes on."""
    place, note = folder / "checkpoints", folder.with_suffix(".steps")
    steps = [int(name[5:]) for path in place.glob("step_*") if (name := path.name)[5:].isdecimal()]
    before = int(note.read_text()) if note.exists() else 0
    newest = max(steps, default=0)
    tally.expect(newest >= before, f"{folder.parent.name}: step {before} was saved, {newest} is the newest", "lost")
    note.write_text(str(max(newest, before)))


# --- results, as digests ---


def tree(folder: Path) -> str:
    """Of all files under `result`, hidden ones beside it included: a kill must leave nothing there."""
    hashed = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.name != "done" and not path.name.endswith(".lock")):
        hashed.update(str(path.relative_to(folder)).encode())
        if path.is_file() and path.name != "dataset_info.json" and path.suffix != ".jsonl":  # these hold the time
            hashed.update(path.read_bytes())
    return hashed.hexdigest()


def named(folder: Path) -> dict[str, int]:
    """The files of a result that are not hidden, with their sizes."""
    files = (path for path in (folder / "result").rglob("*") if path.is_file())
    parts = {str(path.relative_to(folder)): path.stat().st_size for path in files}
    return {name: size for name, size in parts.items() if "/." not in name and not name.endswith(".jsonl")}


def store_digest(folder: Path) -> str:
    """Of the episodes of a store."""
    from referee.episodes import EpisodeStore

    store = EpisodeStore(folder / "result")
    hashed = hashlib.sha256()
    for episode in sorted(store, key=lambda each: str(each.meta.id)):
        hashed.update(str(episode.meta.id).encode() + episode.observations["main_images"].tobytes())
    return hashed.hexdigest()


def weights(folder: Path) -> str:
    """Of the weights in the newest checkpoint, and of the best model where there is one."""
    from safetensors.numpy import load_file

    place = folder / "checkpoints"
    steps = [(int(path.name[5:]), path) for path in place.glob("step_*") if path.name[5:].isdecimal()]
    hashed = hashlib.sha256()
    folders = [path for _, path in sorted(steps)[-1:]] + [place / "best_model"]
    # States hold names with the time of day; a wrong one would have changed the weights since.
    files = sorted(path for each in folders for path in each.glob("*.safetensors") if path.stem != "state")
    if not files:
        raise FileNotFoundError(f"{place} holds no weights")
    for path in files:
        for name, value in sorted(load_file(path).items()):
            hashed.update(f"{path.name} {name} {value.shape}".encode() + value.tobytes())
    return hashed.hexdigest()

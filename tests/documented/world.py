"""What the placeholders of the docs stand for: recordings, models and runs, made once, by the commands themselves."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from tests.documented.pages import SHELL, blocks, commands, pages, targets
from tests.documented.smaller import KEYED, PPO, SFT, TRAIN, TWIN
from tests.documented.typing_person import typing
from tests.models.tiny_vlm import small_vlm

from episodes.foreign_files import foreign, hil_serl, pa, robomimic
from referee.cli import main
from referee.episodes import EpisodeStore

TARGET = "[0.5,0,0.084,-3.14,0,0]"


class World:
    """A folder of things that the commands of a page are given; `furnish` puts them where a page expects them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = self._recorded("episodes", seed=0)
        self.fresh = self._recorded("fresh", seed=10)
        self.reward = root / "reward"
        run("train", self.store, "--out", self.reward, "data.cameras=[front]", *TRAIN)
        self.artifact = self.reward / "checkpoints/best_model"
        run("dataset", "frames", "--raw-data-path", self.store, "--output-dir", root / "frames")
        run("dataset", "windows", "--raw-data-path", self.store, "--output-dir", root / "windows", "--stride", "4")
        for form in ("npy", "pickle"):
            run("episodes", "convert", self.fresh, root / form, "--format", form)
        self.vlm = small_vlm(root / "vlm")
        windows = [f"data.video_root={root}/windows", f"data.train_data_paths={root}/windows/train/segments.jsonl",
                   f"data.val_data_paths={root}/windows/eval/segments.jsonl"]  # fmt: skip
        run("run", "qwen3vl_sft_qwentrend", f"actor.model.model_path={self.vlm}", *windows, *SFT, log(root / "lora"))
        self.lora = root / "lora/checkpoints/best_model"
        self._trained()
        self._at_the_arm()

    def _recorded(self, name: str, *, seed: int) -> Path:
        """Episodes of an expert that stumbles a little, and of one that stumbles much."""
        for noise in (0.3, 0.9):
            run("run", "panda_expert", f"runner.expert_noise={noise}", f"runner.seed={seed + int(10 * noise)}",
                "runner.num_episodes=8", "env.eval.num_envs=8", "env.eval.num_threads=1", "runner.film=false",
                "env.eval.data_collection.enabled=true", f"env.eval.data_collection.save_dir={self.root / name}",
                log(self.root / f"{name}_{noise}"))  # fmt: skip
        return self.root / name

    def _trained(self) -> None:
        """A policy that the model paid, and that was asked about."""
        run("run", "panda_ppo_mlp_resnet_reward", f"reward.model.model_path={self.artifact}", *PPO,
            "runner.max_steps=96", "reward.refine.enabled=true", "reward.refine.interval=1", "reward.refine.ask=6",
            "reward.refine.steps=2", "reward.refine.budget=12", log(self.root / "run"))  # fmt: skip

    def _at_the_arm(self) -> None:
        """Episodes at a fixed pose, frames labelled by key, and demonstrations of the twin."""
        for day, seed in (("posed", 0), ("posed_later", 7)):
            run("run", "realworld_collect_data", *TWIN, "runner.num_data_episodes=4", "env.eval.success_hold_steps=4",
                f"runner.seed={seed}", log(self.root / day))  # fmt: skip
            pose = self.root / day
            run("episodes", "convert", pose / "data.pkl", pose / "collected_data", "--format", "pickle")
        with typing("ca"):
            run("run", "realworld_collect_dataset", *TWIN, *KEYED, log(self.root / "keyed"))
        run("run", "panda_expert", *TWIN, "env@env.eval=realworld_peg_insertion", "runner.num_episodes=2",
            "env.eval.use_spacemouse=true", "env.eval.data_collection.enabled=true",
            f"env.eval.data_collection.save_dir={self.root / 'peg_demos'}", f"env.eval.target_ee_pose={TARGET}",
            "runner.film=false", log(self.root / "peg_expert"))  # fmt: skip

    def furnish(self, folder: Path, page: str) -> set[str]:
        """Put into a page's folder what it may take as given; the names.

        A README makes all that it names. A tutorial may take what it or another one makes; other pages, everything.
        """
        if page.startswith("README"):
            return set()
        made = made_by_tutorials() if page.startswith("docs/tutorials/") else None
        arm = "real_arm" in page
        sources = {
            "episodes": self.store, "data": self.store, "day1": self.store, "day2": self.fresh,
            "fresh_episodes": self.fresh, "old_data": self.root / "pickle", "frames": self.root / "frames",
            "windows": self.root / "windows", "reward": self.reward, "quick": self.reward, "model_a": self.artifact,
            "model_b": self.artifact, "path/to/artifact": self.artifact, "tiny": self.vlm,
            "vlm_sft": self.root / "lora", "logs/run": self.root / "run", "weak": self.root / "run",
            "learned": self.root / "run",
            "logs/run/collected_data": self.root / "posed/collected_data" if arm else self.store,
            "logs/day2/collected_data": self.root / "posed_later/collected_data",
            "logs/reward_model_realworld": self.reward, "posed": self.root / "posed", "posed_reward": self.reward,
            "refined": self.root / "run", "reward_data/positive": self.root / "npy/positive",
            "reward_data/negative": self.root / "npy/negative", "logs/run/recording": self.root / "keyed/recording",
            "demos": self.root / "peg_demos" if arm else self.store,
            "logs/run/checkpoints/best_model": self.lora if page in VISION else self.artifact,
        }  # fmt: skip
        sources = {name: place for name, place in sources.items() if made is None or name in made}
        for name, source in sources.items():
            shutil.copytree(source, folder / name, dirs_exist_ok=True)
        if made is not None:
            return set(sources)
        shutil.copy(self.root / "posed/data.pkl", folder / "logs/run/data.pkl")
        lines = [{"answer": "It is 12.", "reference": "12"}, {"answer": "7", "reference": "8"}]
        (folder / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "mine.yaml").write_text(
            "defaults: [panda_ppo_mlp]\ncluster:\n  component_placement: {env: 0-1, reward: 0-0}\n"
        )
        self._films(folder)
        sources |= self._of_others(folder)
        return {*sources, "answers.jsonl", "mine.yaml", "films", "labels.csv", "frame.png"}

    def _films(self, folder: Path) -> None:
        """Episodes as folders of pictures, with a file of labels."""
        rows = ["episode,start,end,success"]
        for number, episode in enumerate(list(EpisodeStore(self.fresh))[:2]):
            place = folder / "films" / f"take{number}"
            place.mkdir(parents=True)
            for frame, image in enumerate(np.asarray(episode.observations["main_images"])[:6]):
                Image.fromarray(image).save(place / f"{frame:03d}.png")
            rows += [f"take{number},0,3,0", f"take{number},4,5,1"]
        (folder / "labels.csv").write_text("\n".join(rows) + "\n")
        shutil.copy(folder / "films/take0/000.png", folder / "frame.png")

    def _of_others(self, folder: Path) -> dict[str, Path]:
        """Recordings as other tools write them."""
        sparse = pa.array([0.0, 0.0, 1.0, 0.0, 1.0, 1.0], pa.float32())
        made = {
            "lerobot_data": foreign(folder / "lerobot_data", **{"next.reward": sparse}),
            "image.hdf5": robomimic(folder / "image.hdf5", final=True, rewards=[0, 0, 1]),
            "classifier_data": folder / "classifier_data",
            "takes": folder / "takes",
            "pictures": folder / "pictures",
        }
        hil_serl(folder / "classifier_data/lift_200_success_images_2026.pkl", 200, pixels=32)
        hil_serl(folder / "classifier_data/lift_failure_images_2026.pkl", 20, pixels=32)
        (folder / "hil_serl.csv").write_text("episode,success\n*success*,1\n*failure*,0\n")
        shutil.copytree(folder / "films", folder / "pictures")
        for take in sorted((folder / "films").iterdir()):
            first, *rest = [Image.open(path) for path in sorted(take.iterdir())]
            (folder / "takes").mkdir(exist_ok=True)
            first.save(folder / "takes" / f"{take.name}.gif", save_all=True, append_images=rest, duration=100)
        return made


def made_by_tutorials() -> set[str]:
    """Names that commands of the tutorials write to."""
    found = {each for page in pages() if page.parent.name == "tutorials" for each in _written(page)}
    return {name.rstrip("/") for name in found}


def _written(page: Path) -> Iterator[str]:
    for block in blocks(page):
        for command in commands(block) if block.language in SHELL else ():
            yield from targets(shlex.split(command.text))


VISION = ("docs/vlm.md", "docs/history.md", "docs/tutorials/vlm.md")
"""Pages whose model is one of vision and language."""


def run(*words: object) -> None:
    """A command that must work."""
    assert main([str(word) for word in words]) == 0, words


def log(folder: Path) -> str:
    """The key that puts a run there."""
    return f"runner.logger.log_path={folder}"

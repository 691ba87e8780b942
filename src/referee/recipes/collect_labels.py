"""Recipe: a person labels frames by key while the arm moves, and gets train.pt and val.pt in the same run."""

from __future__ import annotations

import logging
from functools import partial

from rich.console import Console

from referee.collect.labelled_frames import LabelledFrames, cameras_of_dataset, can_be_made, make_dataset
from referee.collect.labelling import label
from referee.collect.session import (
    open_arm,
    run_folder,
    shared_keys,
    terminal_keys,
)
from referee.config import Config, Loaded
from referee.config.arm import FrankaEnvConfig
from referee.errors import ConfigError
from referee.labels.log import user
from referee.labels.session import LabelSession
from referee.robots.keys import KeySource
from referee.robots.steering import HELP
from referee.runs.folder import locks_folder
from referee.runs.interrupt import Interrupt

LOG = "run_collect_process.log"
KEYS = (
    "c success, a fail, held down or frame by frame | C, A: from here on, x: no more | u undo | r next episode | q done"
)
_log = logging.getLogger(__name__)


@locks_folder
def collect_labels(loaded: Loaded, *, keys: KeySource | None = None) -> LabelledFrames:
    """Record and label until there are enough frames of both kinds, then make the dataset."""
    config = loaded.config
    check(config)
    keys = keys or terminal_keys("frames are labelled by keys")
    console = Console(highlight=False)
    with run_folder(loaded, LOG) as (folder, store):
        session = LabelSession(store, who=user(), ends_on=config.runner.labelling.ends_on)
        keys, hand = shared_keys(loaded, keys)
        env = open_arm(loaded, folder, own_success_ends=False, hand=hand)
        try:
            console.print(f"Keys: {KEYS}\nEverything is kept in {store.root} while it happens.", soft_wrap=True)
            if hand is not None:
                console.print(f"Steering: {HELP}", soft_wrap=True)
            with Interrupt(console, "saving") as interrupt, keys:
                ready = partial(can_be_made, config, store, folder, env.cameras)
                why = label(loaded, env, store, session, keys, interrupt, ready)
        finally:
            env.close()
        _log.info("%s", why)
        console.print(why, soft_wrap=True)
        return make_dataset(config, store, folder, env.cameras, strict=not interrupt.wanted)


def check(config: Config) -> None:
    """Refuse what cannot work before an arm moves."""
    env = config.env.eval
    if isinstance(env, FrankaEnvConfig) and env.keyboard_reward_wrapper is None:
        raise ConfigError("env.eval.keyboard_reward_wrapper is null, so keys would say nothing: set it to single_stage")
    cameras = None if env is None else env.cameras
    strange = [name for name in cameras_of_dataset(config) or () if cameras is not None and name not in cameras]
    if strange:
        raise ConfigError(f"data.cameras names {strange[0]}, which is not one of env.eval.cameras: add it there too")

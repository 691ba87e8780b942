"""The journal: what it writes down while an episode runs is what is left after a kill."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from episodes.examples import make_episode
from referee.episodes import EpisodeStore, Meta
from referee.episodes.journal import Journal, recover


def feed(journal: Journal, steps: int) -> None:
    episode = make_episode(steps)
    at = lambda t: {name: value[t] for name, value in episode.observations.items()}  # noqa: E731
    assert episode.success is not None
    journal.start(at(0), success=episode.success[0], signals={"progress": episode.signals["progress"][0]})
    for t in range(steps):
        journal.step(episode.actions[t], at(t + 1), reward=float(episode.rewards[t]), truncated=t == steps - 1,
                     success=episode.success[t + 1],
                     signals={"progress": episode.signals["progress"][t + 1]})  # fmt: skip


@pytest.mark.parametrize("max_states", [1, 2, 7, 1000])
def test_a_finished_journal_is_an_episode_and_leaves_nothing(tmp_path: Path, max_states: int) -> None:
    store, wanted = EpisodeStore(tmp_path), make_episode(9)
    journal = Journal(store, Meta(task="PickCube"), max_states=max_states)
    feed(journal, 9)
    kept = store.read(journal.finish())
    for name in ("actions", "rewards", "truncated", "success"):
        np.testing.assert_array_equal(getattr(kept, name), getattr(wanted, name))
    np.testing.assert_array_equal(kept.observations["main_images"], wanted.observations["main_images"])
    assert not list((tmp_path / "journals").iterdir())


@pytest.mark.parametrize("max_states", [1, 3])
def test_an_abandoned_journal_is_recovered_up_to_its_last_chunk(tmp_path: Path, max_states: int) -> None:
    store, wanted = EpisodeStore(tmp_path), make_episode(10)
    journal = Journal(store, Meta(), max_states=max_states, max_seconds=1e9)
    feed(journal, 10)
    assert recover(store) == []  # somebody may still be writing
    [id] = recover(store, older_than=-1.0)
    kept = store.read(id)
    assert 10 - len(kept) < max_states and kept.truncated[-1] and kept.meta.extra == {"recovered": True}
    np.testing.assert_array_equal(kept.actions, wanted.actions[: len(kept)])
    np.testing.assert_array_equal(kept.success, wanted.success[: len(kept) + 1])  # type: ignore[index]
    assert recover(store, older_than=-1.0) == []


def test_a_journal_without_a_step_is_forgotten(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path)
    Journal(store, Meta(), max_states=1).start({"states": np.zeros(2, np.float32)})
    assert recover(store, older_than=-1.0) == [] and len(store) == 0


@pytest.mark.slow
def test_a_kill_loses_at_most_the_last_second(tmp_path: Path) -> None:
    script = (
        "import sys, time, numpy as np; from pathlib import Path\n"
        "from referee.episodes import EpisodeStore, Meta; from referee.episodes.journal import Journal\n"
        "journal = Journal(EpisodeStore(Path(sys.argv[1])), Meta(), max_seconds=0.3)\n"
        "journal.start({'states': np.zeros(1, np.float32)})\n"
        "for t in range(10_000):\n"
        "    time.sleep(0.01)\n"
        "    journal.step([0.0], {'states': np.full(1, t + 1, np.float32)})\n"
        "    print(t + 1, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(100):
        process.stdout.readline()
    process.kill()
    last = 100 + len(process.stdout.read().splitlines())
    store = EpisodeStore(tmp_path)
    [id] = recover(store, older_than=-1.0)
    kept = store.read(id)
    np.testing.assert_array_equal(kept.observations["states"][:, 0], range(len(kept) + 1))
    assert last - len(kept) <= 45  # 0.3 s of 10 ms steps, and some for a busy machine

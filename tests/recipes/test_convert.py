"""`referee episodes convert`: labels from files and from rewards, what a store's log becomes, and what is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from episodes.examples import make_episode
from episodes.foreign_files import foreign, hil_serl, pa, robomimic
from referee.cli import main
from referee.episodes import Episode, EpisodeStore
from referee.episodes.formats.detect import read_any
from referee.episodes.formats.pickled import write_data
from referee.labels.log import LabelLog

Capture = pytest.CaptureFixture[str]


def convert(capsys: Capture, *words: object) -> str:
    """What a conversion says."""
    assert main(["episodes", "convert", *map(str, words)]) == 0
    return capsys.readouterr().out


def refused(capsys: Capture, out: Path, *words: object) -> str:
    """The one line of a conversion that leaves nothing behind."""
    capsys.readouterr()
    assert main(["episodes", "convert", str(words[0]), str(out), *map(str, words[1:])]) == 2
    assert not out.exists()
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def successes(folder: Path) -> list[list[bool] | None]:
    """Of each episode, by the order of its number."""
    found = sorted(read_any(folder), key=lambda episode: episode.meta.episode)
    return [None if each.success is None else each.success.tolist() for each in found]


# --- which frame is a success ---


def test_next_success_labels_its_row_or_the_next_frame(tmp_path: Path, capsys: Capture) -> None:
    flags = pa.array([False, True, False, False, False, True])  # three rows each
    source = foreign(tmp_path / "set", **{"next.success": flags})
    said = convert(capsys, source, tmp_path / "same")
    assert successes(tmp_path / "same") == [[False, True, False], [False, False, True]]
    assert "next.success labels the frame of its own row; --success-at next" in said
    assert "task: push (1 of 2 episodes)" in said and "the last action of 2 episodes is left out" in said
    said = convert(capsys, source, tmp_path / "next", "--success-at", "next")
    assert successes(tmp_path / "next") == [[False, False, True], [False, False, False]]
    assert "1 episodes (as 1) lost their only success" in said and "its own row" not in said
    assert convert(capsys, source, tmp_path / "again", "--success-at", "same")
    assert successes(tmp_path / "again") == successes(tmp_path / "same")


def test_rewards_of_lerobot_are_labels(tmp_path: Path, capsys: Capture) -> None:
    rewards = pa.array([0.0, 1.0, 0.0, 0.0, 0.0, 0.0], pa.float32())
    source = foreign(tmp_path / "set", **{"next.reward": rewards})
    convert(capsys, source, tmp_path / "next", "--success-from", "reward")
    assert successes(tmp_path / "next") == [[False, False, True], [False] * 3]
    convert(capsys, source, tmp_path / "same", "--success-from", "reward", "--success-at", "same")
    assert successes(tmp_path / "same") == [[False, True, False], [False] * 3]


@pytest.mark.parametrize(
    ("final", "rule", "wanted"),
    [
        (True, ["reward"], [False, False, False, True]),
        (True, ["reward", "--success-at", "same"], [False, False, True, False]),
        (False, ["reward"], [False, False, False]),
        (False, ["reward", "--success-at", "same"], [False, False, True]),
        (True, ["reward>=0"], [False, True, True, True]),
    ],
)
def test_sparse_rewards_of_robomimic(
    tmp_path: Path, capsys: Capture, final: bool, rule: list[str], wanted: list[bool]
) -> None:
    source = robomimic(tmp_path / "a.hdf5", final=final, rewards=[0, 0, 1])
    said = convert(capsys, source, tmp_path / "out", "--success-from", *rule)
    assert successes(tmp_path / "out") == [wanted]
    assert ("1 episodes (as demo_0) lost their only success" in said) == (not final and not any(wanted))
    assert ("the last action of 1 episodes is left out" in said) == (not final)


def test_what_is_no_sparse_reward_is_refused(tmp_path: Path, capsys: Capture) -> None:
    dense = robomimic(tmp_path / "a.hdf5", final=True, rewards=[0, 0.5, 1])
    line = refused(capsys, tmp_path / "out", dense, "--success-from", "reward")
    assert "demo_0 has 3 different rewards from 0 to 1, so they are not sparse" in line and "'reward>=1'" in line
    convert(capsys, dense, tmp_path / "high", "--success-from", "reward>=0.5")
    assert successes(tmp_path / "high") == [[False, False, True, True]]
    assert "it can be reward" in refused(capsys, tmp_path / "out", dense, "--success-from", "done")
    assert "holds no next.success" in refused(capsys, tmp_path / "out", dense, "--success-at", "next")
    store = EpisodeStore(tmp_path / "films")
    store.append(replace(make_episode(2), meta=replace(make_episode(2).meta, id="f", extra={"missing": ["rewards"]})))
    assert "episode f holds no rewards" in refused(capsys, tmp_path / "out", store.root, "--success-from", "reward")


# --- the label log of a store ---


def labelled_store(root: Path) -> EpisodeStore:
    """`a` with recorded labels, `b` and `c` without any."""
    store, plain = EpisodeStore(root), make_episode(4, success_from=3)
    for number, (id, success) in enumerate((("a", plain.success), ("b", None), ("c", None))):
        store.append(replace(plain, success=success, meta=replace(plain.meta, id=id, episode=number)))
    return store


def resolved(folder: Path) -> dict[str, list[int]]:
    store = EpisodeStore(folder)
    return {each.meta.id: LabelLog.of(store).resolve(each).tolist() for each in store}


def test_labels_of_a_store_go_through_its_log(tmp_path: Path, capsys: Capture) -> None:
    store = labelled_store(tmp_path / "store")
    LabelLog.of(store).append("b", True, frames=(2, 4), source="keyboard", who="ada")
    labels = tmp_path / "labels.csv"
    labels.write_text("episode,start,stop,success\na,0,1,1\nb,3,4,0\nc,4,,1\n")
    convert(capsys, store.root, tmp_path / "out", "--labels", labels)
    assert resolved(tmp_path / "out") == {"a": [1, 0, 0, 1, 1], "b": [-1, -1, 1, 0, -1], "c": [0, 0, 0, 0, 1]}
    words = LabelLog.of(EpisodeStore(tmp_path / "out")).words
    assert [(each.source, each.who) for each in words] == [("keyboard", "ada")] + [("file", "labels.csv")] * 4
    assert resolved(tmp_path / "store")["c"] == [-1] * 5  # the source is as it was
    labels.write_text("episode,frame,success\na,0,1\nb,9,0\n")
    line = refused(capsys, tmp_path / "new", store.root, "--labels", labels)
    assert f"{labels}: line 3 is about frame 9 of 'b', whose frames are 0 to 4" in line
    labels.write_text("episode,frame,success\na,0,1\nd,0,0\n")
    assert "line 3 is about 'd', but the episodes are a, b, c" in refused(
        capsys, tmp_path / "new", store.root, "--labels", labels
    )


def test_other_formats_get_the_labels_of_the_log(tmp_path: Path, capsys: Capture) -> None:
    store = labelled_store(tmp_path / "store")
    log = LabelLog.of(store)
    log.append("a", False, source="web")
    log.append("b", True, frames=(1, 3), source="web")
    log.append("c", False, source="web")
    log.append("c", True, frames=4, source="web")
    said = convert(capsys, store.root, tmp_path / "out", "--format", "pickle")
    assert successes(tmp_path / "out") == [[False] * 5, None, [False] * 4 + [True]]
    assert "1 episodes are labelled in part and written without labels" in said and "have no labels" not in said


def test_a_task_is_given_to_those_that_do_not_say_it(tmp_path: Path, capsys: Capture) -> None:
    def described(text: str) -> Episode:
        episode = make_episode(2)
        return replace(episode, success=None, meta=replace(episode.meta, task="", description=text))

    write_data(tmp_path / "data.pkl", [described(""), described("Lift it.")])
    said = convert(capsys, tmp_path / "data.pkl", tmp_path / "bare")
    assert "1 episodes do not say their task" in said and "2 episodes have no labels: --labels FILE" in said
    convert(capsys, tmp_path / "data.pkl", tmp_path / "told", "--task", "push the cube")
    assert {each.meta.description for each in EpisodeStore(tmp_path / "told")} == {"push the cube", "Lift it."}
    said = convert(capsys, tmp_path / "told", tmp_path / "lerobot", "--format", "lerobot")
    assert "one row more than there were steps" in said
    assert {each.meta.description for each in read_any(tmp_path / "lerobot")} == {"push the cube", "Lift it."}


def test_ls_says_what_a_labels_file_calls_an_episode(tmp_path: Path, capsys: Capture) -> None:
    write_data(tmp_path / "day" / "data.pkl", [make_episode(2), make_episode(3)])
    assert main(["episodes", "ls", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "day/data/0" in said and "day/data/1" in said


def test_help_shows_examples(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["episodes", "convert", "--help"])
    said = capsys.readouterr().out
    assert "referee episodes convert films recordings --labels labels.csv" in said and "--success-from reward" in said


def test_files_of_hil_serl_are_labelled_by_their_names(tmp_path: Path, capsys: Capture) -> None:
    hil_serl(tmp_path / "classifier_data/lift_200_success_images_2026.pkl", 200)
    hil_serl(tmp_path / "classifier_data/lift_failure_images_2026.pkl", 20)
    labels = tmp_path / "labels.csv"
    labels.write_text("episode,success\n*success*,1\n*failure*,0\n")
    convert(capsys, tmp_path / "classifier_data", tmp_path / "out", "--labels", labels)
    found = {int(each.observations["main_images"][0, 0, 0, 0]): each for each in EpisodeStore(tmp_path / "out")}
    for grey, value in ((200, True), (20, False)):
        success = found[grey].success
        assert success is not None and success.tolist() == [value] * 5

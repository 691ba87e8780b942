"""Pictures, films and their labels files: the right frames in the right order, and one clear line for what is wrong."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from episodes.examples import make_episode
from referee.episodes import EpisodeError
from referee.episodes.formats import frames
from referee.episodes.formats.detect import read_any
from referee.episodes.formats.frame_labels import FrameLabels
from referee.episodes.formats.media import read
from referee.episodes.formats.pickled import write_data

GREYS = [20, 60, 100, 140, 180]


def pictures(folder: Path, greys: list[int] = GREYS, *, ending: str = ".png", names: str = "{}", size: int = 8) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for i, grey in enumerate(greys):
        Image.new("RGB", (size, 6), (grey, grey, 200)).save(folder / f"{names.format(i)}{ending}")
    return folder


def film(path: Path, greys: list[int] = GREYS, *, fps: float = 12.5) -> Path:
    pytest.importorskip("av")
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = frames.FilmWriter(path, height=32, width=48, fps=fps)
    writer.write(np.stack([np.full((32, 48, 3), grey, np.uint8) for grey in greys]))
    writer.close()
    return path


def labels(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# --- pictures ---


def test_each_subfolder_is_an_episode(tmp_path: Path) -> None:
    pictures(tmp_path / "run_2", [10, 20])
    pictures(tmp_path / "run_10", [30, 40, 50])
    (tmp_path / "notes").mkdir()
    first, second = read(tmp_path)
    assert (first.meta.extra["name"], second.meta.extra["name"]) == ("run_2", "run_10")  # not in the order of letters
    assert second.observations["main_images"].shape == (3, 6, 8, 3)
    assert second.observations["main_images"][:, 0, 0].tolist() == [[30, 30, 200], [40, 40, 200], [50, 50, 200]]
    assert second.actions.shape == (2, 0) and second.rewards.tolist() == [0, 0]
    assert second.truncated.tolist() == [False, True] and not second.terminated.any()
    assert second.success is None and set(second.meta.extra["missing"]) >= {"actions", "rewards", "success"}
    assert second.meta.source == str(tmp_path / "run_10") and second.meta.episode == 1


def test_frame_10_comes_after_frame_2(tmp_path: Path) -> None:
    (episode,) = read(pictures(tmp_path / "flat", list(range(12)), names="frame{}"))
    assert episode.observations["main_images"][:, 0, 0, 0].tolist() == list(range(12))
    assert episode.meta.extra["name"] == "flat"


def test_jpegs_and_other_colours_are_read(tmp_path: Path) -> None:
    pictures(tmp_path, [50], ending=".JPG", names="a")
    Image.new("L", (8, 6), 80).save(tmp_path / "b.png")
    Image.new("RGBA", (8, 6), (1, 2, 3, 0)).save(tmp_path / "c.jpeg", "PNG")
    (episode,) = read(tmp_path)
    grey = episode.observations["main_images"][:, 3, 3, 0].astype(int)
    np.testing.assert_allclose(grey, [50, 80, 1], atol=3)


def test_frames_of_different_sizes_are_refused(tmp_path: Path) -> None:
    pictures(tmp_path, [1, 2])
    pictures(tmp_path, [3], names="9", size=10)
    with pytest.raises(EpisodeError, match=r"9\.png: has 6×10 pixels, the frames before it 6×8"):
        list(read(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no PNG or JPEG"),
        (b"GIF89a" + bytes(50), "no PNG or JPEG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "no PNG or JPEG"),  # what could run a program
        ("cut", "cannot be read"),
        ("deep", "which is no colour picture"),
    ],
)
def test_a_broken_picture_is_named(tmp_path: Path, content: bytes | str, message: str) -> None:
    pictures(tmp_path, [1])
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (6, 8, 3), np.uint8)).save(tmp_path / "x.png")
    if content == "cut":
        content = (tmp_path / "x.png").read_bytes()[:-60]
    if content == "deep":
        Image.fromarray(np.zeros((6, 8), np.uint16)).save(tmp_path / "x.png")
    else:
        assert isinstance(content, bytes)
        (tmp_path / "x.png").write_bytes(content)
    with pytest.raises(EpisodeError, match=rf"x\.png.*{message}"):
        list(read(tmp_path))


def test_a_picture_that_declares_too_much_is_refused(tmp_path: Path) -> None:
    pictures(tmp_path, [1])
    content = bytearray((tmp_path / "0.png").read_bytes())
    content[16:24] = (60_000).to_bytes(4, "big") * 2  # width and height in the header
    import zlib

    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    (tmp_path / "1.png").write_bytes(content)
    with pytest.raises(EpisodeError, match=r"1\.png"):
        list(read(tmp_path))


def test_an_episode_that_would_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_EPISODE_BYTES", 6 * 8 * 3 * 4)
    with pytest.raises(EpisodeError, match=r"5 frames of .* are more than .* cut it into shorter ones"):
        list(read(pictures(tmp_path)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: None, "no pictures"),
        (lambda root: pictures(root, [1]), "has one frame"),
        (lambda root: (pictures(root), pictures(root / "sub")), "beside films or subfolders"),
        (lambda root: (film(root / "a.mp4"), pictures(root / "a")), "a film and a subfolder named 'a'"),
    ],
)
def test_folders_that_say_two_things_are_refused(tmp_path: Path, make, message: str) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path)
    with pytest.raises(EpisodeError, match=message):
        list(read(tmp_path))


def test_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EpisodeError, match="neither a folder nor a film"):
        read(tmp_path / "nothing.mp4")


# --- films ---


def test_a_film_is_an_episode(tmp_path: Path) -> None:
    film(tmp_path / "b.mp4", GREYS[::-1])
    film(tmp_path / "a.mp4")
    first, second = read(tmp_path)
    assert first.meta.extra["name"] == "a" and first.meta.fps == 12.5
    assert first.observations["main_images"].shape == (5, 32, 48, 3)
    np.testing.assert_allclose(first.observations["main_images"].mean(axis=(1, 2, 3)), GREYS, atol=2)
    np.testing.assert_allclose(second.observations["main_images"].mean(axis=(1, 2, 3)), GREYS[::-1], atol=2)
    (alone,) = read(tmp_path / "b.mp4")
    np.testing.assert_array_equal(alone.observations["main_images"], second.observations["main_images"])


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.8])
def test_half_a_film_is_refused(tmp_path: Path, part: float) -> None:
    path = film(tmp_path / "a.mp4", list(range(0, 250, 5)))
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(EpisodeError, match=r"a\.mp4"):
        list(read(path))


def test_a_playlist_is_no_film(tmp_path: Path) -> None:
    """FFmpeg would open what it names, were the format guessed."""
    film(tmp_path / "secret.mp4")
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "a.mp4"
    path.write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{tmp_path}/secret.mp4\n#EXT-X-ENDLIST\n")
    with pytest.raises(EpisodeError, match=r"a\.mp4"):
        list(read(path))
    path.write_text(f"ffconcat version 1.0\nfile '{tmp_path}/secret.mp4'\n")
    with pytest.raises(EpisodeError, match=r"a\.mp4"):
        list(read(path))


def test_a_film_that_would_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_EPISODE_BYTES", 32 * 48 * 3 * 4)
    with pytest.raises(EpisodeError, match=r"a\.mp4: 5 frames"):
        list(read(film(tmp_path / "a.mp4")))


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_no_bytes_can_do_more_than_be_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = tmp_path_factory.getbasetemp() / "whole_media"
    if not whole.exists():
        film(whole / "a.mp4")
        pictures(whole / "b", [1, 2])
        pictures(whole / "c", [1, 2], ending=".jpg")
    path = data.draw(st.sampled_from([whole / "a.mp4", whole / "b/1.png", whole / "c/1.jpg"]))
    content = bytearray(path.read_bytes())
    folder = tmp_path_factory.getbasetemp() / "fuzz_media"
    pictures(folder / "e", [1])
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    broken = folder / f"{path.stem}.mp4" if path.suffix == ".mp4" else folder / "e" / f"1{path.suffix}"
    broken.write_bytes(content)
    with contextlib.suppress(EpisodeError):  # anything else that is raised fails the test
        list(read(broken if path.suffix == ".mp4" else folder / "e"))
    broken.unlink()


# --- GIFs ---


def gif(path: Path, greys: list[int] = GREYS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    first, *rest = [Image.new("RGB", (8, 6), (grey, grey, grey)) for grey in greys]
    first.save(path, save_all=True, append_images=rest, duration=80)
    return path


def test_a_gif_is_an_episode(tmp_path: Path) -> None:
    gif(tmp_path / "run_1.gif")
    gif(tmp_path / "run_2.gif", GREYS[:3])
    first, second = read_any(tmp_path)
    assert first.observations["main_images"][:, 0, 0, 0].tolist() == GREYS and first.meta.fps == 12.5
    assert len(second) == 2 and second.meta.extra["name"] == "run_2"
    (alone,) = read_any(tmp_path / "run_2.gif")
    assert alone.meta.extra["name"] == "run_2"
    (tmp_path / "run_2.gif").write_bytes((tmp_path / "run_1.gif").read_bytes()[:40])
    with pytest.raises(EpisodeError, match=r"run_2\.gif: "):
        list(read_any(tmp_path / "run_2.gif"))


def test_gifs_beside_other_episodes_are_only_films_of_them(tmp_path: Path) -> None:
    pictures(tmp_path / "in" / "run")
    gif(tmp_path / "in" / "film.gif")
    assert [episode.meta.extra["name"] for episode in read_any(tmp_path / "in")] == ["run"]
    gif(tmp_path / "out" / "film.gif")
    write_data(tmp_path / "out" / "data.pkl", [make_episode(2)])
    assert len(list(read_any(tmp_path / "out"))) == 1


# --- labels ---


@pytest.mark.parametrize(
    "text",
    [
        "episode,frame,success\nrun,1,1\nrun,3,true\nrun,4,TRUE\nrun,4,1\n",
        "episode,start,end,success\nrun,1,4,1\nrun,2,2,0\n",
        "episode, frame, start, end, success\nrun,,1,4,1\nrun,2,,,false\n",
        "episode,start,stop,success\nrun,1,5,1\nrun,2,3,0\n",
        "episode,start,stop,success\nrun,,,1\nrun,0,1,0\nru*,2,3,0\n",
        "episode,start,stop,success\nrun,1,,1\nrun,2,3,0\n",
    ],
)
def test_frames_and_spans(tmp_path: Path, text: str) -> None:
    pictures(tmp_path / "in" / "run")
    pictures(tmp_path / "in" / "other")
    other, run = read_any(tmp_path / "in", labels=labels(tmp_path / "l.csv", text))
    assert run.success is not None and run.success.tolist() == [False, True, False, True, True]
    assert "success" not in run.meta.extra["missing"]
    assert other.success is None and "success" in other.meta.extra["missing"]


def test_json_lines(tmp_path: Path) -> None:
    pictures(tmp_path / "run")
    rows = [{"episode": "run", "start": 2, "end": 4, "success": True}, {"episode": "run", "frame": 3, "success": 0}]
    path = labels(tmp_path / "l.jsonl", "\n\n".join(json.dumps(row) for row in rows) + "\n")
    (run,) = read_any(tmp_path / "run", labels=path)
    assert run.success is not None and run.success.tolist() == [False, False, True, False, True]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("l.csv", "episode,frame,success\nrun,0,1\nrum,0,1\n", "line 3 is about 'rum', but the episodes are run"),
        ("l.csv", "episode,frame,success\nrun,5,1\n", "line 2 is about frame 5 of 'run', whose frames are 0 to 4"),
        ("l.csv", "episode,start,end,success\nrun,3,9,1\n", "frame 9 of 'run'"),
        ("l.csv", "episode,start,end,success\nrun,3,2,1\n", "line 2 ends at frame 2, before its start 3"),
        ("l.csv", "episode,frame,success\nrun,-1,1\n", "'-1': frames are whole numbers from 0"),
        ("l.csv", "episode,frame,success\nrun,1.5,1\n", "whole numbers"),
        ("l.csv", "episode,frame,success\nrun,1,maybe\n", "line 2 needs an episode, and a success"),
        ("l.csv", "episode,start,stop,success\nrun,3,3,1\n", "line 2 stops at frame 3, not after its start 3"),
        (
            "l.csv",
            "episode,start,stop,success\nrun,3,6,1\n",
            "line 2 is about frame 5 of 'run', whose frames are 0 to 4",
        ),
        ("l.csv", "episode,start,stop,end,success\nrun,3,5,4,1\n", "line 2 needs a frame, or a start and a stop"),
        ("l.csv", "episode,stop,success\nrun,3,1\n", "line 2 needs a frame, or a start and a stop"),
        ("l.csv", "episode,frame,success\nrum*,0,1\n", r"line 2 is about 'rum\*', but the episodes are run"),
        ("l.csv", "run,1,1\n", "its first line must be"),
        ("l.csv", "", "its first line must be"),
        ("l.jsonl", '{"episode": "run", "frame": 1, "success": 1}\n[1]\n', "line 2 is not a JSON object"),
        ("l.jsonl", '{"episode": "run"', "line 1 is not a JSON object"),
        ("l.jsonl", "[" * 100_000, "line 1 is not a JSON object"),
        ("l.txt", "", "ends in .csv or .jsonl"),
    ],
)
def test_wrong_labels_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = labels(tmp_path / name, text)
    with pytest.raises(EpisodeError, match=message) as caught:
        list(read_any(pictures(tmp_path / "run"), labels=path))
    assert str(caught.value).startswith(str(path))


def test_a_labels_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EpisodeError, match=r"l\.csv: .*No such file"):
        FrameLabels(tmp_path / "l.csv")

"""What objects show in a notebook: pictures of bounded size, and no markup out of a file."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.synthetic import square_films

from referee import notebook, open_episodes
from referee.episodes import Episode, EpisodeStore, Meta
from referee.episodes.arrays import episodes_of
from referee.models import Artifact, Reference
from referee.models.registry import build
from referee.models.spec import ModelSpec

HOSTILE = '<script>alert("1")</script><img src=x onerror=alert(1)>'


def images_in(page: str) -> list[np.ndarray]:
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(each)))) for each in found]


def noise(pixels: int, states: int = 30) -> Episode:
    frames = np.random.default_rng(0).integers(0, 255, (states, pixels, pixels, 3)).astype(np.uint8)
    return episodes_of(dict.fromkeys(("a", "b", "c", "d"), frames), np.arange(states) > 15)[0]


def test_an_episode_shows_a_film_strip() -> None:
    frames, labels, groups = square_films(1, seed=0)
    (episode,) = episodes_of(frames, labels, groups)
    assert repr(episode) == f"Episode({episode.meta.id!r}, 11 steps, main_images, success from state {labels.argmax()})"
    (strip,) = images_in(episode._repr_html_())
    assert strip.shape == (notebook.TILE, notebook.COLUMNS * notebook.TILE, 3)
    assert strip[0, 0].tolist() != strip[0, -1].tolist()  # the rim of a failure, and of a success


def test_large_pictures_stay_small_in_a_notebook() -> None:
    page = noise(400)._repr_html_()
    (strip,) = images_in(page)
    assert strip.shape == (notebook.VIEWS * notebook.TILE, notebook.COLUMNS * notebook.TILE, 3)
    assert len(page) < 600_000


def test_text_of_a_hostile_file_is_no_markup(tmp_path: Path) -> None:
    frames, labels, groups = square_films(1, seed=0)
    (episode,) = episodes_of(frames, labels, groups)
    meta = Meta(id="x", task=HOSTILE, description=HOSTILE, source=HOSTILE, cameras=(HOSTILE,))
    bad = replace(episode, meta=meta)
    store = EpisodeStore(tmp_path / "<b>store")
    store.append(bad)
    files = open_episodes(store.path("x"))
    model = build(ModelSpec(cameras=(HOSTILE,), width=8))
    for shown in (bad, store, store.read("x"), files, Artifact(model, folder=tmp_path / HOSTILE.replace("/", ""))):
        page = shown._repr_html_()
        assert "<script" not in page and "<img src=x" not in page and "<b>store" not in page
        assert "&lt;script" in page or shown is store
        assert shown is not bad or len(page) > 1000


def test_a_store_shows_some_episodes_and_survives_a_broken_one(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path)
    store.append_many(episodes_of(*square_films(9, seed=0)))
    assert repr(store) == f"EpisodeStore({str(tmp_path)!r}, 9 episodes)"
    page = store._repr_html_()
    assert len(images_in(page)) == 3 and "5 of 9 labelled" in page
    first = next(iter(store.rows))
    store.path(first).write_bytes(b"nothing")
    assert len(images_in(store._repr_html_())) == 2 and "broken" in store._repr_html_()


def test_an_artifact_shows_what_it_was_trained_on() -> None:
    frames, _, _ = square_films(2, seed=0)
    random = np.random.default_rng(0)
    reference = Reference.of(random.normal(size=(24, 4)).astype(np.float32), frames)
    artifact = Artifact(build(ModelSpec(width=8, image_size=32)), reference=reference)
    assert "32 px" in repr(artifact) and "threshold 0.500" in repr(artifact)
    (strip,) = images_in(artifact._repr_html_())
    assert strip.shape == (notebook.TILE, notebook.COLUMNS * notebook.TILE, 3)


@pytest.mark.parametrize("text", ["a" * 10_000, HOSTILE * 100])
def test_text_is_not_endless(text: str) -> None:
    page = notebook.panel(text, {text: text})
    assert len(page) < 8000 and "<script" not in page

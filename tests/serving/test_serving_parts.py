"""Bodies, sessions and tokens by themselves."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_doubles import as_json, frames, npy, picture

from referee.errors import RefereeError
from referee.metrics.gate import gate
from referee.models import ModelSpec
from referee.serving import tokens
from referee.serving.bodies import TYPES, read_frames
from referee.serving.sessions import Sessions

SPEC = ModelSpec(cameras=("front",))
VALID = {
    "application/json": as_json({"front": [picture(each) for each in frames(2)]}),
    "application/x-npy": npy(frames(2)),
    "image/png": picture(frames(1)[0]),
    "image/jpeg": picture(frames(1)[0], "JPEG"),
}


@settings(max_examples=300, deadline=None)
@given(data=st.data(), content_type=st.sampled_from(TYPES))
def test_any_bytes_are_frames_or_a_refusal(data: st.DataObject, content_type: str) -> None:
    body = bytearray(VALID[content_type])
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, len(body) - 1))
        body[place : place + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
        body = body or bytearray(b"x")
    try:
        found = read_frames(body, content_type, SPEC)
    except RefereeError:
        return
    assert found.dtype == np.uint8 and found.ndim == 4 and found.shape[-1] == 3


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.lists(st.booleans(), min_size=1, max_size=5), st.booleans()), max_size=20
    ),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_pieces_of_a_session_say_what_the_whole_episode_says(
    requests: list[tuple[str, list[bool], bool]], k: int, n: int
) -> None:
    k, n = min(k, n), max(k, n)
    sessions = Sessions(k, n)
    episodes: dict[str, list[bool]] = {"a": [], "b": []}
    for name, success, start in requests:
        episodes[name] = [] if start else episodes[name]
        episodes[name] += success
        found = sessions.gate(name, np.array(success), start=start)
        assert found.tolist() == gate(np.array(episodes[name]), k, n)[-len(success) :].tolist()


def test_the_session_that_was_silent_longest_is_forgotten() -> None:
    sessions = Sessions(2, 2, limit=2)
    yes = np.array([True])
    for name in ("a", "b", "a", "c"):  # b is forgotten
        sessions.gate(name, yes)
    assert len(sessions) == 2
    assert sessions.gate("a", yes).tolist() == [True]
    assert sessions.gate("c", yes).tolist() == [True]
    assert sessions.gate("b", yes).tolist() == [False]


def test_a_token_file_is_written_once_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = tokens.token_in(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and path.read_text() == f"{token}\n"
    assert tokens.token_in(path) == token
    assert tokens.same(token, token) and not tokens.same(token[:-1], token) and not tokens.same("", token)


def test_a_token_file_that_cannot_be_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "token"
    path.write_text("short\n")
    with pytest.raises(RefereeError, match=r"token: the token must be"):
        tokens.token_in(path)
    with pytest.raises(RefereeError, match="cannot write the token"):
        tokens.token_in(tmp_path / "missing" / "token")
    path.write_text("long-enough-for-a-token\n")
    path.chmod(0o644)
    assert tokens.token_in(path) == "long-enough-for-a-token"
    assert "chmod 600" in caplog.text

"""The server over real connections: the artifact's own numbers, whoever asks."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving_doubles import TOKEN, Client, as_json, frames, make_artifact, npy, picture

from referee.errors import RefereeError
from referee.metrics.gate import gate
from referee.models import Artifact, Reference
from referee.models.artifact import embed
from referee.serving import ScoringServer, batching, bodies

CLOSE = {"rtol": 0, "atol": 1e-6}


def assert_equal(answer: tuple[int, Any], artifact: Artifact, images: np.ndarray) -> None:
    status, said = answer
    assert status == 200, said
    expected = artifact.judge(images)
    np.testing.assert_allclose(said["score"], expected.score, **CLOSE)
    np.testing.assert_allclose(said["probability"], expected.probability, **CLOSE)
    assert said["success"] == expected.success.tolist()


# --- the same numbers ---


def test_every_content_type_gets_the_artifacts_numbers(client: Client, artifact: Artifact) -> None:
    images = frames(5, seed=1)
    assert np.ptp(artifact.judge(images).score) > 1e-3
    assert_equal(client.score(npy(images), "application/x-npy"), artifact, images)
    assert_equal(client.score(picture(images[0]), "image/png"), artifact, images[:1])
    png = [picture(each) for each in images]
    assert_equal(client.score(as_json({"front": png}), "application/json"), artifact, images)
    assert_equal(client.score(as_json({"front": png[2]}), "application/json; charset=utf-8"), artifact, images[2:3])
    jpeg = picture(images[0], "JPEG", quality=90)
    as_read = bodies.decode_picture(jpeg)[None].copy()
    assert_equal(client.score(jpeg, "image/jpeg"), artifact, as_read)
    assert_equal(client.score(as_json({"front": [jpeg]}), "application/json"), artifact, as_read)


def test_two_cameras() -> None:
    artifact = make_artifact(("front", "side"))
    images = frames(4, cameras=2, seed=2)
    with ScoringServer(artifact, token=TOKEN) as server:
        client = Client(server)
        assert_equal(client.score(npy(images), "application/x-npy"), artifact, images)
        pictures = {name: [picture(each) for each in images[:, i]] for i, name in enumerate(("front", "side"))}
        swapped = dict(reversed(pictures.items()))
        assert_equal(client.score(as_json(swapped), "application/json"), artifact, images)
        assert client.score(picture(images[0, 0]), "image/png")[0] == 415
        missing = client.score(as_json({"front": pictures["front"]}), "application/json")
        assert missing[0] == 422 and "side" in missing[1]["error"]
        uneven = client.score(as_json({**pictures, "side": pictures["side"][:2]}), "application/json")
        assert uneven[0] == 422 and "4 of front, 2 of side" in uneven[1]["error"]
        client.close()


def test_another_back_end_answers_within_its_bound() -> None:
    pytest.importorskip("onnxruntime")
    artifact, plain = make_artifact(), make_artifact()
    artifact.reference = Reference.of(embed(artifact.model, frames(20)), frames(20))
    images = frames(6, seed=3)
    with ScoringServer(artifact, token=TOKEN, backend="onnxruntime") as server:
        client = Client(server)
        status, said = client.score(npy(images), "application/x-npy")
        assert status == 200
        np.testing.assert_allclose(said["probability"], plain.judge(images).probability, rtol=0, atol=1e-3)
        assert client.ask("GET", "/v1/model")[1]["backend"] == "onnxruntime"
        client.close()


def test_a_thousand_requests_of_eight_threads_get_their_own_answers(server: ScoringServer, artifact: Artifact) -> None:
    images = frames(400, seed=4)
    scores = artifact.judge(images).score
    order = np.argsort(scores)
    apart = order[np.concatenate([[True], np.diff(scores[order]) > 1e-4])]
    assert len(apart) > 50
    bodies_ = [npy(images[i : i + 1]) for i in apart]

    def ask(start: int) -> int:
        client, right = Client(server), 0
        for number in range(start, 1000, 8):
            place = number % len(apart)
            status, said = client.score(bodies_[place], "application/x-npy")
            right += status == 200 and abs(said["score"][0] - scores[apart[place]]) < 1e-6 and len(said["score"]) == 1
        client.close()
        return right

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(8))) == 1000


def test_what_waits_is_scored_in_one_pass_while_new_connections_are_served() -> None:
    artifact = make_artifact()
    images = frames(6, seed=5)
    expected = artifact.judge(images)
    judge, sizes, entered, go_on = artifact.judge, [], threading.Event(), threading.Event()

    def slow(given: np.ndarray) -> Any:
        sizes.append(len(given))
        entered.set()
        assert go_on.wait(30)
        return judge(given)

    artifact.judge = slow  # type: ignore[method-assign, assignment]
    with ScoringServer(artifact, token=TOKEN) as server, ThreadPoolExecutor(6) as pool:

        def ask(i: int) -> tuple[int, Any]:
            client = Client(server)
            try:
                return client.score(npy(images[i : i + 1]), "application/x-npy")
            finally:
                client.close()

        answers = [pool.submit(ask, 0)]
        assert entered.wait(30)
        answers += [pool.submit(ask, i) for i in range(1, 6)]
        client = Client(server)
        assert client.ask("GET", "/healthz")[0] == 200
        client.close()
        while len(server.batcher._jobs) < 5:
            time.sleep(0.01)
        go_on.set()
        for i, answer in enumerate(answers):
            np.testing.assert_allclose(answer.result()[1]["score"], expected.score[i : i + 1], **CLOSE)
    assert sizes == [1, 5]


# --- the gate over time ---


def test_a_session_has_its_own_gate_over_its_own_frames(
    client: Client, server: ScoringServer, artifact: Artifact
) -> None:
    images = frames(30, seed=6)
    success = artifact.judge(images).success
    fires = gate(success, 2, 3)
    assert fires.any() and (fires != success).any()
    found: list[bool] = []
    for start, stop in ((0, 1), (1, 2), (2, 10), (10, 11), (11, 30)):
        begin = "&start=true" if start == 0 else ""
        status, said = client.score(npy(images[start:stop]), "application/x-npy", f"?session=arm-1{begin}")
        assert status == 200 and said["success"] == success[start:stop].tolist()
        found += said["gate"]
        client.score(npy(images[::-1][:1]), "application/x-npy", "?session=arm-2")  # a neighbour
    assert found == fires.tolist()
    again = client.score(npy(images), "application/x-npy", "?session=arm-1&start=true")[1]
    assert again["gate"] == fires.tolist()
    assert "gate" not in client.score(npy(images[:1]), "application/x-npy")[1]


# --- what it says about itself ---


def test_what_needs_no_token(server: ScoringServer, artifact: Artifact) -> None:
    client = Client(server, token=None)
    assert client.ask("GET", "/healthz")[1]["status"] == "ok"
    status, document = client.ask("GET", "/openapi.json")
    assert status == 200 and document["openapi"].startswith("3.")
    assert set(document["paths"]) == {"/v1/score", "/v1/model", "/healthz", "/openapi.json"}
    content = document["paths"]["/v1/score"]["post"]["requestBody"]["content"]
    assert set(content) == set(bodies.TYPES)
    status, page = client.ask("GET", "/")
    assert status == 200 and client.response.headers["Content-Type"].startswith("text/html")
    text = page.decode()
    for said in (*document["paths"], *content, "front", "2 of its last 3 frames", server.url):
        assert said in text
    assert "<script" not in text and "src=" not in text and TOKEN not in text
    status, nothing = client.ask("HEAD", "/openapi.json")
    assert status == 200 and nothing == b"" and int(client.response.headers["Content-Length"]) > 100
    client.close()


def test_names_of_cameras_are_no_markup() -> None:
    with ScoringServer(make_artifact(("<script>alert(1)</script>",)), token=TOKEN) as server:
        client = Client(server)
        page = client.ask("GET", "/")[1].decode()
        assert "<script" not in page and "&lt;script&gt;" in page
        client.close()


def test_what_the_model_is(client: Client, artifact: Artifact) -> None:
    status, said = client.ask("GET", "/v1/model")
    assert status == 200 and said["backend"] == "torch"
    assert said["spec"] == artifact.spec.to_json() and said["calibration"] == artifact.calibration.to_json()


# --- beginning and end ---


def test_closing_answers_what_is_under_way_and_frees_the_port() -> None:
    artifact = make_artifact()
    judge, entered = artifact.judge, threading.Event()

    def slow(images: np.ndarray) -> Any:
        entered.set()
        time.sleep(0.5)
        return judge(images)

    artifact.judge = slow  # type: ignore[method-assign, assignment]
    with ThreadPoolExecutor(1) as pool:
        with ScoringServer(artifact, token=TOKEN) as server:
            idle = Client(server)
            assert idle.ask("GET", "/healthz")[0] == 200  # kept open
            answer = pool.submit(Client(server).score, npy(frames(2)), "application/x-npy")
            assert entered.wait(10)
            start = time.monotonic()
        assert time.monotonic() - start < 5  # not the patience of an idle connection
        assert answer.result()[0] == 200
    idle.close()
    with ScoringServer(artifact, token=TOKEN, port=server.port) as again, pytest.raises(RefereeError, match="listen"):
        ScoringServer(artifact, port=again.port).__enter__()
    assert not again.batcher._thread.is_alive()


def test_after_closing_nothing_is_scored() -> None:
    batcher = batching.Batcher(make_artifact())
    batcher.close()
    with pytest.raises(bodies.Refused, match="stopping"):
        batcher.score(frames(1))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    make_artifact().save(tmp_path / "model")
    code = (
        "from pathlib import Path; from referee.serving import serve; serve('model', port=0, token_file=Path('token'))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("scoring with model at http://127.0.0.1:")
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    token = (tmp_path / "token").read_text().strip()
    assert token not in first + process.stdout.readline()
    port = int(first.partition("127.0.0.1:")[2].partition(":")[0])
    idle = socket.create_connection(("127.0.0.1", port))
    process.send_signal(number)
    rest, complaints = process.communicate(timeout=20)
    idle.close()
    assert process.returncode == 0 and rest == "stopped\n" and complaints == ""

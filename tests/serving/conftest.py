"""Makes the doubles importable by the tests of the server, and a server that they share."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from referee.models import Artifact
from referee.serving import ScoringServer

sys.path.insert(0, str(Path(__file__).parent))
from serving_doubles import TOKEN, Client, make_artifact


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return make_artifact(gate_k=2, gate_n=3)


@pytest.fixture(scope="module")
def server(artifact: Artifact) -> Iterator[ScoringServer]:
    with ScoringServer(artifact, token=TOKEN, max_body=1 << 20) as made:
        yield made


@pytest.fixture
def client(server: ScoringServer) -> Iterator[Client]:
    made = Client(server)
    yield made
    made.close()

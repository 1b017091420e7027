"""How a command reaches a cluster."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from stretto import control
from stretto.client.operating.cluster import FIND_SECONDS, Cluster
from stretto.errors import RetriableError
from stretto.network.routing import Network
from tests.support.serving import serving


@pytest.fixture
def frozen() -> Iterator[str]:
    """Connections are taken, and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_one_that_is_silent_does_not_keep_the_others_waiting(frozen: str) -> None:
    with serving(lambda *_: "127.0.0.1:1") as (network, address):
        begun = time.monotonic()
        assert Cluster(network, [frozen, frozen, address]).find_conductor() == "127.0.0.1:1"
        assert time.monotonic() - begun < FIND_SECONDS


def test_one_that_knows_of_no_conductor_does_not_speak_for_the_others() -> None:
    with (
        serving(lambda *_: None) as (network, knows_of_none),
        serving(lambda *_: "127.0.0.1:1") as (_, knows_one),
    ):
        assert Cluster(network, [knows_of_none, knows_one]).find_conductor() == "127.0.0.1:1"
        assert Cluster(network, [knows_of_none]).find_conductor() is None


def test_nobody_answers(frozen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto.client.operating.cluster.FIND_SECONDS", 0.2)
    network = Network([frozen], None)
    try:
        cluster = Cluster(network, [frozen])
        with pytest.raises(RetriableError, match=f"nothing answers at {frozen}"):
            cluster.find_conductor()
        with pytest.raises(RetriableError, match=f"nothing answers at {frozen}"):
            cluster.metadata()
        with pytest.raises(RetriableError, match="nothing answers"):
            cluster.ask(control.Nodes(), timeout=0.2)
    finally:
        network.close()

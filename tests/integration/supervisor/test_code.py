"""The code of modules: kept and served by supervisors, and there before a worker starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from stretto import control
from stretto.artifact.archive import Artifact, Entry, pack
from stretto.client.operating.upload import upload
from stretto.errors import StrettoError
from stretto.network.asking import ask
from stretto.network.routing import Network
from stretto.vocabulary.types import Incarnation
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import ConductorRegistration, encode
from tests.integration.supervisor.node import Node, Start
from tests.support.waiting import wait_until

W0 = "counts-0"


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    return pack([Entry(name="m.py", content=b"x = 1\n")], tmp_path / "made")


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network(["127.0.0.1:1"], None)
    yield network
    network.close()


def address_of(node: Node) -> str:
    (registration,) = wait_until(f"{node.name} is registered", node.registrations).values()
    return registration.address


def test_a_worker_starts_when_its_code_could_be_fetched_from_another_node(
    nodes: Start, artifact: Artifact, network: Network
) -> None:
    runner, keeper = nodes("n1"), nodes("n2")
    runner.place(W0, artifact=artifact.digest)
    runner.start()
    missing = runner.wait_said("module_code_missing")
    assert missing[0]["digest"] == artifact.digest
    assert runner.events("worker_started") == []
    keeper.start()
    upload(network, [address_of(keeper)], artifact, copies=1)
    runner.wait_worker(W0)
    assert ask(network, address_of(runner), control.HasArtifact(digest=artifact.digest))
    (kept,) = runner.events("artifact_kept")
    assert kept["timestamp"] < runner.events("worker_started")[0]["timestamp"]


def test_it_knows_the_conductor_and_refuses_what_is_for_others(
    node: Node, network: Network, operator: KazooClient, paths: Paths
) -> None:
    node.start()
    address = address_of(node)
    assert ask(network, address, control.FindConductor()) is None
    conductor = ConductorRegistration(incarnation=Incarnation("i"), address="127.0.0.1:7")
    operator.create(paths.conductor_leader, encode(conductor), makepath=True)
    wait_until("it has heard", lambda: ask(network, address, control.FindConductor()) == "127.0.0.1:7")
    operator.delete(paths.conductor_leader)
    wait_until("it has heard", lambda: ask(network, address, control.FindConductor()) is None)
    with pytest.raises(
        StrettoError, match="the supervisor of node n1 does not know Nodes; ask the conductor"
    ):
        ask(network, address, control.Nodes())

"""A whole cluster without a key: what it keeps, and what it makes of messages that mean harm."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from stretto import control
from stretto.process.private_files import OTHERS
from stretto.wire import messages as wire
from tests.integration.ui.serving import MODULE, Served
from tests.support.hostile import Raw
from tests.support.hostile_messages import Hostile
from tests.support.wires import Wire

HARMLESS = (
    control.Nodes,
    control.Modules,
    control.Operations,
    control.Describe,
    control.Specification,
    control.Replicas,
)
"""Calls that change nothing, whatever stands in them: others use the cluster, too."""


def test_what_a_cluster_keeps_is_its_owners_alone(served: Served) -> None:
    folder = served.cluster.folder
    paths = [folder, *folder.rglob("*")]
    assert {path.name for path in paths} >= {"cluster.json", "zookeeper", "run", "logs", "lock", "data.mdb"}
    assert [str(path) for path in paths if _is_open(path)] == []


def _is_open(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        # The cluster lives meanwhile.
        return False
    return bool(mode & OTHERS) and not stat.S_ISLNK(mode)


def addresses(served: Served) -> list[str]:
    """The conductor, the supervisors and the workers: where each of them listens."""
    with Wire(served.cluster.bootstrap[0]) as wire_:
        told = wire_.ask(wire.GetMetadata(1, MODULE))
    assert isinstance(told, wire.Metadata)
    assert told.addresses
    return [*served.cluster.bootstrap, *told.addresses.values()]


def test_no_daemon_is_ended_by_a_message(served: Served) -> None:
    for address in addresses(served):
        hostile = Hostile(17, {str: (MODULE,)})
        calls = [msgspec.Raw(call) for call in hostile.messages(HARMLESS, 5)]
        with Wire(address) as peer:
            messages: list[wire.ToWorker] = [wire.GetMetadata(1, "a/b")]
            messages += [wire.Ask(1, call) for call in calls]
            for message in messages:
                assert isinstance(peer.ask(message), wire.Failed | wire.Answer | wire.Metadata)


@pytest.mark.parametrize("data", [b"POST / HTTP/1.1\r\n\r\n", b"\x01\x00\x01\x00"], ids=["http", "ZMTP/1.0"])
def test_every_daemon_hangs_up_on_who_is_no_peer(served: Served, data: bytes) -> None:
    for address in addresses(served):
        with Raw(address) as peer:
            peer.send(data)
            peer.read_all()
        with Wire(address):
            pass

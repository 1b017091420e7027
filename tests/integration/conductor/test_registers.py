"""What a conductor writes down for those who look later: snapshots, and operations."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooClient

from stretto.conductor import operations as operations_module
from stretto.conductor import snapshots as snapshots_module
from stretto.conductor.operations import Operations
from stretto.conductor.snapshots import SnapshotRegister
from stretto.errors import RetriableError, StrettoError, UsageError
from stretto.specs.modules import ModuleState
from stretto.specs.operations import Operation
from stretto.zk.server.embedded import EmbeddedZooKeeper
from stretto.zk.sessions.client import close, new_client
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import encode


@pytest.fixture
def client(zookeeper: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    client = new_client(zookeeper.address, 4_000)
    client.start()
    yield client
    close(client)


class Clock:
    """The wall clock of a conductor, in milliseconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 1_000
        for module in (operations_module, snapshots_module):
            monkeypatch.setattr(module, "time", SimpleNamespace(time_ns=lambda: self.now_ms * 1_000_000 + 7))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def module(name: str, state: ModuleState = ModuleState.RUNNING) -> Any:
    return SimpleNamespace(name=name, spec=SimpleNamespace(state=state, tasks=4))


def whats(found: tuple[Operation, ...]) -> list[str]:
    return [each.what for each in found]


def test_snapshots_are_listed_oldest_first_and_those_of_one_module_alone(
    client: KazooClient, paths: Paths, clock: Clock
) -> None:
    operations = Operations(client, paths)
    register = SnapshotRegister(client, paths, operations)
    assert register.all_of(None) == register.all_of("bank") == ()
    for at_ms, name, of in (
        (3_000, "c", "bank"),
        (1_000, "b", "bank"),
        (2_000, "a", "shop"),
        (1_000, "a", "bank"),
    ):
        clock.now_ms = at_ms
        register.begin(module(of), name, f"/snapshots/{of}/{name}")
    assert [(each.module, each.name) for each in register.all_of(None)] == [
        ("bank", "a"),
        ("bank", "b"),
        ("shop", "a"),
        ("bank", "c"),
    ]
    assert [each.name for each in register.all_of("bank")] == ["a", "b", "c"]
    begun = register.all_of("shop")[0]
    assert (begun.folder, begun.state, begun.at_ms, begun.tasks) == (
        "/snapshots/shop/a",
        "creating",
        2_000,
        4,
    )
    assert operations.newest(10, None) == (), "what is only begun is no snapshot"

    register.finish("shop", "a", 77)
    [whole] = register.all_of("shop")
    assert (whole.state, whole.size_bytes, whole.folder, whole.at_ms) == (
        "complete",
        77,
        "/snapshots/shop/a",
        2_000,
    )
    assert whats(operations.newest(10, "shop")) == ["snapshot create a in /snapshots/shop/a"]
    assert operations.newest(10, "bank") == ()

    register.forget("shop", "a")
    assert register.all_of("shop") == ()
    assert len(register.all_of("bank")) == 3
    assert len(operations.newest(10, "shop")) == 2


def test_a_name_is_given_once_and_only_what_is_there_is_finished_or_forgotten(
    client: KazooClient, paths: Paths
) -> None:
    register = SnapshotRegister(client, paths, Operations(client, paths))
    register.begin(module("bank"), "one", "/one")
    with pytest.raises(UsageError, match="there is a snapshot one of bank already"):
        register.begin(module("bank"), "one", "/two")
    assert register.all_of("bank")[0].folder == "/one"
    with pytest.raises(StrettoError, match="there is no snapshot of bank"):
        register.forget("bank", "two")
    register.forget("bank", "one")
    with pytest.raises(RetriableError, match="somebody has deleted snapshot one of bank"):
        register.finish("bank", "one", 1)
    assert register.all_of("bank") == ()


@pytest.mark.parametrize("state", ModuleState)
def test_a_snapshot_is_taken_of_a_module_that_has_come_to_rest(
    client: KazooClient, paths: Paths, state: ModuleState
) -> None:
    register = SnapshotRegister(client, paths, Operations(client, paths))
    if state in {ModuleState.LAUNCHING, ModuleState.UPDATING, ModuleState.DESTROYING}:
        with pytest.raises(RetriableError, match=f"module bank is {state}; wait until it is running"):
            register.begin(module("bank", state), "one", "/one")
        assert register.all_of("bank") == ()
    else:
        register.begin(module("bank", state), "one", "/one")
        assert len(register.all_of("bank")) == 1


def test_a_snapshot_that_changes_while_it_is_finished_is_not_overwritten(
    client: KazooClient, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = SnapshotRegister(client, paths, Operations(client, paths))
    register.begin(module("bank"), "one", "/one")
    read = register._read

    def read_then_overtaken(of: str, name: str) -> Any:
        found = read(of, name)
        client.set(paths.snapshot(of, name), client.get(paths.snapshot(of, name))[0])
        return found

    monkeypatch.setattr(register, "_read", read_then_overtaken)
    with pytest.raises(RetriableError, match="changed meanwhile; try again"):
        register.finish("bank", "one", 1)
    assert register.all_of("bank")[0].state == "creating"


def test_operations_are_told_in_their_order_the_newest_so_many(
    client: KazooClient, paths: Paths, clock: Clock
) -> None:
    operations = Operations(client, paths)
    assert operations.newest(10, None) == ()
    for number in range(5):
        clock.now_ms = 1_000 + number
        operations.note(f"{number}", "bank" if number % 2 else None, "done" if number else "failed")
    assert whats(operations.newest(10, None)) == ["0", "1", "2", "3", "4"]
    assert whats(operations.newest(2, None)) == ["3", "4"]
    assert whats(operations.newest(10, "bank")) == ["1", "3"]
    assert whats(operations.newest(1, "bank")) == ["3"]
    assert whats(operations.newest(10, None, before_ms=1_002)) == ["0", "1"]
    assert operations.newest(10, "shop") == ()
    first = operations.newest(10, None)[0]
    assert (first.at_ms, first.module, first.outcome) == (1_000, None, "failed")


def test_an_operation_that_cannot_be_read_hides_no_other(client: KazooClient, paths: Paths) -> None:
    operations = Operations(client, paths)
    operations.note("one")
    client.create(f"{paths.operations}/op-", b"damaged", sequence=True)
    operations.note("two")
    assert whats(operations.newest(2, None)) == ["one", "two"]


def test_the_oldest_operations_go_when_there_are_too_many(
    client: KazooClient, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations_module, "KEPT", 3)
    monkeypatch.setattr(operations_module, "TRIMMED", 4)
    operations = Operations(client, paths)
    client.ensure_path(paths.operations)
    for number in range(5):
        old = Operation(at_ms=1, what=f"old {number}", module=None, outcome="done")
        client.create(f"{paths.operations}/op-", encode(old), sequence=True)
    operations.note("0")
    assert whats(operations.newest(10, None)) == ["old 3", "old 4", "0"], "also those of another conductor"
    for number in range(1, 4):
        operations.note(str(number))
    assert len(operations.newest(10, None)) == 6
    operations.note("4")
    assert whats(operations.newest(10, None)) == ["2", "3", "4"]

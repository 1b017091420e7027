"""The copy of the tree follows the real one."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, KazooException
from kazoo.protocol.states import Callback

from stretto.vocabulary.groups import GroupKey
from stretto.zk.server.embedded import EmbeddedZooKeeper
from stretto.zk.sessions.client import close, new_client
from stretto.zk.watches import tree as mirror_module
from stretto.zk.watches.tree import WatchedTree
from stretto.zk.znodes.paths import Paths
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until


@pytest.fixture
def client(zookeeper: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    opened = new_client(zookeeper.address, 2_000)
    opened.start()
    yield opened
    close(opened)


@pytest.fixture
def writer(zookeeper: EmbeddedZooKeeper, paths: Paths) -> Iterator[KazooClient]:
    opened = new_client(zookeeper.address, 2_000)
    opened.start()
    for path in (*paths.mirrored, paths.options):
        opened.ensure_path(path)
    yield opened
    close(opened)


def truth(client: KazooClient, paths: Paths) -> dict[str, bytes]:
    """What the tree holds of what is copied."""
    found = {}

    def walk(path: str) -> None:
        if paths.holds(path):
            found[path] = client.get(path)[0]
        for name in client.get_children(path):
            walk(f"{path}/{name}")

    walk(paths.root)
    return found


def copied(mirror: WatchedTree) -> dict[str, bytes]:
    mirror.refresh()
    return {path: znode.data for path, znode in mirror.data.items()}


def test_what_its_own_client_wrote_is_in_it_although_watches_are_told_late(
    client: KazooClient, writer: KazooClient, paths: Paths
) -> None:
    mirror = WatchedTree(client, paths, lambda: None)
    mirror.refresh()
    held_up = threading.Event()
    client.handler.dispatch_callback(Callback("watch", held_up.wait, (30,)))
    client.create(paths.group(GroupKey("counts", 1, 0)), b"0", makepath=True)
    in_a_moment = threading.Timer(0.2, held_up.set)
    in_a_moment.start()
    assert copied(mirror) == truth(writer, paths)
    in_a_moment.join()


def test_what_was_read_before_the_connection_broke_counts_as_different(
    client: KazooClient, writer: KazooClient, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (paths.group(GroupKey("counts", 1, number)) for number in (0, 1))
    for path in (first, second):
        writer.create(path, b"0", makepath=True)
    told: list[object] = []
    mirror = WatchedTree(client, paths, lambda: told.append(None))
    mirror.refresh()
    told.clear()
    for path in (first, second):
        writer.set(path, b"1")
    wait_until("both changes are known", lambda: len(told) == 2, 10)
    get = client.get_async

    def breaks(path: str, watch: object = None) -> object:
        if path == second:
            raise ConnectionLoss
        return get(path, watch=watch)

    with monkeypatch.context() as broken:
        broken.setattr(mirror_module, "BATCH", 1)
        broken.setattr(client, "get_async", breaks)
        with pytest.raises(ConnectionLoss):
            mirror.refresh()
    mirror.data[second] = dataclasses.replace(mirror.data[second], data=b"1", version=1)
    assert mirror.refresh(), "what the first attempt has read of the one is told with the next"
    assert mirror.data[first].data == b"1"


def test_it_has_what_is_there_and_hears_of_changes(
    client: KazooClient, writer: KazooClient, paths: Paths
) -> None:
    group = paths.group(GroupKey("counts", 1, 0))
    writer.create(group, b"0", makepath=True)
    changed = threading.Event()
    mirror = WatchedTree(client, paths, changed.set)
    assert copied(mirror) == truth(writer, paths)
    assert mirror.data[group].data == b"0"
    changed.clear()
    writer.set(group, b"1")
    assert changed.wait(10)
    assert mirror.refresh()
    assert mirror.data[group].data == b"1"
    assert not mirror.refresh()
    changed.clear()
    writer.delete(paths.module("counts"), recursive=True)
    assert changed.wait(10)
    wait_until("the module is gone", lambda: copied(mirror) == truth(writer, paths))
    assert group not in mirror.data


def test_requests_to_resign_and_operations_are_not_copied(
    client: KazooClient, writer: KazooClient, paths: Paths
) -> None:
    group = GroupKey("counts", 1, 0)
    writer.create(paths.resign(group), b"r", makepath=True)
    writer.create(f"{paths.operations}/op-1", b"o", makepath=True)
    assert copied(WatchedTree(client, paths, lambda: None)).keys() == {paths.group(group), paths.options}


def test_random_changes_are_followed(client: KazooClient, writer: KazooClient, paths: Paths) -> None:
    rng = random.Random(7)
    mirror = WatchedTree(client, paths, lambda: None)
    places = [paths.group(GroupKey(module, 1, number)) for module in "ab" for number in range(3)]
    places += [f"{paths.nodes}/n{number}/i{each}" for number in range(2) for each in range(2)]
    places += [paths.spec("a"), paths.assignment("b"), paths.drained]
    for step in range(300):
        path = rng.choice(places)
        if writer.exists(path) is None:
            writer.create(path, str(step).encode(), makepath=True)
        elif rng.random() < 0.5:
            writer.set(path, str(step).encode())
        else:
            writer.delete(path, recursive=True)
        if rng.random() < 0.3:
            mirror.refresh()
    wait_until("the copy equals the tree", lambda: copied(mirror) == truth(writer, paths))


def test_it_goes_on_in_a_new_session(zookeeper: EmbeddedZooKeeper, writer: KazooClient, paths: Paths) -> None:
    with Proxy(zookeeper.port) as proxy:
        client = new_client(proxy.address, 2_000)
        client.start()
        try:
            mirror = WatchedTree(client, paths, lambda: None)
            spec = paths.spec("counts")
            writer.create(spec, b"0", makepath=True)
            wait_until("it is seen", lambda: spec in copied(mirror))
            session = client.client_id
            proxy.cut()
            writer.set(spec, b"1")
            wait_until("the session is over", lambda: not client.connected)
            expired = writer.exists(paths.root)
            assert expired is not None
            # Its session is killed from elsewhere, as a server does when it hears nothing.
            thief = KazooClient(zookeeper.address, client_id=session)
            thief.start()
            thief.stop()
            thief.close()
            proxy.heal()

            def follows() -> bool:
                try:
                    return copied(mirror) == truth(writer, paths)
                except KazooException:
                    return False

            wait_until("the copy equals the tree", follows)
            assert client.client_id != session
            assert mirror.data[spec].data == b"1"
            writer.set(spec, b"2")
            wait_until("changes are heard again", lambda: copied(mirror)[spec] == b"2")
        finally:
            close(client)


def test_it_goes_on_over_a_new_connection_of_the_same_session(
    zookeeper: EmbeddedZooKeeper, writer: KazooClient, paths: Paths
) -> None:
    with Proxy(zookeeper.port) as proxy:
        client = new_client(proxy.address, 30_000)
        client.start()
        try:
            mirror = WatchedTree(client, paths, lambda: None)
            spec = paths.spec("counts")
            writer.create(spec, b"0", makepath=True)
            wait_until("it is seen", lambda: spec in copied(mirror))
            session = client.client_id
            proxy.cut()
            wait_until("the connection is lost", lambda: not client.connected)
            writer.set(spec, b"1")
            with pytest.raises(ConnectionLoss):
                client.get(spec)
            proxy.heal()
            wait_until("it is connected again", lambda: client.connected)
            assert client.client_id == session
            wait_until("what changed meanwhile is seen", lambda: copied(mirror)[spec] == b"1")
            writer.set(spec, b"2")
            wait_until("changes are heard again", lambda: copied(mirror)[spec] == b"2")
        finally:
            close(client)

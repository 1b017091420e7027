"""Pins on real workers: one exact offset on all tasks of a group while records and streams go on."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stretto import control
from stretto.client.operating import cluster as clients
from stretto.client.reading.scan import PinnedGroup, Scanner, pin_module
from stretto.errors import PinLost, StrettoError, UsageError
from stretto.module.partition import owner_of
from stretto.network.keys import ClusterKey
from stretto.wire import scans
from stretto.zk.server.embedded import EmbeddedZooKeeper
from tests.support.cluster import DEADLINE_SECONDS, MODULE, Cluster, Code
from tests.support.hostile import Raw
from tests.support.hostile_messages import Hostile
from tests.support.waiting import wait_until
from tests.support.wires import Wire

TASKS = 4
SUMS = """
    from stretto import Depot, Module, PState, stream

    class Sums(Module):
        events = Depot(partition_by="key")
        counts = PState(dict[int, int])
        doubled = PState(dict[int, int])

        @stream(events)
        def take(self, event):
            self.counts.increment(event["key"])
            self.doubled.increment(event["key"], by=2)
"""
#: One for each task.
KEYS = [next(key for key in range(1_000) if owner_of(key, TASKS) == task) for task in range(TASKS)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper: EmbeddedZooKeeper) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    code = Code(folder / "code", SUMS, "Sums")
    with Cluster(folder, zookeeper.address, tasks=TASKS, groups=1, code=code) as cluster:
        yield cluster


def reach(cluster: Cluster) -> clients.Cluster:
    return clients.Cluster(cluster.connect()._network, cluster.addresses())


def key_of(cluster: Cluster) -> ClusterKey | None:
    return ClusterKey.load(cluster.key) if cluster.key is not None else None


def rows(scanner: Scanner, task: int, pstate: str) -> dict[bytes, Any]:
    found: dict[bytes, Any] = {}
    for page in scanner.rows(task, pstate):
        key_at = value_at = 0
        key_ends = struct.unpack(f"<{page.count}I", page.key_ends)
        value_ends = struct.unpack(f"<{page.count}I", page.value_ends)
        for key_end, value_end in zip(key_ends, value_ends, strict=True):
            found[page.keys[key_at:key_end]] = msgspec.msgpack.decode(page.values[value_at:value_end])
            key_at, value_at = key_end, value_end
    return found


@contextmanager
def appending(cluster: Cluster) -> Iterator[Callable[[], int]]:
    """One record after the other, from task to task, each when the one before it is visible; how many are."""
    reader = cluster.connect().reader(MODULE, "events")
    done = sum(reader.bounds(task)[1] for task in range(TASKS))
    stopped = threading.Event()
    failures: list[StrettoError] = []

    def append() -> None:
        nonlocal done
        try:
            with cluster.connect().producer(MODULE, "events", linger_ms=0) as producer:
                while not stopped.is_set():
                    task = done % TASKS
                    record = msgspec.json.encode({"key": KEYS[task]})
                    producer.append(record, task=task).result(DEADLINE_SECONDS)
                    done += 1
        except StrettoError as error:
            failures.append(error)

    thread = threading.Thread(target=append)
    thread.start()
    try:
        yield lambda: done
    finally:
        stopped.set()
        thread.join(DEADLINE_SECONDS)
    assert not failures


def is_beyond(done: Callable[[], int], count: int) -> bool:
    return done() > count


def check_consistent(cluster: Cluster, pinned: PinnedGroup) -> int:
    """Records were appended one by one, from task to task: what any offset shows is the first so many."""
    with Scanner(pinned, key_of(cluster)) as scanner:
        ends = [scanner.bounds(task, "events")[1] for task in range(TASKS)]
        total = sum(ends)
        assert ends == [len(range(task, total, TASKS)) for task in range(TASKS)], pinned
        for task in range(TASKS):
            counts = rows(scanner, task, "counts")
            assert rows(scanner, task, "doubled") == {key: 2 * count for key, count in counts.items()}
            # A stream stores how far it is in the very entry that changes its PStates.
            progress = rows(scanner, task, "$progress")
            assert sum(counts.values()) == sum(progress.values()) <= ends[task]
            batches = list(scanner.batches(task, "events"))
            assert batches[-1].end == ends[task]
    return total


@pytest.mark.parametrize("source", ["follower", "leader"])
def test_a_pin_shows_one_exact_offset_on_all_tasks_while_records_are_processed(
    cluster: Cluster, source: Any
) -> None:
    reached = reach(cluster)
    with appending(cluster) as done:
        seen: list[tuple[int, int]] = []
        for _ in range(5):
            before = done()
            wait_until("others are visible", partial(is_beyond, done, before + 3), DEADLINE_SECONDS)
            [pinned] = pin_module(reached, MODULE, source=source, max_staleness=0.5)
            assert pinned.by_leader == (source == "leader")
            assert (pinned.worker == cluster.record().leader) == (source == "leader")
            assert pinned.epoch == cluster.record().epoch
            assert pinned.tasks == tuple(range(TASKS))
            total = check_consistent(cluster, pinned)
            after = done()
            assert check_consistent(cluster, pinned) == total
            assert done() >= after
            if source == "leader":
                assert before <= total <= after + 1
            seen.append((pinned.offset, total))
    assert [total for _, total in sorted(seen)] == sorted(total for _, total in seen)


def test_who_holds_a_pin_is_told_until_it_is_released(cluster: Cluster) -> None:
    reached = reach(cluster)
    [pinned] = pin_module(reached, MODULE, holder="somebody")
    address = cluster.workers[pinned.worker].address

    def held() -> list[control.PinView]:
        return [each for each in reached.ask_worker(address, control.Pins()) if each.pin == pinned.pin]

    [view] = held()
    assert (view.holder, view.group, view.offset) == ("somebody", pinned.group, pinned.offset)
    assert view.worker == pinned.worker
    with Scanner(pinned) as scanner:
        scanner.release()
        assert held() == []
        with pytest.raises(PinLost, match=f"pin {pinned.pin} of group .* on worker {pinned.worker} is lost"):
            scanner.sizes()


def test_bad_requests_are_refused_in_a_sentence(cluster: Cluster) -> None:
    reached = reach(cluster)
    with pytest.raises(UsageError, match="there is no module nothing; there is counts"):
        pin_module(reached, "nothing")
    with pytest.raises(UsageError, match="from a follower or the leader, not from 'somewhere'"):
        pin_module(reached, MODULE, source="somewhere")  # type: ignore[arg-type]


def test_a_pin_is_lost_with_its_worker_and_another_one_serves_the_next(cluster: Cluster) -> None:
    reached = reach(cluster)
    with appending(cluster) as done:
        wait_until("records are visible", partial(is_beyond, done, done() + TASKS), DEADLINE_SECONDS)
    [pinned] = pin_module(reached, MODULE)
    lost = cluster.workers[pinned.worker]
    with Scanner(pinned) as scanner:
        total = sum(scanner.bounds(task, "events")[1] for task in range(TASKS))
        lost.kill()
        with pytest.raises(
            PinLost, match=f"pin {pinned.pin} .* on worker {lost.name} is lost: nobody answers"
        ):
            scanner.sizes()
    [again] = pin_module(reached, MODULE)
    assert again.worker != lost.name
    assert check_consistent(cluster, again) >= total
    cluster.heal()
    assert lost.said("scan_process_started") == 1


def test_with_a_cluster_key_and_without_followers_the_leader_serves(
    tmp_path: Path, zookeeper: EmbeddedZooKeeper
) -> None:
    key = tmp_path / "key"
    ClusterKey.generate().save(key)
    code = Code(tmp_path / "code", SUMS, "Sums")
    options = {"pin.idle.timeout.millis": 3_000}
    with Cluster(
        tmp_path,
        zookeeper.address,
        workers=1,
        factor=1,
        tasks=TASKS,
        groups=1,
        key=key,
        code=code,
        options=options,
    ) as cluster:
        with appending(cluster) as done:
            wait_until("records are visible", lambda: done() > 10, DEADLINE_SECONDS)
        [pinned] = pin_module(reach(cluster), MODULE)
        assert pinned.by_leader
        total = check_consistent(cluster, pinned)
        assert total == done()
        [worker] = cluster.workers.values()
        wait_until("the process ends", lambda: worker.said("scan_process_ended") == 1, DEADLINE_SECONDS)
        with Scanner(pinned, key_of(cluster)) as scanner, pytest.raises(PinLost, match="nobody answers"):
            scanner.sizes()
        [again] = pin_module(reach(cluster), MODULE)
        assert check_consistent(cluster, again) == total


def test_a_scan_process_outlives_whatever_is_sent_to_it(cluster: Cluster) -> None:
    [pinned] = pin_module(reach(cluster), MODULE)
    with Raw(pinned.address) as page:
        page.send(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        page.read_all()
    hostile = Hostile(17, {str: ("counts", "events", pinned.pin), bytes: (b"", b"\xff")})
    kinds = [kind for kind in scans.ToScans.__args__ if kind is not scans.Release]
    with Wire(pinned.address, hello=False) as peer:
        for message in hostile.messages(kinds, 60):
            peer.send_raw(message, *hostile.bodies())
        with Scanner(pinned, key_of(cluster)) as scanner:
            assert len([scanner.bounds(task, "events") for task in range(TASKS)]) == TASKS

"""``deploy scale-executors --threads`` on a whole cluster: tasks are regrouped while records are appended,
streams and microbatches run, and whoever takes part is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest

from stretto.client import Client, connect
from stretto.client.operating.cluster import Cluster
from stretto.client.reading.scan import Scanner, pin_module
from stretto.errors import PinLost
from stretto.local.cluster import LocalCluster
from stretto.module.partition import owner_of
from stretto.network.routing import Network
from stretto.supervisor.children import RunFile
from tests.support.clusters import READY_SECONDS
from tests.support.commands import Done, stretto
from tests.support.load import Load, check_records
from tests.support.waiting import wait_until

MODULE = """
from stretto import Depot, Module, PState, microbatch, step, stream

class Counts(Module):
    events = Depot()
    words = Depot(partition_by="word")
    orders = Depot(partition_by="account")
    seen = PState(dict[str, int])
    balances = PState(dict[str, int])
    booked = PState(dict[str, int])

    @stream(words)
    def count(self, word):
        self.seen.increment(word["word"])

    @microbatch(orders)
    def book(self, order):
        self.balances.increment(order["account"], by=-order["amount"])
        self.booked.increment(order["account"])
        self.receive.at(order["to"])(order["to"], order["amount"])

    @step
    def receive(self, account: str, amount: int) -> None:
        self.balances.increment(account, by=amount)
"""
TASKS = 8
DEADLINE_SECONDS = 120.0


def launch(cluster: LocalCluster, folder: Path, *shape: str) -> Client:
    source = folder / "counts.py"
    source.write_text(MODULE)
    named = ["--module", f"{source}:Counts", "--name", "counts"]
    launched = stretto("deploy", "launch", *named, *shape, *on(cluster))
    assert launched.code == 0, launched
    return connect(cluster.bootstrap, timeout=60.0)


def on(cluster: LocalCluster) -> list[str]:
    return ["--bootstrap", cluster.bootstrap[0]]


def scale(cluster: LocalCluster, *args: str) -> Done:
    return stretto("deploy", "scale-executors", "counts", *args, *on(cluster))


def status(cluster: LocalCluster) -> dict[str, Any] | None:
    """None while no conductor answers."""
    asked = stretto("module-status", "counts", "--json", *on(cluster))
    if asked.code != 0:
        return None
    [found] = json.loads(asked.out)
    assert isinstance(found, dict)
    return found


def wait_for_more(load: Load, records: int = 200) -> None:
    target = load.acked_so_far() + records
    wait_until(f"{target} records are acknowledged", lambda: load.acked_so_far() >= target, DEADLINE_SECONDS)


def replica_folders(cluster: LocalCluster) -> list[str]:
    """Of the module ``counts``; what of others is about to be deleted is not looked at."""
    return sorted({path.name for path in cluster.folder.glob("node-*/workers/counts-*/groups/*")})


class Topologies:
    """Words that a stream counts and orders that a microbatch books, appended until the block ends."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: Exception | None = None
        self.words: Counter[str] = Counter()
        self.balances: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stopping.set()
        if kind is None:
            self._thread.join(DEADLINE_SECONDS)
            assert not self._thread.is_alive()
            assert self._error is None, repr(self._error)

    def _run(self) -> None:
        dice = random.Random(7)
        try:
            with (
                self._client.producer("counts", "words") as words,
                self._client.producer("counts", "orders") as orders,
            ):
                while not self._stopping.wait(0.01):
                    word = f"word-{dice.randrange(50)}"
                    account, to = (f"account-{each}" for each in dice.sample(range(30), 2))
                    amount = dice.randint(1, 99)
                    order = {"account": account, "to": to, "amount": amount}
                    for ack in (
                        words.append(msgspec.json.encode({"word": word}), task=owner_of(word, TASKS)),
                        orders.append(msgspec.json.encode(order), task=owner_of(account, TASKS)),
                    ):
                        ack.result(DEADLINE_SECONDS)
                    self.words[word] += 1
                    self.balances[account] -= amount
                    self.balances[to] += amount
        except Exception as error:  # noqa: BLE001 - told at the end of the block
            self._error = error

    def check(self) -> None:
        """Each word counted once, each order booked once."""
        seen = self._client.pstate("counts", "seen")
        total = self.words.total()
        wait_until("all are counted", lambda: sum(dict(seen.items()).values()) >= total, DEADLINE_SECONDS)
        assert dict(seen.items()) == self.words
        booked = self._client.pstate("counts", "booked")
        wait_until("all are booked", lambda: sum(dict(booked.items()).values()) >= total, DEADLINE_SECONDS)
        assert sum(dict(booked.items()).values()) == total
        balances = dict(self._client.pstate("counts", "balances").items())
        assert {account: balances.get(account, 0) for account in self.balances} == self.balances


@contextmanager
def own_cluster(folder: Path) -> Iterator[LocalCluster]:
    """Whose daemons may be killed."""
    cluster = LocalCluster(folder / "cluster", 3, port=0)
    thread = threading.Thread(target=cluster.run, name="own-cluster")
    thread.start()
    network = Network(cluster.bootstrap, None)
    try:
        cluster.await_ready(network, threading.Event(), READY_SECONDS)
        yield cluster
    finally:
        network.close()
        cluster.stop()
        thread.join()


def pids(folder: Path) -> dict[str, int]:
    """Of daemons and workers. Not by a walk through all folders: those of replicas come and go."""
    files = [*folder.glob("run/*.json"), *folder.glob("node-*/run/*.json")]
    found = [msgspec.json.decode(path.read_bytes(), type=RunFile) for path in files]
    return {str(file.worker): file.pid for file in found if file.pid}


def kill(cluster: LocalCluster, name: str) -> None:
    os.kill(pids(cluster.folder)[name], signal.SIGKILL)


def settled(cluster: LocalCluster) -> dict[str, Any]:
    """Once it is neither being scaled nor without leaders."""
    found: dict[str, Any] = {}

    def is_settled() -> bool:
        nonlocal found
        found = status(cluster) or {}
        return found.get("state") in ("running", "leadership-balancing") and found["led"] == found["groups"]

    wait_until("it runs", is_settled, DEADLINE_SECONDS)
    return found


@pytest.mark.soak
def test_threads_are_scaled_under_load(whole_cluster: LocalCluster, tmp_path: Path) -> None:
    cluster = whole_cluster
    client = launch(
        cluster, tmp_path, "--tasks", "8", "--threads", "2", "--workers", "1", "--replication-factor", "3"
    )
    try:
        origin = client.describe("counts").origin
        assert origin
        with Load(client) as load:
            wait_for_more(load)
            pinned, *_ = pin_module(Cluster(client._network, cluster.bootstrap), "counts")
            up = scale(cluster, "--threads", "4")
            assert up.code == 0, up
            assert up.lines == ["scale from 2 threads to 4 threads", "counts has 8 tasks in 4 groups"]
            with Scanner(pinned) as scanner, pytest.raises(PinLost, match="its tasks were regrouped"):
                scanner.sizes()
            wait_for_more(load)
            down = scale(cluster, "--threads", "1")
            assert (down.code, down.lines[-1]) == (0, "counts has 8 tasks in 1 groups"), down
            wait_for_more(load)
            both = scale(cluster, "--threads", "3", "--workers", "2")
            assert both.code == 0, both
            assert [line.partition(":")[0] for line in both.lines[::2]] == ["step 1 of 2", "step 2 of 2"]
            assert both.lines[-1] == "counts has 3 replicas of 3 groups, 6 workers on 3 nodes"
            wait_for_more(load)
            late = scale(cluster, "--threads", "5", "--no-wait")
            assert (late.code, "this takes 3 steps" in late.err) == (2, True)
            mixed = scale(cluster, "--threads", "5")
            assert mixed.code == 0, mixed
            assert mixed.lines[0].startswith("step 1 of 3: scale from 2 workers")
            assert mixed.lines[-1] == "counts has 3 replicas of 5 groups, 6 workers on 3 nodes"
            wait_for_more(load)
        tally = check_records(load.outcomes(), client.reader("counts", "events").read_all())
        assert tally.keys() == {"acked"}
        assert client.describe("counts").origin == origin
        assert stretto("verify", "counts", *on(cluster)).code == 0
        too_many = scale(cluster, "--threads", "9")
        assert (too_many.code, "8 tasks cannot occupy 9 threads" in too_many.err) == (2, True)
        too_few = scale(cluster, "--threads", "1")
        assert (too_few.code, "1 threads cannot occupy 2 workers" in too_few.err) == (2, True)
        idle = scale(cluster, "--abandon")
        assert (idle.code, "are not being scaled" in idle.err) == (2, True)
        wait_until("old replicas are gone", lambda: len(replica_folders(cluster)) == 5, 30)
    finally:
        client.close()
        assert stretto("deploy", "destroy", "counts", "--yes", *on(cluster)).code == 0


@pytest.mark.soak
def test_threads_are_scaled_while_whoever_takes_part_is_killed(tmp_path: Path) -> None:
    """Nothing acknowledged is lost or doubled, streams and microbatches go on where they were."""
    dice = random.Random(3)
    with own_cluster(tmp_path) as cluster:
        client = launch(
            cluster, tmp_path, "--tasks", "8", "--threads", "2", "--workers", "1", "--replication-factor", "3"
        )
        with Load(client) as load, Topologies(client) as topologies:
            for threads, victim in (
                (4, None),
                (1, "conductor"),
                (8, "counts-0"),
                (3, "counts-1"),
                (5, "conductor"),
                (2, "counts-2"),
            ):
                wait_for_more(load)
                for attempt in range(10):
                    asked = scale(cluster, "--threads", str(threads), "--no-wait")
                    if asked.code == 0 and victim is not None and attempt == 0:
                        time.sleep(dice.uniform(0, 0.6))
                        kill(cluster, victim)
                    # Refused while a replica is out of sync; abandoned if it stays away for too long.
                    if settled(cluster)["threads"] == threads:
                        break
                    time.sleep(1)
                assert settled(cluster)["threads"] == threads
        tally = check_records(load.outcomes(), client.reader("counts", "events").read_all())
        assert tally["failed"] == 0
        topologies.check()
        wait_until("all replicas agree", lambda: stretto("verify", "counts", *on(cluster)).code == 0, 60)
        client.close()

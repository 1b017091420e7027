"""Snapshots while things die: workers, those who copy, the command itself, and at last the whole cluster."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stretto.client import connect
from stretto.local.cluster import LocalCluster
from stretto.network.routing import Network
from stretto.snapshot.manifest import MANIFEST, read_manifest
from stretto.snapshot.reading import open_snapshot
from tests.integration.snapshot.bank import DEADLINE_SECONDS, MONEY, TASKS, Bank, rows_of
from tests.support.commands import start, stretto
from tests.support.waiting import wait_until

READY_SECONDS = 90.0

HOPPING = """
from stretto import Depot, Module, PState, step, stream

class Letters(Module):
    letters = Depot(partition_by="sender")
    sent = PState(dict[str, int])
    received = PState(dict[str, int])

    @stream(letters)
    def send(self, letter):
        self.sent.increment(letter["sender"])
        self.receive.at(letter["to"])(letter["to"])

    @step
    def receive(self, account: str) -> None:
        self.received.increment(account)
"""


@contextmanager
def a_cluster(folder: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(folder, 3, port=0)
    thread = threading.Thread(target=cluster.run)
    thread.start()
    network = Network(cluster.bootstrap, None)
    try:
        cluster.await_ready(network, threading.Event(), READY_SECONDS)
        yield cluster
    finally:
        network.close()
        cluster.stop(hurry=True)
        thread.join()


def workers_of(cluster: LocalCluster, module: str) -> dict[str, int]:
    """The pid of each."""
    files = cluster.folder.glob(f"node-*/run/{module}-*.json")
    return {found["worker"]: found["pid"] for found in (json.loads(file.read_text()) for file in files)}


def is_whole(bank: Bank) -> bool:
    groups = json.loads(bank.run("task-groups-status", bank.name, "--json").out)
    return all(group["is_whole"] and group["state"] == "running" for group in groups)


def check_snapshot(folder: Path) -> None:
    assert sum(rows_of(folder, "balances").values()) == sum(rows_of(folder, "deposited").values()) == MONEY
    verified = stretto("snapshot", "verify", str(folder))
    assert verified.code == 0, verified


@pytest.mark.soak
def test_every_snapshot_under_load_and_deaths_is_whole_and_the_last_outlives_its_cluster(
    tmp_path: Path,
) -> None:
    chance = random.Random(7)
    made: list[Path] = []
    with a_cluster(tmp_path / "first") as cluster:
        bank = Bank(cluster.bootstrap, "bank")
        bank.launch()
        bank.pay_in()
        bank.settle(MONEY)
        with bank.transfers():
            for number in range(8):
                dying = None
                if number % 2:
                    _, pid = chance.choice(sorted(workers_of(cluster, "bank").items()))
                    dying = threading.Timer(chance.random(), os.kill, (pid, signal.SIGKILL))
                    dying.start()
                done = bank.create(tmp_path / "backup", "--name", f"s{number}")
                if dying is not None:
                    dying.join()
                folder = tmp_path / "backup" / "bank" / f"s{number}"
                if done.code == 0:
                    made.append(folder)
                    check_snapshot(folder)
                else:
                    assert dying is not None, done
                    assert not folder.exists()
                wait_until("all replicas are back", lambda: is_whole(bank), DEADLINE_SECONDS)
        assert len(made) >= 4
        names = [each["name"] for each in json.loads(bank.run("snapshot", "list", "--json").out)]
        assert names == [folder.name for folder in made]
    shutil.rmtree(tmp_path / "first")

    with a_cluster(tmp_path / "second") as cluster:
        bank = Bank(cluster.bootstrap, "bank")
        done = bank.run("snapshot", "restore", str(made[-1]))
        assert done.code == 0, done
        shutil.rmtree(made[-1])
        bank.settle(MONEY)
        with bank.transfers():
            worker, pid = min(workers_of(cluster, "bank").items())
            # A replica that lost everything takes what the leader has: the snapshot is gone.
            [folder] = cluster.folder.glob(f"node-*/workers/{worker}")
            os.kill(pid, signal.SIGSTOP)
            shutil.rmtree(folder / "groups")
            os.kill(pid, signal.SIGKILL)
            wait_until("another process", lambda: workers_of(cluster, "bank").get(worker) != pid, 30)
            wait_until("all replicas are back", lambda: is_whole(bank), DEADLINE_SECONDS)
        bank.settle(MONEY)
        assert bank.run("verify", "bank").code == 0
        for pid in workers_of(cluster, "bank").values():
            os.kill(pid, signal.SIGKILL)
        wait_until("all replicas are back", lambda: is_whole(bank), DEADLINE_SECONDS)
        bank.settle(MONEY)


@pytest.mark.soak
def test_a_copy_goes_on_elsewhere_and_a_command_that_died_keeps_nobody_waiting(tmp_path: Path) -> None:
    with a_cluster(tmp_path / "cluster") as cluster:
        bank = Bank(cluster.bootstrap, "bank")
        bank.launch()
        bank.pay_in()
        slow = bank.run("options", "set", "snapshot.max.bytes.per.second", "20000", "--module", "bank")
        assert slow.code == 0, slow
        at = ["--bootstrap", ",".join(bank.bootstrap)]
        backup = tmp_path / "backup"

        making = start("snapshot", "create", "bank", "--to", str(backup), "--name", "moved", *at)
        parts = backup / "bank" / "moved"
        wait_until("a copy has begun", lambda: bool(list(parts.glob("task-*/*.part"))), DEADLINE_SECONDS)
        copying = [name for name, pid in workers_of(cluster, "bank").items() if _writes_below(pid, parts)]
        os.kill(workers_of(cluster, "bank")[copying[0]], signal.SIGKILL)
        bank.run("options", "set", "snapshot.max.bytes.per.second", "0", "--module", "bank")
        out, err = making.communicate(timeout=DEADLINE_SECONDS)
        assert making.returncode == 0, (out, err)
        assert stretto("snapshot", "verify", str(parts)).code == 0
        copiers = {group.copied_by for group in read_manifest(parts).groups}
        assert copying[0] not in copiers or len(copying) > 1

        wait_until("all replicas are back", lambda: is_whole(bank), DEADLINE_SECONDS)
        bank.run("options", "set", "snapshot.max.bytes.per.second", "1000", "--module", "bank")
        making = start("snapshot", "create", "bank", "--to", str(backup), "--name", "dead", *at)
        parts = backup / "bank" / "dead"
        wait_until("a copy has begun", lambda: bool(list(parts.glob("task-*/*.part"))), DEADLINE_SECONDS)
        making.kill()
        making.communicate()
        assert not (parts / MANIFEST).exists()
        bank.pay_in()
        bank.settle(2 * MONEY)
        listed = json.loads(bank.run("snapshot", "list", "bank", "--json").out)
        assert [(each["name"], each["state"]) for each in listed] == [
            ("moved", "complete"),
            ("dead", "creating"),
        ]
        logs = list(cluster.folder.glob("node-*/logs/bank-*.log"))
        wait_until(
            "workers have let go",
            lambda: all("snapshot_forgotten" in log.read_text(errors="replace") for log in logs),
            DEADLINE_SECONDS,
        )
        wait_until("nobody writes", lambda: not list(parts.glob("task-*/*.part")), DEADLINE_SECONDS)
        assert bank.run("snapshot", "delete", "bank", "dead", "--yes").code == 0
        assert not parts.exists()
        bank.run("options", "unset", "snapshot.max.bytes.per.second", "--module", "bank")
        again = bank.create(backup, "--name", "dead")
        assert again.code == 0, again


def _writes_below(pid: int, folder: Path) -> bool:
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(fd).startswith(f"{folder}/"):
                return True
        except FileNotFoundError:
            continue
    return False


@pytest.mark.soak
def test_what_a_stream_counted_as_done_is_in_the_snapshot_with_all_its_hops(
    whole_cluster: LocalCluster, tmp_path: Path
) -> None:
    source = tmp_path / "letters.py"
    source.write_text(HOPPING)
    letters = Bank(whole_cluster.bootstrap, "letters")
    shape = ["--tasks", str(TASKS), "--threads", "4", "--workers", "1", "--replication-factor", "2"]
    assert letters.run("deploy", "launch", "--module", str(source), "--name", "letters", *shape).code == 0
    # A leader that hands over leaves records that the next one counts once more; so none does after this.
    assert letters.run("leadership", "balance", "letters").code == 0
    stop = threading.Event()

    def load() -> None:
        chance = random.Random(3)
        with connect(letters.bootstrap, timeout=DEADLINE_SECONDS) as client:
            producer = client.producer("letters", "letters", linger_ms=1)
            while not stop.is_set():
                letters.letters(producer, chance, 100)

    loading = threading.Thread(target=load)
    loading.start()
    try:
        totals = []
        for number in range(6):
            done = letters.create(tmp_path / "backup", "--name", f"s{number}")
            assert done.code == 0, done
            folder = tmp_path / "backup" / "letters" / f"s{number}"
            sent = sum(rows_of(folder, "sent").values())
            assert sent == sum(rows_of(folder, "received").values())
            totals.append(sent)
            with open_snapshot(folder) as snapshot:
                assert sent <= sum(snapshot.bounds(task, "letters")[1] for task in snapshot.tasks)
    finally:
        stop.set()
        loading.join()
    assert totals == sorted(set(totals))
    assert letters.run("deploy", "destroy", "letters", "--yes").code == 0


@pytest.mark.soak
def test_a_paused_module_of_one_replica_and_no_topology_is_copied_by_its_leader_and_goes_on_elsewhere(
    whole_cluster: LocalCluster, tmp_path: Path
) -> None:
    source = tmp_path / "notes.py"
    source.write_text("from stretto import Depot, Module\n\nclass Notes(Module):\n    notes = Depot()\n")
    notes = Bank(whole_cluster.bootstrap, "notes")
    shape = ["--tasks", "2", "--threads", "1", "--workers", "1", "--replication-factor", "1"]
    assert notes.run("deploy", "launch", "--module", str(source), "--name", "notes", *shape).code == 0
    for number in range(5):
        assert notes.run("append", "notes", "notes", str(number)).code == 0
    assert notes.run("deploy", "pause", "notes").code == 0
    done = notes.create(tmp_path / "backup", "--name", "one")
    assert done.code == 0, done
    folder = tmp_path / "backup" / "notes" / "one"
    [group] = read_manifest(folder).groups
    assert (group.copied_by, len(group.replicas)) == (group.replicas[0], 1)
    again = Bank(whole_cluster.bootstrap, "again")
    shape = ["--threads", "2", "--replication-factor", "3"]
    done = again.run("snapshot", "restore", str(folder), "--module", "again", *shape)
    assert done.code == 0, done
    assert again.run("append", "again", "notes", "5").code == 0
    read = again.run("tail", "again", "notes", "--from-start", "--no-follow")
    assert sorted(read.lines) == [str(number) for number in range(6)]
    wait_until("all replicas are there", lambda: is_whole(again), DEADLINE_SECONDS)
    assert again.run("verify", "again").code == 0
    for module in ("notes", "again"):
        assert again.run("deploy", "destroy", module, "--yes", "--no-wait").code == 0

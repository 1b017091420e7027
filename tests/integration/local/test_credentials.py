"""A cluster whose part of ZooKeeper is for those alone who have its credentials."""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from stretto.local.cluster import LocalCluster
from stretto.network.routing import Network
from stretto.zk.sessions.client import close, new_client
from stretto.zk.sessions.credentials import Credentials
from tests.integration.local.test_up import RECORDS, append_all, launch, read_all
from tests.support.waiting import wait_until

READY_SECONDS = 90.0
SENTENCE = "give it the cluster's credentials with --zookeeper-credentials FILE"


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    path = tmp_path / "zookeeper.credentials"
    path.write_text("stretto:secret\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def cluster(tmp_path: Path, credentials: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path / "cluster", 1, port=0, credentials=credentials)
    thread = threading.Thread(target=cluster.run)
    thread.start()
    network = Network(cluster.bootstrap, None)
    try:
        cluster.await_ready(network, threading.Event(), READY_SECONDS)
        yield cluster
    finally:
        network.close()
        cluster.stop()
        thread.join()


def tree(client: KazooClient, path: str) -> Iterator[str]:
    yield path
    for child in client.get_children(path):
        yield from tree(client, f"{path}/{child}")


class Outsider:
    """A daemon that was not given the right credentials; its output goes to a file."""

    def __init__(self, folder: Path, *command: str) -> None:
        self._output = folder / f"{secrets.token_hex(4)}.out"
        with self._output.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stretto", *command], stdout=out, stderr=out
            )

    def ends_with_the_sentence(self) -> bool:
        assert self._process.wait(READY_SECONDS) == 2
        return SENTENCE in self._output.read_text().splitlines()[-1]

    def tells_and_goes_on(self) -> bool:
        wait_until("it says why", lambda: SENTENCE in self._output.read_text(), READY_SECONDS)
        return self._process.poll() is None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def outsiders(cluster: LocalCluster, tmp_path: Path) -> Iterator[Callable[..., Outsider]]:
    started: list[Outsider] = []

    def start(verb: str, *more: str) -> Outsider:
        shared = ("--zookeeper", cluster.zookeeper, "--address", "127.0.0.1:0")
        started.append(Outsider(tmp_path, verb, *shared, *more))
        return started[-1]

    yield start
    for each in started:
        each.end()


def test_a_module_serves_who_has_the_credentials_and_nobody_else_sees_its_znodes(
    cluster: LocalCluster, tmp_path: Path, credentials: Path, outsiders: Callable[..., Outsider]
) -> None:
    address = cluster.bootstrap[0]
    launch(address, tmp_path, factor=1)
    wrong = tmp_path / "wrong"
    wrong.write_text("stretto:guessed")
    wrong.chmod(0o600)
    conductor = outsiders("conductor")
    supervisor = outsiders("supervisor", "--node", "n", "--data-dir", str(tmp_path / "n"))
    as_worker = ("--id", "w", "--module", "Counts", "--data-dir", str(tmp_path / "w"))
    worker = outsiders("worker", *as_worker)
    guesser = outsiders("worker", *as_worker, "--zookeeper-credentials", str(wrong))

    append_all(address)
    assert read_all(address) == sorted(RECORDS)

    insider = new_client(cluster.zookeeper, 10_000, Credentials.load(credentials))
    stranger = new_client(cluster.zookeeper, 10_000)
    insider.start()
    stranger.start()
    try:
        found = list(tree(insider, "/stretto"))
        assert len(found) > 20
        for path in found:
            with pytest.raises(NoAuthError):
                stranger.get(path)
            with pytest.raises(NoAuthError):
                stranger.create(f"{path}/mine")
            with pytest.raises(NoAuthError):
                stranger.set(path, b"")
    finally:
        close(insider)
        close(stranger)

    assert all(each.ends_with_the_sentence() for each in (conductor, worker, guesser))
    # Workers that a supervisor finds running are not stopped for this.
    assert supervisor.tells_and_goes_on()

"""One whole cluster for all tests that only use it: ZooKeeper, a conductor, three nodes, as ``up`` runs them.

Tests launch modules of their own under names of their own, and leave the daemons alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from stretto.local.cluster import LocalCluster
from stretto.network.routing import Network

READY_SECONDS = 90.0


@pytest.fixture(scope="session")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    # Where a person keeps it, names may have spaces.
    cluster = LocalCluster(tmp_path_factory.mktemp("whole") / "the cluster", 3, port=0)
    thread = threading.Thread(target=cluster.run, name="whole-cluster")
    thread.start()
    network = Network(cluster.bootstrap, None)
    try:
        cluster.await_ready(network, threading.Event(), READY_SECONDS)
        yield cluster
    finally:
        network.close()
        cluster.stop()
        thread.join()

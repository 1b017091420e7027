"""What the tests of catching up share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.zk.server.embedded import EmbeddedZooKeeper
from tests.integration.catchup.behind import options
from tests.support.cluster import Cluster, pytest_runtest_makereport
from tests.support.servers import zookeeper

__all__ = ["pytest_runtest_makereport", "zookeeper"]


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: EmbeddedZooKeeper) -> Iterator[Cluster]:
    """Three workers, one group of two tasks; out of reach of the log is whoever lacks 1,000 entries."""
    with Cluster(tmp_path, zookeeper.address, groups=1) as cluster:
        options(cluster, **{"replication.max.near.sync.message.lag": 1_000})
        yield cluster

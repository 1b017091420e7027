"""What the tests with real workers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from stretto.zk.server.embedded import EmbeddedZooKeeper
from tests.support.cluster import Cluster, pytest_runtest_makereport
from tests.support.servers import zookeeper

__all__ = ["pytest_runtest_makereport", "zookeeper"]


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: EmbeddedZooKeeper) -> Iterator[Cluster]:
    """Three workers, two groups, three replicas of each."""
    with Cluster(tmp_path, zookeeper.address) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory, zookeeper: EmbeddedZooKeeper) -> Iterator[Cluster]:
    """One for all tests of a module that leave it as it was."""
    with Cluster(tmp_path_factory.mktemp("cluster"), zookeeper.address) as cluster:
        yield cluster


@pytest.fixture
def start(tmp_path: Path, zookeeper: EmbeddedZooKeeper) -> Iterator[Callable[..., Cluster]]:
    """Clusters of other shapes."""
    with ExitStack() as closing:

        def start(zookeeper_address: str = zookeeper.address, **shape: Any) -> Cluster:
            return closing.enter_context(Cluster(tmp_path, zookeeper_address, **shape))

        yield start

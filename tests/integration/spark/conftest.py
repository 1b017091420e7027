"""What the tests with Spark share: one session for all tests of a pytest process, and clusters.

Spark is small here: two threads, two attempts for a task, two partitions after a shuffle, no UI.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from pyspark_stretto import register
from stretto.zk.server.embedded import EmbeddedZooKeeper
from tests.support.cluster import Cluster, pytest_runtest_makereport
from tests.support.servers import zookeeper

__all__ = ["pytest_runtest_makereport", "zookeeper"]

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
}


#: The first test waits for a JVM to start, which takes long on a machine that is busy with other things.
TIMEOUT_SECONDS = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # It writes to what was the standard error when it first had something to say, whose ever that is.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    builder = SparkSession.builder.master("local[2,2]").appName("stretto")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.local.dir", str(folder / "local"))
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    session = builder.getOrCreate()
    register(session)
    yield session
    session.stop()


@pytest.fixture
def start(tmp_path: Path, zookeeper: EmbeddedZooKeeper) -> Iterator[Callable[..., Cluster]]:
    """Clusters of the shape that a test wants."""
    with ExitStack() as closing:

        def start(zookeeper_address: str = zookeeper.address, **shape: Any) -> Cluster:
            return closing.enter_context(Cluster(tmp_path, zookeeper_address, **shape))

        yield start

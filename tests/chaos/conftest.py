"""What the chaos test shares with the integration tests."""

from tests.integration.cluster import pytest_runtest_makereport
from tests.integration.zk.servers import zookeeper

__all__ = ["pytest_runtest_makereport", "zookeeper"]

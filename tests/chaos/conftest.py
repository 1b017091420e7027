"""What the chaos test shares with the integration tests."""

from tests.support.cluster import pytest_runtest_makereport
from tests.support.servers import zookeeper

__all__ = ["pytest_runtest_makereport", "zookeeper"]

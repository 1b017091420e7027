"""What the tests of commands against real processes share."""

from __future__ import annotations

from tests.integration.cluster import pytest_runtest_makereport
from tests.integration.zk.servers import zookeeper

__all__ = ["pytest_runtest_makereport", "zookeeper"]

"""What the tests of commands against real processes share."""

from __future__ import annotations

from tests.integration.worker.conftest import calm, cluster
from tests.support.cluster import pytest_runtest_makereport
from tests.support.clusters import whole_cluster
from tests.support.servers import zookeeper

__all__ = ["calm", "cluster", "pytest_runtest_makereport", "whole_cluster", "zookeeper"]

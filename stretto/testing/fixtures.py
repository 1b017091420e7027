"""Fixtures for pytest: in a ``conftest.py``, ``pytest_plugins = ["stretto.testing.fixtures"]``.

A cluster takes seconds to start, so all tests of a session share one. Each test finds it whole and empty:
what a test launched is destroyed after it, and what it broke is healed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stretto.testing.clusters import ClusterUnderTest, cluster


@pytest.fixture(scope="session")
def stretto_session_cluster() -> Iterator[ClusterUnderTest]:
    """A cluster of three nodes for the whole session. Override it to have more, or to keep their files."""
    with cluster(replication_factor=3) as made:
        yield made


@pytest.fixture
def stretto_cluster(stretto_session_cluster: ClusterUnderTest) -> Iterator[ClusterUnderTest]:
    """A cluster on which the test may launch and break what it likes."""
    yield stretto_session_cluster
    stretto_session_cluster.reset()

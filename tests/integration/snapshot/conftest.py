"""What the tests of snapshots against real processes share."""

from __future__ import annotations

from tests.support.clusters import whole_cluster

__all__ = ["whole_cluster"]

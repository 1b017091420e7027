"""What the tests of the Cluster UI share."""

from __future__ import annotations

from tests.integration.clusters import whole_cluster
from tests.integration.ui.serving import served

__all__ = ["served", "whole_cluster"]

"""What the tests of the Cluster UI share."""

from __future__ import annotations

from tests.integration.clusters import whole_cluster
from tests.integration.ui.serving import by_hand, served

__all__ = ["by_hand", "served", "whole_cluster"]

"""What the tests of the Cluster UI share."""

from __future__ import annotations

from tests.integration.ui.serving import by_hand, served
from tests.support.clusters import whole_cluster

__all__ = ["by_hand", "served", "whole_cluster"]

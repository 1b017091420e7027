"""What was done to the cluster, as one line of its log."""

from __future__ import annotations

import msgspec


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was done to the cluster."""

    at_ms: int
    what: str
    module: str | None = None
    outcome: str = "done"

"""The cluster as a whole: who conducts it, its nodes and workers, and what was done to it."""

from __future__ import annotations

import msgspec

from stretto.control.call import Call
from stretto.control.modules import WorkerView
from stretto.specs.operations import Operation


class FindConductor(Call[str | None], frozen=True, kw_only=True):
    """Find the address of the active conductor; None while there is none."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    address: str | None
    """Address of its supervisor; None while that is not registered."""
    labels: dict[str, str]
    workers: int
    """Number of worker processes assigned to it."""
    running: int
    """How many of its workers are registered."""
    leaders: int
    leadership_allowed: bool


class Nodes(Call[tuple[NodeView, ...]], frozen=True, kw_only=True):
    """The nodes of the cluster."""


class Operations(Call[tuple[Operation, ...]], frozen=True, kw_only=True):
    """What was done to the cluster, newest last."""

    module: str | None = None
    limit: int = 100
    before_ms: int | None = None
    """Only operations that were done before this time."""


class LocalWorkers(Call[tuple[WorkerView, ...]], frozen=True, kw_only=True):
    """The workers of a supervisor's node: where to ask on when there is no conductor."""

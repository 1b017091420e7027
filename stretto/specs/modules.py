"""What a module is, as data: its declarations, its size, its state, and what an update does to it.

The metastore keeps a :class:`ModuleSpec` for each module, and calls carry parts of it.
"""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from stretto.pstate.types import Type


class ModuleState(enum.StrEnum):
    LAUNCHING = "launching"
    RUNNING = "running"
    LEADERSHIP_BALANCING = "leadership-balancing"
    UPDATING = "updating"
    SCALING = "scaling"
    PAUSED = "paused"
    DESTROYING = "destroying"


class DepotSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    partition_by: str | tuple[str, ...] | None = None
    """The field, or fields, whose hash chooses the task; None spreads records evenly."""
    rule: Literal["hash", "global", "custom"] = "hash"
    """``global`` is task 0; ``custom`` is a function of the module, which only its importers have."""
    since: int = 1
    """The version of the module that it came with. One that was deleted and is declared anew is another."""

    @property
    def declared(self) -> DepotSpec:
        """The depot as the module's code declares it."""
        return msgspec.structs.replace(self, since=1)


class PStateSpec(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    type: Type


class TopologySpec(msgspec.Struct, frozen=True, kw_only=True):
    """A function that takes records, with the steps that it hops to: what a worker drives."""

    name: str
    kind: Literal["stream", "microbatch"]
    depots: tuple[str, ...]
    pstates: tuple[str, ...] = ()
    """PStates that it writes; no other topology does."""
    retry: Literal["individual", "all-after", "none"] = "individual"
    batch: bool = False
    """Whether its function takes many records at once, and is not asked which of them made a hop."""


class QuerySpec(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    parameters: tuple[str, ...] = ()
    key: str | None = None
    """The parameter whose argument chooses the task; None asks all of them."""
    key_type: Type | None = None
    """The type that the argument is turned into: JSON, or text, says no dates, bytes and tuples."""


class RestoredFrom(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot that a module begins with."""

    folder: str
    checksum: str
    """Checksum of its manifest."""


class ModuleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What was launched; the code itself is never in the metastore."""

    artifact: str
    """Digest of the module's code."""
    tasks: int
    threads: int
    workers: int
    replication_factor: int
    state: ModuleState
    entry: str = ""
    """Where the module's class is in the artifact."""
    depots: tuple[DepotSpec, ...] = ()
    pstates: tuple[PStateSpec, ...] = ()
    topologies: tuple[TopologySpec, ...] = ()
    queries: tuple[QuerySpec, ...] = ()
    origin: str = ""
    """A random word of its launch. Whatever becomes of the module, it keeps it, and so does a copy that is
    restored from a snapshot; a namesake that is launched later has another. Empty: not known."""
    version: int = 1
    """Version of the code: +1 with every update."""
    deleted: dict[str, int] = {}
    """Depots, PStates and topologies that updates deleted and whose data is still going, with the version
    that did."""
    writers: dict[str, str] = {}
    """The topology that writes each PState, or was the last to; it may be deleted by now."""
    update: Update | None = None
    """The update under way; None if it is not updating."""
    failed_update: FailedUpdate | None = None
    """Why the latest update was rolled back, if it was."""
    restored: RestoredFrom | None = None
    """The snapshot that an empty replica begins with; only while the module is launched."""

    @property
    def is_paused(self) -> bool:
        """Whether the module is paused: neither records nor topologies change anything."""
        state = self.state if self.update is None else self.update.next.state
        return state is ModuleState.PAUSED and self.state is not ModuleState.DESTROYING


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """New code on its way to a module."""

    id: str
    next: ModuleSpec
    """The spec that is to be, once all nodes have loaded the code."""
    delete: tuple[str, ...]
    """Depots, PStates and topologies whose data is deleted."""
    began_ms: int
    is_switched: bool = False
    """Whether the spec is the new one by now, and workers take it up."""


class FailedUpdate(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    node: str
    why: str
    traceback: str = ""
    """Traceback of its author's own code, if that raised."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """How a node fared with the code of an update."""

    id: str
    """Id of the update."""
    why: str = ""
    """Why the code does not load; empty if it does."""
    traceback: str = ""

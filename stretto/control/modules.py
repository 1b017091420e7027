"""The life of modules, asked of the conductor; and what a module is, which its workers tell as well."""

from __future__ import annotations

from typing import Any

import msgspec

from stretto.control.call import Call
from stretto.control.pins import PinView
from stretto.control.topologies import MicrobatchView
from stretto.options import Level
from stretto.specs.modules import (
    DepotSpec,
    FailedUpdate,
    ModuleSpec,
    PStateSpec,
    QuerySpec,
    RestoredFrom,
    TopologySpec,
)
from stretto.vocabulary.types import WorkerId


class ModuleManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a module declares, told without running it."""

    name: str
    entry: str
    """``module.path:ClassName``, as an importer of the artifact writes it."""
    depots: tuple[DepotSpec, ...]
    pstates: tuple[PStateSpec, ...] = ()
    topologies: tuple[TopologySpec, ...] = ()
    queries: tuple[QuerySpec, ...] = ()
    samples: dict[str, str] = {}
    """By depot, a record that its topologies take, as JSON: to be shown to a person. Left out where none
    could be made up by its type."""


class OptionsAt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is set for one object of a module, or, if none is named, for the module."""

    depot: str | None = None
    topology: str | None = None
    pstate: str | None = None
    values: dict[str, Any]

    def level_of(self, module: str) -> Level:
        return Level.of(module, depot=self.depot, topology=self.topology, pstate=self.pstate)


class Launch(Call[None], frozen=True, kw_only=True):
    """Commits when enough nodes keep the artifact; :class:`ModuleStatus` tells how it goes on."""

    module: str
    artifact: str
    """Digest of what was uploaded."""
    manifest: ModuleManifest
    tasks: int
    threads: int
    workers: int
    replication_factor: int
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    object_options: tuple[OptionsAt, ...] = ()
    restored: RestoredFrom | None = None
    """The snapshot that its tasks begin with; without it they begin empty."""
    version: int = 1
    deleted: dict[str, int] = msgspec.field(default_factory=dict)
    writers: dict[str, str] = msgspec.field(default_factory=dict)
    """What a snapshot knows of who wrote its PStates."""
    origin: str = ""
    """Of the module that the snapshot is of; empty for a new one."""


class Destroy(Call[None], frozen=True, kw_only=True):
    """Stops the module's workers and deletes its data, for good."""

    module: str


class Update(Call[None], frozen=True, kw_only=True):
    """New code for a module that runs. Commits to trying it; :class:`ModuleStatus` tells how it goes on."""

    module: str
    artifact: str
    manifest: ModuleManifest
    delete: tuple[str, ...] = ()
    """Depots and PStates that the new code no longer declares, and whose data is to go."""


class Reassign(Call[str], frozen=True, kw_only=True):
    """Move all replicas of a module away from a node; returns what is done, in a sentence."""

    module: str
    node: str
    force: bool = False
    """Also if no other replica is in sync."""


class Scale(Call[str], frozen=True, kw_only=True):
    """More or fewer workers or replicas; returns what is done, in a sentence."""

    module: str
    workers: int | None = None
    replication_factor: int | None = None


class ScaleThreads(Call[str], frozen=True, kw_only=True):
    """The same tasks in more or fewer groups; returns what is done, in a sentence."""

    module: str
    threads: int


class PossibleThreads(Call[tuple[int, ...]], frozen=True, kw_only=True):
    """How many threads the module can have on its workers as they are."""

    module: str


class AbandonScaling(Call[str], frozen=True, kw_only=True):
    """Give up a change of threads that is under way."""

    module: str


class Pause(Call[None], frozen=True, kw_only=True):
    """Take no more records and run no more topologies, until it is resumed; reads go on."""

    module: str


class Resume(Call[None], frozen=True, kw_only=True):
    module: str


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    worker: WorkerId
    node: str
    address: str | None
    """None while it is not registered."""
    paused: bool = False
    """It refuses records, as its module demands."""


class ModuleView(msgspec.Struct, frozen=True, kw_only=True):
    module: str
    state: str
    artifact: str
    tasks: int
    threads: int
    next_threads: int = 0
    """How many it is being scaled to; 0 if it is not."""
    workers: int
    replication_factor: int
    depots: tuple[DepotSpec, ...]
    pstates: tuple[PStateSpec, ...]
    topologies: tuple[TopologySpec, ...] = ()
    queries: tuple[QuerySpec, ...] = ()
    processes: tuple[WorkerView, ...]
    version: int = 1
    """Of its code: +1 with every update."""
    failed_update: FailedUpdate | None = None
    """Why the latest update was rolled back, if it was."""
    groups: int
    led: int
    """How many of its groups have a leader that is registered."""
    moved: int = 0
    """How many have exactly the replicas that the assignment gives them."""
    problems: tuple[str, ...]
    """One sentence each; none when all is well."""
    microbatches: tuple[MicrobatchView, ...] = ()
    """Not by the conductor, which does not know, but added by who asks for one module."""
    pins: tuple[PinView, ...] = ()
    """Added likewise, from its workers."""


class Modules(Call[tuple[ModuleView, ...]], frozen=True, kw_only=True):
    module: str | None = None
    """Only this one; an unknown one is refused."""


class Specification(Call[ModuleSpec], frozen=True, kw_only=True):
    """All that was launched, as it is now."""

    module: str


class ModuleDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What clients of a module have to know of it."""

    tasks: int
    depots: tuple[DepotSpec, ...] | None
    """None: it was not launched but made by hand, and takes records for any depot."""
    pstates: tuple[PStateSpec, ...] = ()
    topologies: tuple[TopologySpec, ...] = ()
    queries: tuple[QuerySpec, ...] = ()
    version: int = 1
    """Of its code: +1 with every update."""
    origin: str = ""
    """Tells it from a namesake that was launched before or after it. Empty: not known."""

    def origin_of(self, depot: str) -> str:
        """Offsets mean something within one origin only. A depot that was deleted and declared anew has
        another than before."""
        since = next((each.since for each in self.depots or () if each.name == depot), 1)
        return f"{self.origin}.{since}" if self.origin and since > 1 else self.origin


def is_same_module(origin: str, other: str) -> bool:
    """Whether two origins of depots are of one module."""
    return origin.partition(".")[0] == other.partition(".")[0]


def describe(spec: ModuleSpec) -> ModuleDescription:
    return ModuleDescription(
        tasks=spec.tasks,
        depots=spec.depots,
        pstates=spec.pstates,
        topologies=spec.topologies,
        queries=spec.queries,
        version=spec.version,
        origin=spec.origin,
    )


class Describe(Call[ModuleDescription], frozen=True, kw_only=True):
    """What the worker's module is; every worker of it knows, so no conductor is needed."""

    module: str

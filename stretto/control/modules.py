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
    """What a module declares, as far as it is known without running it."""

    name: str
    entry: str
    """``module.path:ClassName``, as an importer of the artifact writes it."""
    depots: tuple[DepotSpec, ...]
    pstates: tuple[PStateSpec, ...] = ()
    topologies: tuple[TopologySpec, ...] = ()
    queries: tuple[QuerySpec, ...] = ()
    samples: dict[str, str] = {}
    """A record for each depot that its topologies take, as JSON: to be shown to a person.

    Left out where none could be made up by its type.
    """


class OptionsAt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options that are set for one object of a module, or, if none is named, for the module."""

    depot: str | None = None
    topology: str | None = None
    pstate: str | None = None
    values: dict[str, Any]

    def level_of(self, module: str) -> Level:
        return Level.of(module, depot=self.depot, topology=self.topology, pstate=self.pstate)


class Launch(Call[None], frozen=True, kw_only=True):
    """Launch a module; commits when enough nodes keep the artifact.

    :class:`ModuleView` tells how it goes on.
    """

    module: str
    artifact: str
    """Digest of the artifact that was uploaded."""
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
    """The topologies that wrote its PStates, as far as a snapshot knows."""
    origin: str = ""
    """Origin of the module that the snapshot is of; empty for a new module."""


class Destroy(Call[None], frozen=True, kw_only=True):
    """Stop the module's workers and delete its data, for good."""

    module: str


class Update(Call[None], frozen=True, kw_only=True):
    """Bring new code to a module that runs; commits to trying it.

    :class:`ModuleView` tells how it goes on.
    """

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
    """Whether to move them also if no other replica is in sync."""


class Scale(Call[str], frozen=True, kw_only=True):
    """Change the number of workers or replicas; returns what is done, in a sentence."""

    module: str
    workers: int | None = None
    replication_factor: int | None = None


class ScaleThreads(Call[str], frozen=True, kw_only=True):
    """Put the same tasks in more or fewer groups; returns what is done, in a sentence."""

    module: str
    threads: int


class PossibleThreads(Call[tuple[int, ...]], frozen=True, kw_only=True):
    """The numbers of threads that the module can have on its workers as they are."""

    module: str


class AbandonScaling(Call[str], frozen=True, kw_only=True):
    """Give up a change of threads that is under way."""

    module: str


class Pause(Call[None], frozen=True, kw_only=True):
    """Take no more records and run no more topologies, until it is resumed; reads go on."""

    module: str


class Resume(Call[None], frozen=True, kw_only=True):
    """Let a paused module take records and run topologies again."""

    module: str


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    worker: WorkerId
    node: str
    address: str | None
    """Address of the worker; None while it is not registered."""
    paused: bool = False
    """Whether it refuses records, as its module demands."""


class ModuleView(msgspec.Struct, frozen=True, kw_only=True):
    module: str
    state: str
    artifact: str
    tasks: int
    threads: int
    next_threads: int = 0
    """How many threads it is being scaled to; 0 if it is not."""
    workers: int
    replication_factor: int
    depots: tuple[DepotSpec, ...]
    pstates: tuple[PStateSpec, ...]
    topologies: tuple[TopologySpec, ...] = ()
    queries: tuple[QuerySpec, ...] = ()
    processes: tuple[WorkerView, ...]
    version: int = 1
    """Version of its code: +1 with every update."""
    failed_update: FailedUpdate | None = None
    """Why the latest update was rolled back, if it was."""
    groups: int
    led: int
    """How many of its groups have a leader that is registered."""
    moved: int = 0
    """How many of its groups have exactly the replicas that the assignment gives them."""
    problems: tuple[str, ...]
    """Problems of the module, one sentence each; none when all is well."""
    microbatches: tuple[MicrobatchView, ...] = ()
    """Its microbatch topologies; the conductor does not know them, a caller adds them for one module."""
    pins: tuple[PinView, ...] = ()
    """Its pins; a caller adds them, from the workers of one module."""


class Modules(Call[tuple[ModuleView, ...]], frozen=True, kw_only=True):
    """The modules of the cluster."""

    module: str | None = None
    """Only this module; an unknown one is refused."""


class Specification(Call[ModuleSpec], frozen=True, kw_only=True):
    """The spec of a module: all that was launched, as it is now."""

    module: str


class ModuleDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What clients of a module have to know of it."""

    tasks: int
    depots: tuple[DepotSpec, ...] | None
    """Its depots; None if it was not launched but made by hand, and takes records for any depot."""
    pstates: tuple[PStateSpec, ...] = ()
    topologies: tuple[TopologySpec, ...] = ()
    queries: tuple[QuerySpec, ...] = ()
    version: int = 1
    """Version of its code: +1 with every update."""
    origin: str = ""
    """Tells the module from a namesake that was launched before or after it. Empty: not known."""

    def origin_of(self, depot: str) -> str:
        """The origin of a depot, within which alone its offsets mean something.

        A depot that was deleted and declared anew has another than before.
        """
        since = next((each.since for each in self.depots or () if each.name == depot), 1)
        return f"{self.origin}.{since}" if self.origin and since > 1 else self.origin


def is_same_module(origin: str, other: str) -> bool:
    """Whether two origins of depots are of one module."""
    return origin.partition(".")[0] == other.partition(".")[0]


def describe(spec: ModuleSpec) -> ModuleDescription:
    """What clients of a module have to know of it, by its spec."""
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
    """Describe the worker's module; every worker of it knows, so no conductor is needed."""

    module: str

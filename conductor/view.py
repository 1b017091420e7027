"""The cluster as the conductor sees it: the copy of the metastore's tree, read into records.

A snapshot, and pure: planners and answers are made from it. A damaged znode is left out and named among the
problems, so that one bad record does not stop the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from stretto.errors import UsageError
from stretto.replog.core.record import GroupRecord
from stretto.specs.assignments import Assignment, GroupPlan, plans_of
from stretto.specs.modules import ModuleSpec, Trial
from stretto.vocabulary.suggest import did_you_mean
from stretto.vocabulary.types import Incarnation, WorkerId
from stretto.zk.watches.tree import WatchedTree, Znode
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import (
    ConductorRegistration,
    DrainedNodes,
    NodeRegistration,
    Record,
    WorkerRegistration,
    ZnodeDamaged,
    decode,
)


class UnknownName(UsageError):
    """There is no module, node or worker of that name."""


@dataclass(frozen=True, slots=True)
class GroupState:
    """A task group with its record, as the metastore has it."""

    plan: GroupPlan
    record: GroupRecord | None
    """Record of the group; None until all its replicas have registered."""
    version: int = -1


@dataclass(frozen=True, slots=True)
class Module:
    """A module with its groups, as the metastore has it."""

    name: str
    spec: ModuleSpec
    spec_version: int
    assignment: Assignment
    groups: tuple[GroupState, ...]
    remains: tuple[WorkerId, ...]
    """Workers of the module whose data is on disk somewhere."""
    trials: Mapping[str, Trial] = field(default_factory=dict)
    """What each node found of the code of an update."""
    assignment_version: int = 0


@dataclass(slots=True)
class View:
    """The cluster at one time, as the metastore has it."""

    conductor: ConductorRegistration | None = None
    nodes: dict[str, NodeRegistration] = field(default_factory=dict)
    """Nodes whose supervisor is registered, by name."""
    workers: dict[WorkerId, WorkerRegistration] = field(default_factory=dict)
    """Registered workers; of several incarnations of one, that registered last."""
    incarnations: set[tuple[WorkerId, Incarnation]] = field(default_factory=set)
    modules: dict[str, Module] = field(default_factory=dict)
    drained: frozenset[str] = frozenset()
    problems: list[str] = field(default_factory=list)

    def module(self, name: str) -> Module:
        return self.modules[named("module", name, self.modules)]

    def node(self, name: str) -> str:
        return named("node", name, self.known_nodes())

    def known_nodes(self) -> tuple[str, ...]:
        """Names of the nodes that are registered, or named by an assignment, or drained."""
        placed = {node for module in self.modules.values() for node in module.assignment.nodes.values()}
        return tuple(sorted({*self.nodes, *placed, *self.drained}))

    def node_of(self, worker: WorkerId) -> str | None:
        """The node on which a worker is placed; None if no assignment names it."""
        for module in self.modules.values():
            node = module.assignment.nodes.get(worker)
            if node is not None:
                return node
        return None

    def processes(self) -> Counter[str]:
        """How many worker processes each registered node is to run."""
        counts = Counter(dict.fromkeys(self.nodes, 0))
        for module in self.modules.values():
            counts.update(node for node in module.assignment.nodes.values() if node in self.nodes)
        return counts

    def is_led(self, group: GroupState) -> bool:
        """Whether the leader of a group is an incarnation that is registered."""
        record = group.record
        return (
            record is not None
            and record.leader is not None
            and record.leader_incarnation is not None
            and (record.leader, record.leader_incarnation) in self.incarnations
        )


def named(kind: str, name: str, known: Collection[str]) -> str:
    """Return ``name`` if it is known; raises UnknownName with the nearest name that is."""
    if name in known:
        return name
    raise UnknownName(f"there is no {kind} {name}; {did_you_mean(name, known)}")


def read(mirror: WatchedTree, paths: Paths) -> View:
    """Read the copy of the metastore's tree into a view."""
    return _Reading(mirror, paths).view


class _Reading:
    def __init__(self, mirror: WatchedTree, paths: Paths) -> None:
        self._mirror = mirror
        self._paths = paths
        self.view = view = View()
        view.conductor = self._record(paths.conductor_leader, ConductorRegistration)
        drained = self._record(paths.drained, DrainedNodes)
        view.drained = frozenset(drained.nodes if drained is not None else ())
        self._read_nodes()
        self._read_workers()
        for name in mirror.children_of(paths.modules):
            self._read_module(name)

    def _record(self, path: str, kind: type[Record]) -> Record | None:
        found = self._versioned(path, kind)
        return None if found is None else found[0]

    def _versioned(self, path: str, kind: type[Record]) -> tuple[Record, Znode] | None:
        znode = self._mirror.data.get(path)
        if znode is None:
            return None
        try:
            return decode(znode.data, kind, path), znode
        except ZnodeDamaged as damage:
            self.view.problems.append(f"{damage}; restore it or delete it")
            return None

    def _newest(self, parent: str, kind: type[Record]) -> Record | None:
        found = [self._versioned(f"{parent}/{name}", kind) for name in self._mirror.children_of(parent)]
        alive = [each for each in found if each is not None]
        return max(alive, key=lambda each: each[1].created)[0] if alive else None

    def _read_nodes(self) -> None:
        for name in self._mirror.children_of(self._paths.nodes):
            registration = self._newest(f"{self._paths.nodes}/{name}", NodeRegistration)
            if registration is not None:
                self.view.nodes[name] = registration

    def _read_workers(self) -> None:
        for name in self._mirror.children_of(self._paths.workers):
            worker = WorkerId(name)
            parent = self._paths.worker(worker)
            registration = self._newest(parent, WorkerRegistration)
            if registration is not None:
                self.view.workers[worker] = registration
                self.view.incarnations.update(
                    (worker, Incarnation(each)) for each in self._mirror.children_of(parent)
                )

    def _group(self, plan: GroupPlan) -> GroupState:
        found = self._versioned(self._paths.group(plan.key), GroupRecord)
        return GroupState(plan, None) if found is None else GroupState(plan, found[0], found[1].version)

    def _read_module(self, name: str) -> None:
        found = self._versioned(self._paths.spec(name), ModuleSpec)
        assigned = self._versioned(self._paths.assignment(name), Assignment)
        if found is None or assigned is None:
            return
        spec, znode = found
        assignment = assigned[0]
        groups = tuple(self._group(plan) for plan in plans_of(name, assignment))
        remains = tuple(WorkerId(each) for each in self._mirror.children_of(self._paths.remains(name)))
        tried = {
            node: self._record(self._paths.trial(name, node), Trial)
            for node in self._mirror.children_of(self._paths.trials(name))
        }
        trials = {node: trial for node, trial in tried.items() if trial is not None}
        self.view.modules[name] = Module(
            name, spec, znode.version, assignment, groups, remains, trials, assigned[1].version
        )

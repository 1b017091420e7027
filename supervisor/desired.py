"""Which workers the metastore wants on this node, as far as it is known.

What has not been read yet, or cannot be read, is unknown and changes nothing: a worker is stopped only
because of what the metastore says, and its data is deleted only because it says that the module is
*destroying* or the worker *retired*, or that a replica is of a module that was destroyed while this node was
away.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from stretto.network.loop import Loop
from stretto.specs.assignments import Assignment
from stretto.specs.modules import ModuleSpec, ModuleState, Update
from stretto.vocabulary.types import WorkerId
from stretto.zk.watches.daemon_session import DaemonSession, WatchedPath
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import DestroyedModules, Record, ZnodeDamaged, decode

log = structlog.get_logger()


class Fate(enum.Enum):
    """What the metastore wants of a worker."""

    RUN = "run"
    KEEP = "keep"
    """It is not known what is wanted: the worker is neither started nor stopped."""
    LEAVE = "leave"
    """The worker is to be stopped; its data stays."""
    DESTROY = "destroy"
    """The worker is to be stopped, and its data deleted."""


@dataclass(slots=True, eq=False)
class _Module:
    name: str
    followed: list[WatchedPath] = field(default_factory=list)
    spec: ModuleSpec | None = None
    assignment: Assignment | None = None
    told: set[str] = field(default_factory=set)
    """Paths that were read at least once."""

    @property
    def is_known(self) -> bool:
        return len(self.told) == 2


class Desired:
    """The workers that the metastore wants on this node; all methods run on the loop's thread."""

    def __init__(
        self, loop: Loop, view: DaemonSession, paths: Paths, node: str, changed: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._view = view
        self._paths = paths
        self._node = node
        self._changed = changed
        self._modules: dict[str, _Module] = {}
        self._is_listed = False
        self._destroyed: DestroyedModules | None = None

    def start(self) -> None:
        """Begin to follow the modules of the cluster."""
        self._view.follow_children(
            self._paths.modules, lambda names: self._loop.call_soon(self._listed, names or [])
        )
        self._view.follow_data(
            self._paths.destroyed, lambda data: self._loop.call_soon(self._destroyed_read, data)
        )

    def fate(self, worker: WorkerId, module: str) -> Fate:
        """What the metastore wants of a worker, as far as it is known."""
        if not self._is_listed:
            return Fate.KEEP
        known = self._modules.get(module)
        if known is None:
            return Fate.LEAVE
        if not known.is_known:
            return Fate.KEEP
        if known.spec is not None and known.spec.state is ModuleState.DESTROYING:
            return Fate.DESTROY
        if known.assignment is not None and any(
            (each.worker, each.node) == (worker, self._node) for each in known.assignment.retired
        ):
            return Fate.DESTROY
        if known.assignment is None or known.assignment.nodes.get(worker) != self._node:
            return Fate.LEAVE
        return Fate.RUN if known.spec is not None else Fate.KEEP

    def here(self) -> dict[WorkerId, str]:
        """The workers placed on this node, also those to be deleted, with their modules."""
        return {
            placed.worker: module.name
            for module in self._modules.values()
            if module.assignment is not None
            for placed in (*module.assignment.workers, *module.assignment.retired)
            if placed.node == self._node
        }

    @property
    def is_known(self) -> bool:
        """Whether everything was read at least once."""
        return self._is_listed and all(module.is_known for module in self._modules.values())

    @property
    def is_any_destroyed(self) -> bool:
        return self._destroyed is not None and bool(self._destroyed.groupings)

    def is_destroyed(self, module: str, grouping: int) -> bool:
        """Whether a replica of this grouping is of a module that is no more.

        To be believed only if all is known.
        """
        if self._destroyed is None or not self._destroyed.has(module, grouping):
            return False
        namesake = self._modules.get(module)
        if namesake is None:
            return True
        # One that was made by hand may have any number.
        launched = namesake.assignment
        return launched is not None and not self._destroyed.has(module, launched.generation)

    def artifact(self, module: str) -> str:
        """Digest of the code of a module that has workers to run."""
        known = self._modules.get(module)
        return known.spec.artifact if known is not None and known.spec is not None else ""

    def artifacts(self) -> set[str]:
        """Digests of all code that any module of the cluster uses, or is about to.

        To be believed only if all is known.
        """
        specs = [module.spec for module in self._modules.values() if module.spec is not None]
        coming = [spec.update.next.artifact for spec in specs if spec.update is not None]
        return {*(spec.artifact for spec in specs), *coming}

    def updates(self) -> list[tuple[str, Update]]:
        """Updates whose code is to be tried here: those of modules that have a worker on this node."""
        return [
            (module.name, module.spec.update)
            for module in self._modules.values()
            if module.spec is not None
            and module.spec.update is not None
            and module.spec.state is ModuleState.UPDATING
            and module.assignment is not None
            and self._node in module.assignment.nodes.values()
        ]

    def _listed(self, names: list[str]) -> None:
        self._is_listed = True
        for name in self._modules.keys() - set(names):
            for followed in self._modules.pop(name).followed:
                followed.stop()
        for name in sorted(set(names) - self._modules.keys()):
            module = self._modules[name] = _Module(name)
            module.followed = [
                self._follow(module, self._paths.spec(name), self._spec_read),
                self._follow(module, self._paths.assignment(name), self._assignment_read),
            ]
        self._changed()

    def _follow(
        self, module: _Module, path: str, read: Callable[[_Module, str, bytes | None], None]
    ) -> WatchedPath:
        return self._view.follow_data(
            path, lambda data: self._loop.call_soon(self._read, module, path, read, data)
        )

    def _read(
        self,
        module: _Module,
        path: str,
        read: Callable[[_Module, str, bytes | None], None],
        data: bytes | None,
    ) -> None:
        if self._modules.get(module.name) is not module:
            return
        try:
            read(module, path, data)
        except ZnodeDamaged as damage:
            log.error("znode_damaged", path=damage.path, problem=damage.problem)
            return
        module.told.add(path)
        self._changed()

    def _destroyed_read(self, data: bytes | None) -> None:
        try:
            self._destroyed = decode(data, DestroyedModules, self._paths.destroyed) if data else None
        except ZnodeDamaged as damage:
            log.error("znode_damaged", path=damage.path, problem=damage.problem)
            return
        self._changed()

    def _spec_read(self, module: _Module, path: str, data: bytes | None) -> None:
        module.spec = _decode(data, ModuleSpec, path)

    def _assignment_read(self, module: _Module, path: str, data: bytes | None) -> None:
        module.assignment = _decode(data, Assignment, path)


def _decode(data: bytes | None, kind: type[Record], path: str) -> Record | None:
    return decode(data, kind, path) if data is not None else None

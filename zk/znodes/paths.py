"""Where everything is in the metastore. No other module spells a znode's path."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.errors import UsageError
from stretto.options import Level, Scope
from stretto.replog.core.record import Registration
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Incarnation, WorkerId

_PLURALS = {Scope.DEPOT: "depots", Scope.TOPOLOGY: "topologies", Scope.PSTATE: "pstates"}


class Paths:
    """The layout below one root; several clusters can share an ensemble under different roots."""

    def __init__(self, root: str = "/stretto") -> None:
        names = root.split("/")
        if len(names) < 2 or names[0] or not all(_is_name(name) for name in names[1:]):
            raise UsageError(f"{root!r} cannot be the metastore's root; write a path such as /stretto")
        self.root = root

    @property
    def conductor_leader(self) -> str:
        return f"{self.root}/conductor/leader"

    @property
    def drained(self) -> str:
        """The nodes on which leadership is disallowed."""
        return f"{self.root}/conductor/drained"

    @property
    def generations(self) -> str:
        """The znode whose version, raised by writing, numbers groupings of modules: none is used again."""
        return f"{self.root}/conductor/generations"

    @property
    def destroyed(self) -> str:
        """Modules that were destroyed while a node was away, which may still have their files."""
        return f"{self.root}/conductor/destroyed"

    @property
    def operations(self) -> str:
        return f"{self.root}/conductor/operations"

    @property
    def nodes(self) -> str:
        return f"{self.root}/nodes"

    def node_parent(self, node: str) -> str:
        return f"{self.nodes}/{_name(node)}"

    def node(self, node: str, incarnation: Incarnation) -> str:
        return f"{self.node_parent(node)}/{_name(incarnation)}"

    @property
    def workers(self) -> str:
        return f"{self.root}/workers"

    def worker(self, worker: WorkerId) -> str:
        return f"{self.workers}/{_name(worker)}"

    def registration(self, worker: WorkerId, incarnation: Incarnation) -> str:
        return f"{self.worker(worker)}/{_name(incarnation)}"

    def registration_of(self, registration: Registration) -> str:
        return self.registration(registration.worker, registration.incarnation)

    @property
    def modules(self) -> str:
        return f"{self.root}/modules"

    def module(self, module: str) -> str:
        return f"{self.modules}/{_name(module)}"

    def spec(self, module: str) -> str:
        return f"{self.module(module)}/spec"

    def assignment(self, module: str) -> str:
        return f"{self.module(module)}/assignment"

    def remains(self, module: str) -> str:
        """The parent of a znode for each worker, until the worker's data is deleted."""
        return f"{self.module(module)}/remains"

    def remains_of(self, module: str, worker: WorkerId) -> str:
        return f"{self.remains(module)}/{_name(worker)}"

    def trials(self, module: str) -> str:
        """The parent of a znode for each node that has tried the code of an update, while that lasts."""
        return f"{self.module(module)}/trials"

    def trial(self, module: str, node: str) -> str:
        return f"{self.trials(module)}/{_name(node)}"

    def groups(self, module: str, generation: int) -> str:
        return f"{self.module(module)}/groups/{generation}"

    def group(self, group: GroupKey) -> str:
        return f"{self.groups(group.module, group.generation)}/{group.group}"

    def resign(self, group: GroupKey) -> str:
        return f"{self.group(group)}/resign"

    @property
    def snapshots(self) -> str:
        """The snapshots of all modules, apart from the modules, which they outlive."""
        return f"{self.root}/snapshots"

    def snapshots_of(self, module: str) -> str:
        return f"{self.snapshots}/{_name(module)}"

    def snapshot(self, module: str, name: str) -> str:
        return f"{self.snapshots_of(module)}/{_name(name)}"

    @property
    def reads(self) -> str:
        """The moments that queries of bulk readers agreed to read at, by module and plan."""
        return f"{self.root}/reads"

    def reads_of(self, module: str) -> str:
        return f"{self.reads}/{_name(module)}"

    def reads_of_plan(self, module: str, plan: str) -> str:
        return f"{self.reads_of(module)}/{_name(plan)}"

    def read_moment(self, module: str, plan: str, query: int) -> str:
        return f"{self.reads_of_plan(module, plan)}/{query}"

    def announced_moment(self, module: str, plan: str, query: int) -> str:
        """The znode that announces that the moment of a query is about to be decided."""
        return f"{self.read_moment(module, plan, query)}.begun"

    @property
    def options(self) -> str:
        """The znode above all options, written whenever one changes: a watch of it misses nothing."""
        return f"{self.root}/options"

    @property
    def options_of_modules(self) -> str:
        return f"{self.options}/modules"

    def options_of(self, level: Level) -> str:
        match level:
            case Level(module=None):
                return f"{self.options}/cluster"
            case Level(module=module, name=None):
                return f"{self.options_of_modules}/{_name(str(module))}"
            case Level(scope=scope, module=module, name=name):
                return f"{self.options_of_parts(str(module), scope)}/{_name(str(name))}"

    def options_of_parts(self, module: str, scope: Scope) -> str:
        """The options of all depots, topologies or PStates of a module."""
        return f"{self.options_of_modules}/{_name(module)}/{_PLURALS[scope]}"

    # What a copy of the tree has: everything but requests to resign, options and the log of operations.

    @property
    def mirrored(self) -> tuple[str, ...]:
        return (f"{self.root}/conductor", self.nodes, self.workers, self.modules)

    def lists(self, path: str) -> bool:
        """Whether a copy of the tree has the children of a path."""
        match self._steps(path):
            case ["nodes" | "workers" | "modules" | "conductor"] | ["nodes" | "workers" | "modules", _]:
                return True
            case ["modules", _, "groups" | "remains" | "trials"] | ["modules", _, "groups", _]:
                return True
            case _:
                return False

    def holds(self, path: str) -> bool:
        """Whether a copy of the tree has the data of a path."""
        match self._steps(path):
            case ["nodes" | "workers", _, _] | ["conductor", "leader" | "drained"] | ["options"]:
                return True
            case (
                ["modules", _, "spec" | "assignment"]
                | ["modules", _, "trials", _]
                | ["modules", _, "groups", _, _]
            ):
                return True
            case _:
                return False

    def _steps(self, path: str) -> list[str]:
        return path.removeprefix(self.root + "/").split("/")


def named(children: Iterable[str]) -> list[str]:
    """The children of a znode that a process of the cluster can have put there."""
    return [name for name in children if _is_name(name)]


def _is_name(name: str) -> bool:
    """Whether a znode can have a name: ZooKeeper refuses control characters, and '.' and '..' are steps."""
    return name not in {"", ".", "..", "zookeeper"} and name.isprintable() and "/" not in name


def _name(name: str) -> str:
    if not _is_name(name):
        raise UsageError(f"{name!r} cannot be a name in the metastore: use letters, digits, '.', '-' and '_'")
    return name

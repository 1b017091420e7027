"""Where an option may be set: for the cluster, a module, or one depot, topology or PState of a module."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from stretto.errors import UsageError


class Scope(enum.StrEnum):
    """Kinds of levels."""

    CLUSTER = "cluster"
    MODULE = "module"
    TOPOLOGY = "topology"
    DEPOT = "depot"
    PSTATE = "pstate"


@dataclass(frozen=True, slots=True, order=True)
class Level:
    """Where a value is set. Made by :meth:`of`, or :data:`CLUSTER`."""

    scope: Scope = Scope.CLUSTER
    module: str | None = None
    name: str | None = None
    """Name of the depot, topology or PState."""

    @classmethod
    def of(
        cls,
        module: str | None = None,
        *,
        depot: str | None = None,
        topology: str | None = None,
        pstate: str | None = None,
    ) -> Level:
        """The level that a person names; raises UsageError unless it is one."""
        parts = {Scope.DEPOT: depot, Scope.TOPOLOGY: topology, Scope.PSTATE: pstate}
        named = [(scope, name) for scope, name in parts.items() if name is not None]
        if len(named) > 1:
            raise UsageError("name one depot, topology or PState, not several: each is a level of its own")
        if module is None:
            if named:
                raise UsageError(f"name the module that {named[0][0]} {named[0][1]} belongs to")
            return cls()
        if not named:
            return cls(Scope.MODULE, module)
        scope, name = named[0]
        return cls(scope, module, name)

    def path(self) -> tuple[Level, ...]:
        """This level and those around it, most specific first."""
        match self.scope:
            case Scope.CLUSTER:
                return (self,)
            case Scope.MODULE:
                return (self, CLUSTER)
            case _:
                return (self, Level(Scope.MODULE, self.module), CLUSTER)

    def __str__(self) -> str:
        match self.scope:
            case Scope.CLUSTER:
                return "cluster"
            case Scope.MODULE:
                return f"module {self.module}"
            case _:
                return f"{self.scope} {self.name} of module {self.module}"


CLUSTER = Level()

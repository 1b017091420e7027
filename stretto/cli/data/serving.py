"""How a command that moves data finds a module: what it declares, and the workers that serve it.

The conductor knows every module. While there is none, workers do: each tells of its own module.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stretto import control
from stretto.cli.cluster import reach
from stretto.client.api import Client
from stretto.client.operating.cluster import Cluster
from stretto.client.operating.modules import describe, find_pstate
from stretto.client.reading.pstate import PStateReader
from stretto.errors import RetriableError, UsageError
from stretto.network.routing import Network
from stretto.specs.modules import DepotSpec
from stretto.vocabulary.suggest import did_you_mean

SECONDS = 10.0
CONDUCTOR_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Serving:
    """A depot, and the network that reaches all tasks of its module."""

    network: Network
    tasks: int
    depot: DepotSpec


@contextmanager
def serving_pstate(bootstrap: str, key: Path | None, module: str, pstate: str) -> Iterator[PStateReader]:
    """Find a PState of a module, and yield a reader of it."""
    with reach(bootstrap, key) as cluster:
        description = _described(cluster, module)
        spec = find_pstate(module, description, pstate)
        yield PStateReader(cluster.network, module, spec, description.tasks)


@contextmanager
def described(
    bootstrap: str, key: Path | None, module: str
) -> Iterator[tuple[Network, control.ModuleDescription]]:
    """Yield the network that reaches all tasks of a module, and the description of the module."""
    with reach(bootstrap, key) as cluster:
        yield cluster.network, _described(cluster, module)


@contextmanager
def serving(bootstrap: str, key: Path | None, module: str, depot: str) -> Iterator[Serving]:
    """Find a depot of a module, and yield it with the network that reaches all tasks."""
    with reach(bootstrap, key) as cluster:
        description = _described(cluster, module)
        yield Serving(cluster.network, description.tasks, _depot(module, description, depot))


def _described(cluster: Cluster, module: str) -> control.ModuleDescription:
    """Return the description of a module once the network knows all its tasks."""
    network, client = cluster.network, Client(cluster.network)
    conductor = cluster.find_conductor()
    if conductor is not None:
        network.know(conductor)
    client.refresh(SECONDS)
    deadline = time.monotonic() + SECONDS
    description = _ask(cluster, module)
    while len(network.view.tasks.get(module, ())) < description.tasks:
        if time.monotonic() > deadline:
            raise RetriableError(
                f"not all task groups of module {module} can be found; see 'stretto module-status {module}'"
            )
        client.refresh(SECONDS)
    return description


def _ask(cluster: Cluster, module: str) -> control.ModuleDescription:
    try:
        [view] = cluster.ask(control.Modules(module=module), timeout=CONDUCTOR_SECONDS)
        return control.ModuleDescription(
            tasks=view.tasks,
            depots=view.depots,
            pstates=view.pstates,
            topologies=view.topologies,
            queries=view.queries,
        )
    except RetriableError:
        return describe(cluster.network, module)


def _depot(module: str, description: control.ModuleDescription, name: str) -> DepotSpec:
    if description.depots is None:
        return DepotSpec(name=name)
    for depot in description.depots:
        if depot.name == name:
            return depot
    nearest = did_you_mean(name, [depot.name for depot in description.depots])
    raise UsageError(f"module {module} has no depot {name}; {nearest}")

"""What a client has to know of a module before it reads: how many tasks, and the types of its PStates.

Every worker of a module knows both, so no conductor is needed.
"""

from __future__ import annotations

from stretto import control
from stretto.errors import RetriableError, UsageError
from stretto.network.asking import ask
from stretto.network.routing import Network
from stretto.specs.modules import DepotSpec, PStateSpec
from stretto.vocabulary.suggest import did_you_mean

ASK_SECONDS = 2.0
"""How long a worker may take to describe its module."""


def describe(network: Network, module: str) -> control.ModuleDescription:
    """Return the description of a module, from its first worker that answers."""
    view = network.view
    replicas = {
        worker for each in view.groups.values() if each.key.module == module for worker in each.replicas
    }
    if not replicas:
        raise UsageError(f"there is no module {module}; {did_you_mean(module, view.tasks)}")
    for worker in sorted(replicas & view.addresses.keys()):
        try:
            return ask(network, view.addresses[worker], control.Describe(module=module), timeout=ASK_SECONDS)
        except RetriableError:
            continue
    raise RetriableError(f"no worker of module {module} answers; see 'stretto module-status {module}'")


def find_depot(module: str, description: control.ModuleDescription, name: str) -> DepotSpec:
    """Return what the cluster knows of a depot. Raises UsageError if the module has none of that name."""
    if description.depots is None:
        return DepotSpec(name=name)
    for depot in description.depots:
        if depot.name == name:
            return depot
    nearest = did_you_mean(name, [depot.name for depot in description.depots])
    raise UsageError(f"module {module} has no depot {name}; {nearest}")


def find_pstate(module: str, description: control.ModuleDescription, name: str) -> PStateSpec:
    """Return what the cluster knows of a PState. Raises UsageError if the module has none of that name."""
    for pstate in description.pstates:
        if pstate.name == name:
            return pstate
    nearest = did_you_mean(name, [pstate.name for pstate in description.pstates])
    raise UsageError(f"module {module} has no PState {name}; {nearest}")

"""Dynamic options: what is in force, set and unset; of the cluster, a module, or one object of a module."""

from __future__ import annotations

import msgspec

from stretto import control
from stretto.options import Level
from stretto.ui.api.common import delete, find_named, get, module_named, put
from stretto.ui.cluster.backend import Backend


@get("/options", summary="Dynamic options in force at a level")
def options(
    backend: Backend,
    *,
    module: str | None = None,
    depot: str | None = None,
    topology: str | None = None,
    pstate: str | None = None,
) -> tuple[control.OptionView, ...]:
    return backend.ask(control.Options(level=_level(backend, module, depot, topology, pstate)))


class OptionValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: str | int | float | bool | None


@put("/options/{name:str}", status_code=204, summary="Set an option")
def set_option(
    backend: Backend,
    name: str,
    data: OptionValue,
    *,
    module: str | None = None,
    depot: str | None = None,
    topology: str | None = None,
    pstate: str | None = None,
) -> None:
    level = _level(backend, module, depot, topology, pstate)
    _check_option(backend, level, name)
    backend.act(control.SetOption(level=level, name=name, value=data.value))


@delete("/options/{name:str}", summary="Let an option be what the next level says")
def unset_option(
    backend: Backend,
    name: str,
    *,
    module: str | None = None,
    depot: str | None = None,
    topology: str | None = None,
    pstate: str | None = None,
) -> None:
    level = _level(backend, module, depot, topology, pstate)
    _check_option(backend, level, name)
    backend.act(control.UnsetOption(level=level, name=name))


def _level(
    backend: Backend, module: str | None, depot: str | None, topology: str | None, pstate: str | None
) -> control.OptionLevel:
    # Whether it is one is for it to say.
    Level.of(module, depot=depot, topology=topology, pstate=pstate)
    if module is not None:
        view = module_named(backend, module)
        kinds = (("depot", depot, view.depots), ("topology", topology, view.topologies))
        for kind, name, there in (*kinds, ("PState", pstate, view.pstates)):
            if name is not None:
                find_named(f"module {module} has no {kind}", name, {each.name: each for each in there})
    return control.OptionLevel(module=module, depot=depot, topology=topology, pstate=pstate)


def _check_option(backend: Backend, level: control.OptionLevel, option: str) -> None:
    known = {each.name: each for each in backend.ask(control.Options(level=level))}
    find_named("there is no such option at this level:", option, known)


HANDLERS = (
    options,
    set_option,
    unset_option,
)

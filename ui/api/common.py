"""What all handlers share: how they are declared, and how they find what a request names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Annotated, Any, TypeVar

import litestar
import msgspec
from litestar.exceptions import NotFoundException
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Parameter

from stretto import control
from stretto.client.operating.status import GroupStatus
from stretto.errors import UsageError
from stretto.ui.cluster.backend import Backend
from stretto.ui.cluster.threads import LOOKS, SLOW, on
from stretto.vocabulary.suggest import did_you_mean

T = TypeVar("T")

ENTRIES_MAX = 1_000


class ProblemDetails(msgspec.Struct, frozen=True):
    """RFC 9457: why something was not done."""

    status: int
    detail: str
    """One sentence that says what to do."""


_PROBLEM = ResponseSpec(ProblemDetails, media_type="application/problem+json", description="Refused.")
_PROBLEMS = dict.fromkeys((400, 401, 403, 404, 409, 413, 503, 504), _PROBLEM)


def _declared(decorator: Any, path: str, pool: Executor, **more: Any) -> Callable[[Callable[..., Any]], Any]:
    def declare(handler: Callable[..., Any]) -> Any:
        return decorator(path, responses=_PROBLEMS, **more)(on(pool, handler))

    return declare


# Handlers wait for the cluster, so each runs on a thread.
def get(path: str, *, pool: Executor = LOOKS, **more: Any) -> Callable[[Callable[..., Any]], Any]:
    return _declared(litestar.get, path, pool, **more)


def post(path: str, **more: Any) -> Callable[[Callable[..., Any]], Any]:
    return _declared(litestar.post, path, SLOW, **more)


def put(path: str, **more: Any) -> Callable[[Callable[..., Any]], Any]:
    return _declared(litestar.put, path, SLOW, **more)


def delete(path: str, **more: Any) -> Callable[[Callable[..., Any]], Any]:
    return _declared(litestar.delete, path, SLOW, **more)


Limit = Annotated[int, Parameter(ge=1, le=ENTRIES_MAX, description="No more than so many.")]
Group = Annotated[int, Parameter(ge=0)]


def module_named(backend: Backend, module: str) -> control.ModuleView:
    return find_named("there is no module", module, {each.module: each for each in backend.modules()})


def node_named(backend: Backend, node: str) -> control.NodeView:
    return find_named("there is no node", node, {each.node: each for each in backend.ask(control.Nodes())})


def groups_of(backend: Backend, module: str) -> list[GroupStatus]:
    """The groups of a module; no conductor is needed, unless nobody else knows the module."""
    try:
        return backend.groups(module)
    except UsageError:
        module_named(backend, module)
        return []


def group_named(backend: Backend, module: str, group: int) -> GroupStatus:
    found = groups_of(backend, module)
    for status in found:
        if status.group.group == group:
            return status
    raise NotFoundException(detail=f"{module} has no group {group}; its groups are 0 to {len(found) - 1}")


def find_named(lack: str, name: str, there: Mapping[str, T]) -> T:
    if name not in there:
        raise NotFoundException(detail=f"{lack} {name}; {did_you_mean(name, there)}")
    return there[name]

"""The cluster as a whole: health, nodes, operations and logs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar.params import Parameter

from stretto import control
from stretto.specs.operations import Operation
from stretto.ui.api.common import Limit, find_named, get, node_named, put
from stretto.ui.cluster.backend import Backend
from stretto.ui.cluster.threads import HEALTH, SLOW
from stretto.ui.cluster.views import ClusterView
from stretto.vocabulary.types import WorkerId


@get("/cluster", pool=HEALTH, summary="Health, problems, nodes and modules")
def cluster(backend: Backend) -> ClusterView:
    return backend.cluster_view()


@get("/nodes", summary="The machines")
def nodes(backend: Backend) -> tuple[control.NodeView, ...]:
    return backend.ask(control.Nodes())


class Allowed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    allowed: bool


@put("/nodes/{node:str}/leadership", status_code=204, summary="Allow or drain a node")
def allow_leadership(backend: Backend, node: str, data: Allowed) -> None:
    node_named(backend, node)
    backend.act(control.AllowLeadership(node=node) if data.allowed else control.DisallowLeadership(node=node))


BeforeMs = Annotated[
    int | None, Parameter(ge=0, le=2**63 - 1, description="Only what was done before: ms of the Unix epoch.")
]


@get("/operations", summary="What was done to the cluster, newest last")
def operations(
    backend: Backend, module: str | None = None, limit: Limit = 100, before_ms: BeforeMs = None
) -> tuple[Operation, ...]:
    return backend.ask(control.Operations(module=module, limit=limit, before_ms=before_ms))


# Logs.

Before = Annotated[
    int | None, Parameter(ge=0, le=2**63 - 1, description="Only lines before this position of the log.")
]
Level = Annotated[control.LogLevel, Parameter(description="The least level that is shown.")]


@get("/conductor/log", pool=SLOW, summary="What the active conductor said, newest page first")
def conductor_log(
    backend: Backend, before: Before = None, level: Level = control.LogLevel.DEBUG, limit: Limit = 200
) -> control.LogPage:
    return backend.cluster.ask(control.Log(before=before, level=level, lines_max=limit))


@get("/nodes/{node:str}/log", pool=SLOW, summary="What the supervisor of a node said, newest page first")
def node_log(
    backend: Backend,
    node: str,
    before: Before = None,
    level: Level = control.LogLevel.DEBUG,
    limit: Limit = 200,
) -> control.LogPage:
    return backend.ask_supervisor(
        node_named(backend, node), control.Log(before=before, level=level, lines_max=limit)
    )


@get("/workers/{worker:str}/log", pool=SLOW, summary="What a worker said, alive or not, newest page first")
def worker_log(
    backend: Backend,
    worker: str,
    before: Before = None,
    level: Level = control.LogLevel.DEBUG,
    limit: Limit = 200,
) -> control.LogPage:
    placed = {
        str(each.worker): each.node for view in backend.ask(control.Modules()) for each in view.processes
    }
    node = find_named("there is no worker", worker, placed)
    call = control.Log(worker=WorkerId(worker), before=before, level=level, lines_max=limit)
    return backend.ask_supervisor(node_named(backend, node), call)


HANDLERS = (
    cluster,
    nodes,
    allow_leadership,
    operations,
    conductor_log,
    node_log,
    worker_log,
)

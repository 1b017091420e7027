"""The cluster as a whole: health, nodes, operations and logs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar.params import Parameter

from stretto import control
from stretto.specs.operations import Operation
from stretto.ui.api.common import Limit, find_named, get, node_named, put
from stretto.ui.cluster.desk import Desk
from stretto.ui.cluster.threads import HEALTH, SLOW
from stretto.ui.cluster.views import ClusterView
from stretto.vocabulary.types import WorkerId


@get("/cluster", pool=HEALTH, summary="Health, problems, nodes and modules")
def cluster(desk: Desk) -> ClusterView:
    return desk.cluster_view()


@get("/nodes", summary="The machines")
def nodes(desk: Desk) -> tuple[control.NodeView, ...]:
    return desk.ask(control.Nodes())


class Allowed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    allowed: bool


@put("/nodes/{node:str}/leadership", status_code=204, summary="Allow or drain a node")
def allow_leadership(desk: Desk, node: str, data: Allowed) -> None:
    node_named(desk, node)
    desk.act(control.AllowLeadership(node=node) if data.allowed else control.DisallowLeadership(node=node))


BeforeMs = Annotated[
    int | None, Parameter(ge=0, le=2**63 - 1, description="Only what was done before: ms of the Unix epoch.")
]


@get("/operations", summary="What was done to the cluster, newest last")
def operations(
    desk: Desk, module: str | None = None, limit: Limit = 100, before_ms: BeforeMs = None
) -> tuple[Operation, ...]:
    return desk.ask(control.Operations(module=module, limit=limit, before_ms=before_ms))


# Logs.

Before = Annotated[
    int | None, Parameter(ge=0, le=2**63 - 1, description="Only lines before this position of the log.")
]
Level = Annotated[control.LogLevel, Parameter(description="The least level that is shown.")]


@get("/conductor/log", pool=SLOW, summary="What the active conductor said, newest page first")
def conductor_log(
    desk: Desk, before: Before = None, level: Level = control.LogLevel.DEBUG, limit: Limit = 200
) -> control.LogPage:
    return desk.cluster.ask(control.Log(before=before, level=level, lines_max=limit))


@get("/nodes/{node:str}/log", pool=SLOW, summary="What the supervisor of a node said, newest page first")
def node_log(
    desk: Desk, node: str, before: Before = None, level: Level = control.LogLevel.DEBUG, limit: Limit = 200
) -> control.LogPage:
    return desk.ask_supervisor(
        node_named(desk, node), control.Log(before=before, level=level, lines_max=limit)
    )


@get("/workers/{worker:str}/log", pool=SLOW, summary="What a worker said, alive or not, newest page first")
def worker_log(
    desk: Desk, worker: str, before: Before = None, level: Level = control.LogLevel.DEBUG, limit: Limit = 200
) -> control.LogPage:
    placed = {str(each.worker): each.node for view in desk.ask(control.Modules()) for each in view.processes}
    node = find_named("there is no worker", worker, placed)
    call = control.Log(worker=WorkerId(worker), before=before, level=level, lines_max=limit)
    return desk.ask_supervisor(node_named(desk, node), call)


HANDLERS = (
    cluster,
    nodes,
    allow_leadership,
    operations,
    conductor_log,
    node_log,
    worker_log,
)

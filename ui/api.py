"""The REST interface, under ``/api/v1``: what the pages ask for, and any program may.

Every handler says what it takes and returns with types; ``/openapi.json`` is made of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, TypeVar

import litestar
import msgspec
from litestar import Router
from litestar.exceptions import NotFoundException
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Parameter

from stretto import admin
from stretto.client import queries
from stretto.client.failures import ModuleFailures, find_failures, settle_failures
from stretto.client.selection import KeyRange, entries, find, plain
from stretto.client.status import GroupStatus
from stretto.nearest import did_you_mean
from stretto.partition import Partitioner
from stretto.snapshot.checking import Verdict
from stretto.types import Epoch, WorkerId
from stretto.ui import snapshots
from stretto.ui.charts import Charts
from stretto.ui.desk import Desk
from stretto.ui.views import ClusterView
from stretto.zk.records import Operation

T = TypeVar("T")

RECORDS_MAX = 10_000
ENTRIES_MAX = 1_000
READ_SECONDS = 10.0
QUERY_MS_MAX = 60_000
MINUTES_MAX = 7 * 24 * 60


class ProblemDetails(msgspec.Struct, frozen=True):
    """RFC 9457: why something was not done."""

    status: int
    detail: str
    """One sentence that says what to do."""


_PROBLEM = ResponseSpec(ProblemDetails, media_type="application/problem+json", description="Refused.")
_PROBLEMS = dict.fromkeys((400, 401, 403, 404, 409, 413, 503), _PROBLEM)

# Handlers wait for the cluster, so each runs on a thread.
get = partial(litestar.get, sync_to_thread=True, responses=_PROBLEMS)
post = partial(litestar.post, sync_to_thread=True, responses=_PROBLEMS)
put = partial(litestar.put, sync_to_thread=True, responses=_PROBLEMS)
delete = partial(litestar.delete, sync_to_thread=True, responses=_PROBLEMS)

Limit = Annotated[int, Parameter(ge=1, le=ENTRIES_MAX, description="No more than so many.")]
Group = Annotated[int, Parameter(ge=0)]


# The cluster.


@get("/cluster", summary="Health, problems, nodes and modules")
def cluster(desk: Desk) -> ClusterView:
    return desk.cluster_view()


@get("/nodes", summary="The machines")
def nodes(desk: Desk) -> tuple[admin.NodeView, ...]:
    return desk.ask(admin.Nodes())


class Allowed(msgspec.Struct, frozen=True):
    allowed: bool


@put("/nodes/{node:str}/leadership", status_code=204, summary="Allow or drain a node")
def allow_leadership(desk: Desk, node: str, data: Allowed) -> None:
    _node(desk, node)
    desk.act(admin.AllowLeadership(node=node) if data.allowed else admin.DisallowLeadership(node=node))


@get("/operations", summary="What was done to the cluster, newest last")
def operations(desk: Desk, module: str | None = None, limit: Limit = 100) -> tuple[Operation, ...]:
    return desk.ask(admin.Operations(module=module, limit=limit))


# Logs.

Before = Annotated[
    int | None, Parameter(ge=0, le=2**63 - 1, description="Only lines before this position of the log.")
]
Level = Annotated[admin.LogLevel, Parameter(description="The least level that is shown.")]


@get("/conductor/log", summary="What the active conductor said, newest page first")
def conductor_log(
    desk: Desk, before: Before = None, level: Level = admin.LogLevel.DEBUG, limit: Limit = 200
) -> admin.LogPage:
    return desk.cluster.ask(admin.Log(before=before, level=level, lines_max=limit))


@get("/nodes/{node:str}/log", summary="What the supervisor of a node said, newest page first")
def node_log(
    desk: Desk, node: str, before: Before = None, level: Level = admin.LogLevel.DEBUG, limit: Limit = 200
) -> admin.LogPage:
    return desk.ask_supervisor(_node(desk, node), admin.Log(before=before, level=level, lines_max=limit))


@get("/workers/{worker:str}/log", summary="What a worker said, alive or not, newest page first")
def worker_log(
    desk: Desk, worker: str, before: Before = None, level: Level = admin.LogLevel.DEBUG, limit: Limit = 200
) -> admin.LogPage:
    placed = {str(each.worker): each.node for view in desk.ask(admin.Modules()) for each in view.processes}
    node = _named("there is no worker", worker, placed)
    call = admin.Log(worker=WorkerId(worker), before=before, level=level, lines_max=limit)
    return desk.ask_supervisor(_node(desk, node), call)


# Modules.


@get("/modules", summary="The modules")
def modules(desk: Desk) -> tuple[admin.ModuleView, ...]:
    return desk.ask(admin.Modules())


@get("/modules/{module:str}", summary="One module")
def one_module(desk: Desk, module: str) -> admin.ModuleView:
    return _module(desk, module)


@get("/modules/{module:str}/groups", summary="The task groups, by their replicas' word")
def groups(desk: Desk, module: str) -> list[GroupStatus]:
    _module(desk, module)
    return desk.groups(module)


@get("/modules/{module:str}/groups/{group:int}", summary="One task group")
def one_group(desk: Desk, module: str, group: Group) -> GroupStatus:
    return _group(desk, module, group)


class StoryEntry(msgspec.Struct, frozen=True):
    worker: WorkerId
    at_ms: int
    event: str
    fields: dict[str, Any]


@get("/modules/{module:str}/groups/{group:int}/story", summary="Recent transitions")
def story(desk: Desk, module: str, group: Group) -> list[StoryEntry]:
    _group(desk, module, group)
    return [
        StoryEntry(WorkerId(worker), line.at_ms, line.event, line.fields)
        for worker, line in desk.story(module, group)
    ]


class Successor(msgspec.Struct, frozen=True):
    to: WorkerId


class EndingEpoch(msgspec.Struct, frozen=True):
    epoch: Epoch


@post(
    "/modules/{module:str}/groups/{group:int}/resign",
    status_code=202,
    summary="Ask the leader to hand over",
)
def resign(desk: Desk, module: str, group: Group, data: Successor) -> EndingEpoch:
    _group(desk, module, group)
    return EndingEpoch(desk.act(admin.ResignLeader(module=module, group=group, to=data.to)))


@get("/modules/{module:str}/leadership", summary="The balance of leaders")
def leadership(desk: Desk, module: str) -> admin.LeadershipView:
    _module(desk, module)
    return desk.ask(admin.Leadership(module=module))


@post("/modules/{module:str}/leadership/balance", status_code=202, summary="Balance now")
def balance(desk: Desk, module: str) -> admin.LeadershipView:
    _module(desk, module)
    return desk.act(admin.Balance(module=module))


@get("/charts", summary="Replication over time")
def charts(
    desk: Desk,
    minutes: Annotated[int, Parameter(ge=1, le=MINUTES_MAX)] = 60,
    module: str | None = None,
    worker: str | None = None,
    group: Annotated[int | None, Parameter(ge=0)] = None,
) -> Charts:
    return desk.charts(minutes=minutes, module=module, worker=worker, group=group)


@get("/modules/{module:str}/failures", summary="Records that functions did not manage, and streams' progress")
def failures(desk: Desk, module: str, topology: str | None = None) -> ModuleFailures:
    _module(desk, module)
    return desk.shared(
        ("failures", module, topology),
        lambda: find_failures(desk.cluster, module, lambda each: topology in (None, each.topology)),
    )


class Settling(msgspec.Struct, frozen=True):
    again: bool
    """Try them again; else forget them."""
    topology: str | None = None
    offset: int | None = None


class Settled(msgspec.Struct, frozen=True):
    records: int


@post("/modules/{module:str}/failures", status_code=200, summary="Try parked records again, or forget them")
def settle(desk: Desk, module: str, data: Settling) -> Settled:
    _module(desk, module)

    def is_wanted(each: admin.FailureView) -> bool:
        return data.topology in (None, each.topology) and data.offset in (None, each.offset)

    return Settled(settle_failures(desk.cluster, module, is_wanted, again=data.again))


# Snapshots.


@get("/snapshots", summary="The snapshots that the cluster knows of, oldest first")
def list_snapshots(desk: Desk, module: str | None = None) -> tuple[admin.SnapshotView, ...]:
    return desk.cluster.ask(admin.Snapshots(module=module))


@post("/modules/{module:str}/snapshots", summary="Make a snapshot; answered when it is complete")
def create_snapshot(desk: Desk, module: str, data: snapshots.Creation) -> snapshots.Created:
    _module(desk, module)
    return snapshots.create_snapshot(desk, module, data)


@post(
    "/modules/{module:str}/snapshots/{name:str}/verify",
    status_code=200,
    summary="Read a snapshot again, and tell what is not as it was",
)
def verify_snapshot(desk: Desk, module: str, name: str) -> Verdict:
    return snapshots.verify(desk, module, name)


@delete(
    "/modules/{module:str}/snapshots/{name:str}", summary="Delete a snapshot with its files, or forget it"
)
def delete_snapshot(desk: Desk, module: str, name: str, *, forget: bool = False) -> None:
    snapshots.delete(desk, snapshots.named(desk, module, name), forget=forget)


# Options.


@get("/options", summary="Dynamic options in force at a level")
def options(desk: Desk, module: str | None = None, depot: str | None = None) -> tuple[admin.OptionView, ...]:
    if module is not None:
        _module(desk, module)
    return desk.ask(admin.Options(level=admin.OptionLevel(module=module, depot=depot)))


class OptionValue(msgspec.Struct, frozen=True):
    value: str | int | float | bool | None


@put("/options/{name:str}", status_code=204, summary="Set an option")
def set_option(
    desk: Desk, name: str, data: OptionValue, module: str | None = None, depot: str | None = None
) -> None:
    level = _level(desk, name, module, depot)
    desk.act(admin.SetOption(level=level, name=name, value=data.value))


@delete("/options/{name:str}", summary="Let an option be what the next level says")
def unset_option(desk: Desk, name: str, module: str | None = None, depot: str | None = None) -> None:
    desk.act(admin.UnsetOption(level=_level(desk, name, module, depot), name=name))


def _level(desk: Desk, option: str, module: str | None, depot: str | None) -> admin.OptionLevel:
    if module is not None:
        _module(desk, module)
    level = admin.OptionLevel(module=module, depot=depot)
    _named("there is no option", option, {each.name: each for each in desk.ask(admin.Options(level=level))})
    return level


# Data.


class Records(msgspec.Struct, frozen=True):
    records: Annotated[list[Any], msgspec.Meta(max_length=RECORDS_MAX)]


class AppendedRecords(msgspec.Struct, frozen=True):
    appended: int


@post(
    "/modules/{module:str}/depots/{depot:str}/records",
    summary="Append records; answered when all are visible",
)
def append(desk: Desk, module: str, depot: str, data: Records) -> AppendedRecords:
    view = _module(desk, module)
    spec = _named(f"module {module} has no depot", depot, {each.name: each for each in view.depots})
    partitioner = Partitioner(spec, view.tasks)
    placed = [partitioner.place(record) for record in data.records]
    producer = desk.client.producer(module, depot, linger_ms=0)
    try:
        acks = [producer.append(each.record, task=each.task) for each in placed]
        for ack in acks:
            ack.result()
    finally:
        producer.close()
    return AppendedRecords(len(placed))


class DepotRecord(msgspec.Struct, frozen=True):
    offset: int
    timestamp_ms: int
    value: Any
    """As JSON; text that is none, as it is."""


class DepotPage(msgspec.Struct, frozen=True):
    task: int
    start: int
    """The first offset that can be read."""
    end: int
    records: list[DepotRecord]
    next: int


@get("/modules/{module:str}/depots/{depot:str}/records", summary="Records of one task")
def read_depot(
    desk: Desk,
    module: str,
    depot: str,
    *,
    task: Annotated[int, Parameter(ge=0)] = 0,
    offset: Annotated[int, Parameter(ge=0)] = 0,
    limit: Limit = 100,
) -> DepotPage:
    view = _module(desk, module)
    _named(f"module {module} has no depot", depot, {each.name: each for each in view.depots})
    if task >= view.tasks:
        raise NotFoundException(detail=f"module {module} has no task {task}; it has {view.tasks}")
    reader = desk.client.reader(module, depot, timeout=READ_SECONDS)
    start, end = reader.bounds(task)
    at = max(start, offset)
    records = reader.read(task, at).records[:limit] if at < end else []
    shown = [DepotRecord(each.offset, each.timestamp_ms, _shown(each.data)) for each in records]
    return DepotPage(task, start, end, shown, shown[-1].offset + 1 if shown else at)


class PStateEntry(msgspec.Struct, frozen=True):
    key: Any
    value: Any = None


class PStatePage(msgspec.Struct, frozen=True):
    type: str
    path: list[Any]
    value: Any
    """If the path leads to a value."""
    entries: list[PStateEntry]
    """If it leads to a collection: the first of them."""
    more: bool


@get("/modules/{module:str}/pstates/{pstate:str}", summary="What a PState holds")
def read_pstate(
    desk: Desk,
    module: str,
    pstate: str,
    *,
    key: Annotated[list[str] | None, Parameter(description="A key, then keys inside what is there.")] = None,
    prefix: str | None = None,
    start: str | None = None,
    end: str | None = None,
    limit: Limit = 100,
) -> PStatePage:
    view = _module(desk, module)
    _named(f"module {module} has no PState", pstate, {each.name: each for each in view.pstates})
    reader = desk.client.pstate(module, pstate, timeout=READ_SECONDS)
    found = find(reader.type, key or [])
    shown = [plain(each) for each in found.path]
    if found.collection is None:
        value = reader.contains(*found.path) if found.is_member else reader.get(*found.path)
        return PStatePage(str(reader.type), shown, plain(value), [], more=False)
    wanted = KeyRange(found.collection, prefix, start, end)
    rows = [
        PStateEntry(*map(plain, row))
        for row in entries(reader, found.path, found.collection, wanted, limit + 1)
    ]
    return PStatePage(str(reader.type), shown, None, rows[:limit], more=len(rows) > limit)


class QueryAnswer(msgspec.Struct, frozen=True):
    answer: Any


@get("/modules/{module:str}/queries/{name:str}", summary="Ask a query of the module")
def ask_query(
    desk: Desk,
    module: str,
    name: str,
    *,
    argument: Annotated[list[str] | None, Parameter(description="In their order: JSON, or text.")] = None,
    named: Annotated[list[str] | None, Parameter(description="By their names: NAME=JSON.")] = None,
    timeout_ms: Annotated[int, Parameter(ge=1, le=QUERY_MS_MAX)] = 10_000,
) -> QueryAnswer:
    view = _module(desk, module)
    _named(f"module {module} has no query", name, {each.name: each for each in view.queries})
    args = [queries.argument(each) for each in argument or ()]
    given = dict(queries.named_argument(each) for each in named or ())
    answer = desk.client.asking(module, name, args, given, timeout=timeout_ms / 1_000).wait()
    return QueryAnswer(plain(answer))


def _shown(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return data.decode(errors="replace")


def _module(desk: Desk, module: str) -> admin.ModuleView:
    return _named("there is no module", module, {each.module: each for each in desk.ask(admin.Modules())})


def _node(desk: Desk, node: str) -> admin.NodeView:
    return _named("there is no node", node, {each.node: each for each in desk.ask(admin.Nodes())})


def _group(desk: Desk, module: str, group: int) -> GroupStatus:
    _module(desk, module)
    found = desk.groups(module)
    for status in found:
        if status.group.group == group:
            return status
    raise NotFoundException(detail=f"{module} has no group {group}; its groups are 0 to {len(found) - 1}")


def _named(lack: str, name: str, there: Mapping[str, T]) -> T:
    if name not in there:
        raise NotFoundException(detail=f"{lack} {name}; {did_you_mean(name, there)}")
    return there[name]


ROUTES = Router(
    "/api/v1",
    route_handlers=[
        cluster,
        nodes,
        allow_leadership,
        operations,
        conductor_log,
        node_log,
        worker_log,
        modules,
        one_module,
        groups,
        one_group,
        story,
        resign,
        leadership,
        balance,
        charts,
        failures,
        settle,
        list_snapshots,
        create_snapshot,
        verify_snapshot,
        delete_snapshot,
        options,
        set_option,
        unset_option,
        append,
        read_depot,
        read_pstate,
        ask_query,
    ],
)

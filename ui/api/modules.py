"""Modules: their task groups, leadership, charts, and what their functions did not manage."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar.exceptions import NotFoundException
from litestar.params import Parameter

from stretto import control
from stretto.client.operating.failures import ModuleFailures, find_failures, settle_failures, settle_one
from stretto.client.operating.status import GroupStatus
from stretto.errors import UsageError
from stretto.ui.api.common import Group, find_named, get, group_named, groups_of, module_named, post
from stretto.ui.cluster.backend import Backend
from stretto.ui.cluster.threads import SLOW
from stretto.ui.telemetry.charts import Charts
from stretto.ui.telemetry.history import CHARTED_MINUTES, History, Scope
from stretto.vocabulary.types import Epoch, WorkerId

MINUTES_MAX = 7 * 24 * 60
STORY_SHOWN_MAX = 500


@get("/modules", summary="The modules")
def modules(backend: Backend) -> tuple[control.ModuleView, ...]:
    return backend.ask(control.Modules())


@get("/modules/{module:str}", summary="One module")
def one_module(backend: Backend, module: str) -> control.ModuleView:
    return module_named(backend, module)


@get("/modules/{module:str}/groups", summary="The task groups, by their replicas' word")
def groups(backend: Backend, module: str) -> list[GroupStatus]:
    return groups_of(backend, module)


@get("/modules/{module:str}/groups/{group:int}", summary="One task group")
def one_group(backend: Backend, module: str, group: Group) -> GroupStatus:
    return group_named(backend, module, group)


class StoryEntry(msgspec.Struct, frozen=True):
    worker: WorkerId
    at_ms: int
    event: str
    fields: dict[str, Any]


@get("/modules/{module:str}/groups/{group:int}/story", summary="Recent transitions")
def story(backend: Backend, module: str, group: Group) -> list[StoryEntry]:
    status = group_named(backend, module, group)
    lines = backend.story(status)[-STORY_SHOWN_MAX:]
    return [StoryEntry(worker, line.at_ms, line.event, line.fields) for worker, line in lines]


class EpochEntry(msgspec.Struct, frozen=True, kw_only=True):
    epoch: Epoch
    start: int
    """Offset of its first entry."""
    end: int | None
    """Where the next epoch begins; None of the latest."""
    leader: WorkerId | None
    """If it, or who is left, remembers."""
    at_ms: int | None
    """When that leader was elected."""


@get("/modules/{module:str}/groups/{group:int}/epochs", summary="The epochs that its log has, newest last")
def epochs(backend: Backend, module: str, group: Group) -> list[EpochEntry]:
    status = group_named(backend, module, group)
    found = backend.epochs(status)
    lines = backend.story(status)
    leads = {
        line.fields.get("epoch"): (worker, line.at_ms) for worker, line in lines if line.event == "leads"
    }
    follows = {
        line.fields.get("epoch"): WorkerId(str(line.fields["leader"]))
        for _, line in lines
        # Of an epoch whose leader is gone a replica follows nobody.
        if line.event == "follows" and line.fields.get("leader") is not None
    }
    ends = [each.start for each in found[1:]]
    entries = []
    for each, end in zip(found, (*ends, None), strict=True):
        leader, at_ms = leads.get(each.epoch, (follows.get(each.epoch), None))
        entries.append(EpochEntry(epoch=each.epoch, start=each.start, end=end, leader=leader, at_ms=at_ms))
    return entries


class Successor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    to: WorkerId


class EndingEpoch(msgspec.Struct, frozen=True):
    epoch: Epoch


@post(
    "/modules/{module:str}/groups/{group:int}/resign",
    status_code=202,
    summary="Ask the leader to hand over",
)
def resign(backend: Backend, module: str, group: Group, data: Successor) -> EndingEpoch:
    group_named(backend, module, group)
    return EndingEpoch(backend.act(control.ResignLeader(module=module, group=group, to=data.to)))


@get("/modules/{module:str}/leadership", summary="The balance of leaders")
def leadership(backend: Backend, module: str) -> control.LeadershipView:
    module_named(backend, module)
    return backend.ask(control.Leadership(module=module))


@post("/modules/{module:str}/leadership/balance", status_code=202, summary="Balance now")
def balance(backend: Backend, module: str) -> control.LeadershipView:
    module_named(backend, module)
    return backend.act(control.Balance(module=module))


@get("/charts", summary="Replication over time")
def charts(
    history: History,
    minutes: Annotated[int, Parameter(ge=1, le=MINUTES_MAX)] = CHARTED_MINUTES,
    module: str | None = None,
    worker: str | None = None,
    group: Annotated[int | None, Parameter(ge=0)] = None,
) -> Charts:
    return history.charts(Scope(module, worker, group), minutes)


@get(
    "/modules/{module:str}/failures",
    pool=SLOW,
    summary="Records that functions did not manage, and streams' progress",
)
def failures(backend: Backend, module: str, topology: str | None = None) -> ModuleFailures:
    module_named(backend, module)
    return backend.shared(
        ("failures", module, topology),
        lambda: find_failures(backend.cluster, module, lambda each: topology in (None, each.topology)),
    )


class Settling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    again: bool
    """Try them again; else forget them."""
    topology: str | None = None
    """Only those of this topology."""
    record: control.FailureKey | None = None
    """Only this one. An offset alone would name as many records as there are tasks and topologies."""


class Settled(msgspec.Struct, frozen=True):
    records: int
    """So many were parked, and are not any more."""


@post("/modules/{module:str}/failures", status_code=200, summary="Try parked records again, or forget them")
def settle(backend: Backend, module: str, data: Settling) -> Settled:
    view = module_named(backend, module)
    record, topology = data.record, data.topology
    if record is not None and topology is not None:
        raise UsageError("name a topology, whose records are all meant, or one record, and not both")
    named = topology if record is None else record.topology
    if named is not None:
        find_named(f"module {module} has no topology", named, {each.name: each for each in view.topologies})
    if record is not None:
        if not settle_one(backend.cluster, module, record, again=data.again):
            raise NotFoundException(
                detail=f"{record.topology} has not parked record {record.offset} of depot {record.depot} on "
                f"task {record.task}, so nothing was done; GET the same address to see what is parked"
            )
        return Settled(1)
    settled = settle_failures(
        backend.cluster, module, lambda each: data.topology in (None, each.topology), again=data.again
    )
    return Settled(settled)


HANDLERS = (
    modules,
    one_module,
    groups,
    one_group,
    story,
    epochs,
    resign,
    leadership,
    balance,
    charts,
    failures,
    settle,
)

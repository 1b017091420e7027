"""Data of modules: append, read depots and PStates, ask queries."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from litestar.exceptions import NotFoundException
from litestar.params import Parameter

from stretto.client.appending.acks import Ack
from stretto.client.appending.producer import check_ack
from stretto.client.reading import queries
from stretto.client.reading.pstate import PStateReader
from stretto.client.reading.selection import Collection, KeyRange, entries, find, plain
from stretto.errors import OutcomeUnknown, ProcessingFailed, ResultUnknown, RetriableError, StrettoError
from stretto.module.partition import Partitioner
from stretto.pstate import types
from stretto.ui.api.common import Limit, find_named, get, module_named, post
from stretto.ui.cluster.backend import Backend
from stretto.ui.cluster.threads import SLOW
from stretto.vocabulary.decoding import MALFORMED

RECORDS_MAX = 10_000
PREVIEW_MAX = 3
"""Keys that are shown of a collection inside of one."""
PREVIEWED_MAX = 100
"""Entries of a page for which they are read."""
READ_SECONDS = 10.0
APPEND_SECONDS = 20.0
QUERY_MS_MAX = 60_000


class Records(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    records: Annotated[list[Any], msgspec.Meta(max_length=RECORDS_MAX)]
    ack: str = "append"
    """What is waited for: that the records are visible (append), that streams have processed them (streams),
    that every topology has, microbatches included (all); or nothing (none)."""


class AppendedRecords(msgspec.Struct, frozen=True, omit_defaults=True):
    appended: int
    results: list[dict[str, Any]] = []
    """With ack all or streams: of each record, what topologies returned for it, by their names."""


@post(
    "/modules/{module:str}/depots/{depot:str}/records",
    summary="Append records; answered when all are visible, or processed",
)
def append(backend: Backend, module: str, depot: str, data: Records) -> AppendedRecords:
    check_ack(data.ack)
    view = module_named(backend, module)
    spec = find_named(f"module {module} has no depot", depot, {each.name: each for each in view.depots})
    partitioner = Partitioner(spec, view.tasks)
    placed = [partitioner.place(record) for record in data.records]
    options = {"declared": spec, "linger_ms": 0, "timeout_ms": int(APPEND_SECONDS * 1_000), "ack": data.ack}
    producer = backend.client.producer(module, depot, **options)
    deadline = time.monotonic() + APPEND_SECONDS
    acks = [producer.append(each.record, task=each.task) for each in placed]
    results = _results(acks, deadline)
    producer.close()
    return AppendedRecords(len(placed), results if data.ack in ("all", "streams") else [])


def _results(acks: Sequence[Ack], deadline: float) -> list[dict[str, Any]]:
    """Of all, if all went well. Raises StrettoError that says what became of the records if not."""
    results: list[dict[str, Any]] = []
    failed: list[str] = []
    lost: list[str] = []
    refused: list[StrettoError] = []
    unknown = 0
    for index, ack in enumerate(acks):
        try:
            results.append(ack.result(max(0.0, deadline - time.monotonic())))
        except (TimeoutError, OutcomeUnknown):
            unknown += 1
        except ProcessingFailed as error:
            failed.append(f"of record {index} {error}")
        except ResultUnknown as error:
            lost.append(f"of record {index}: {error}")
        except StrettoError as error:
            refused.append(error)
    appended = f"{len(results) + len(failed) + len(lost)} of {len(acks)} records are appended"
    if unknown:
        raise OutcomeUnknown(
            f"{unknown} of {len(acks)} records were not confirmed within {APPEND_SECONDS:g} s, and any of "
            "them may be appended yet; look at the depot before you append them again"
        )
    if len(refused) == len(acks) and refused:
        raise refused[0]
    if refused:
        kind = RetriableError if isinstance(refused[0], RetriableError) else StrettoError
        raise kind(f"{appended}, and the others are not: {refused[0]}")
    if lost:
        raise ResultUnknown(f"{appended}, but what came of {len(lost)} is not known, {lost[0]}")
    if failed:
        raise ProcessingFailed(f"{appended}, but {len(failed)} could not be processed: {failed[0]}")
    return results


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


@get("/modules/{module:str}/depots/{depot:str}/records", pool=SLOW, summary="Records of one task")
def read_depot(
    backend: Backend,
    module: str,
    depot: str,
    *,
    task: Annotated[int, Parameter(ge=0)] = 0,
    offset: Annotated[int, Parameter(ge=0)] = 0,
    limit: Limit = 100,
) -> DepotPage:
    view = module_named(backend, module)
    find_named(f"module {module} has no depot", depot, {each.name: each for each in view.depots})
    if task >= view.tasks:
        raise NotFoundException(detail=f"module {module} has no task {task}; it has {view.tasks}")
    reader = backend.client.reader(module, depot, timeout=READ_SECONDS)
    start, end = reader.bounds(task)
    at = max(start, offset)
    records = reader.read(task, at).records[:limit] if at < end else []
    shown = [DepotRecord(each.offset, each.timestamp_ms, _shown(each.data)) for each in records]
    return DepotPage(task, start, end, shown, shown[-1].offset + 1 if shown else at)


class PStateInside(msgspec.Struct, frozen=True):
    """A collection inside of one: how it begins. What it holds is asked for with its key."""

    first: list[Any]
    """Keys of a dict, members of a set, elements of a list."""
    more: bool


class PStateEntry(msgspec.Struct, frozen=True):
    key: Any
    value: Any = None
    inside: PStateInside | None = None
    """Instead of a value, if there is a collection."""


class PStatePage(msgspec.Struct, frozen=True):
    type: str
    path: list[Any]
    value: Any
    """If the path leads to a value."""
    entries: list[PStateEntry]
    """If it leads to a collection: the first of them."""
    more: bool


@get("/modules/{module:str}/pstates/{pstate:str}", pool=SLOW, summary="What a PState holds")
def read_pstate(
    backend: Backend,
    module: str,
    pstate: str,
    *,
    key: Annotated[list[str] | None, Parameter(description="A key, then keys inside what is there.")] = None,
    prefix: str | None = None,
    start: str | None = None,
    end: str | None = None,
    after: Annotated[str | None, Parameter(description="Go on behind this key.")] = None,
    limit: Limit = 100,
) -> PStatePage:
    view = module_named(backend, module)
    find_named(f"module {module} has no PState", pstate, {each.name: each for each in view.pstates})
    reader = backend.client.pstate(module, pstate, timeout=READ_SECONDS)
    found = find(reader.type, key or [])
    shown = [plain(each) for each in found.path]
    if found.collection is None:
        value = reader.contains(*found.path) if found.is_member else reader.get(*found.path)
        return PStatePage(str(reader.type), shown, plain(value), [], more=False)
    wanted = KeyRange(found.collection, prefix, start, end, after)
    rows = _entries(reader, found.path, found.collection, wanted, limit)
    return PStatePage(str(reader.type), shown, None, rows[:limit], more=len(rows) > limit)


def _entries(
    reader: PStateReader, path: list[Any], type_: Collection, wanted: KeyRange, limit: int
) -> list[PStateEntry]:
    """One more than ``limit`` if there are more."""
    if not isinstance(type_, types.Dict) or not isinstance(type_.value, Collection):
        rows = entries(reader, path, type_, wanted, limit + 1)
        return [PStateEntry(*map(plain, row)) for row in rows]
    # What lies under a key may be far more than a page: of each only the beginning is read.
    span = {"prefix": wanted.prefix, "start": wanted.start, "end": wanted.end, "after": wanted.after}
    keys = list(reader.keys(*path, **span, limit=limit + 1))
    return [
        PStateEntry(plain(key), inside=_beginning(reader, [*path, key], type_.value, at < PREVIEWED_MAX))
        for at, key in enumerate(keys)
    ]


def _beginning(reader: PStateReader, path: list[Any], type_: Collection, is_read: bool) -> PStateInside:
    if not is_read:
        return PStateInside([], more=True)
    if isinstance(type_, types.List):
        first = reader.slice(*path, stop=PREVIEW_MAX + 1)
    else:
        first = list(reader.keys(*path, limit=PREVIEW_MAX + 1))
    return PStateInside([plain(each) for each in first[:PREVIEW_MAX]], more=len(first) > PREVIEW_MAX)


class QueryAnswer(msgspec.Struct, frozen=True):
    answer: Any


@get("/modules/{module:str}/queries/{name:str}", pool=SLOW, summary="Ask a query of the module")
def ask_query(
    backend: Backend,
    module: str,
    name: str,
    *,
    argument: Annotated[list[str] | None, Parameter(description="In their order: JSON, or text.")] = None,
    named: Annotated[list[str] | None, Parameter(description="By their names: NAME=JSON.")] = None,
    timeout_ms: Annotated[int, Parameter(ge=1, le=QUERY_MS_MAX)] = 10_000,
) -> QueryAnswer:
    view = module_named(backend, module)
    find_named(f"module {module} has no query", name, {each.name: each for each in view.queries})
    args = [queries.argument(each) for each in argument or ()]
    given = dict(queries.named_argument(each) for each in named or ())
    answer = backend.client.asking(module, name, args, given, timeout=timeout_ms / 1_000).wait()
    return QueryAnswer(plain(answer))


def _shown(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except MALFORMED:
        return data.decode(errors="replace")


HANDLERS = (
    append,
    read_depot,
    read_pstate,
    ask_query,
)

"""What clients ask of PStates, answered from the applied state as of one moment.

A worker knows rows and no types: a client asks for the rows that what it wants is made of, and puts it
together. An answer is bounded, in rows and in bytes, and says where to go on; so no question holds up the
reads behind it for long, whatever it asks for.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, TypeAlias

from stretto.errors import PeerError
from stretto.pstate import ordered
from stretto.pstate.ordered import KEY_BYTES_MAX
from stretto.pstate.overlay import Rows, beginnings
from stretto.state.pstate import StoredRows
from stretto.vocabulary.suggest import did_you_mean
from stretto.vocabulary.types import Offset
from stretto.wire import messages as wire

if TYPE_CHECKING:
    from stretto.state.applied import AppliedState

ANSWER_BYTES_MAX = 1024 * 1024
"""The size of an answer beyond which no further row is added to it."""
READ_KEYS_MAX = 10_000
SCAN_ROWS_MAX = 10_000
COUNT_KEYS_MAX = 50_000

Scan: TypeAlias = wire.ScanRows | wire.ScanKeys
Query: TypeAlias = wire.ReadRows | Scan


STALENESS_MS_MAX = 3_600_000


def wrong(query: Query, module: str, declared: Collection[str]) -> str | None:
    """Say why a query can never be answered, or None."""
    if query.pstate not in declared:
        return f"module {module} has no PState {query.pstate}; {did_you_mean(query.pstate, declared)}"
    why = wrong_age(query.stale)
    if why is not None:
        return why
    if isinstance(query, wire.ReadRows):
        if len(query.keys) > READ_KEYS_MAX:
            return f"{len(query.keys)} keys are beyond the limit of {READ_KEYS_MAX}; ask for fewer at a time"
        if len(query.tasks) != len(query.keys):
            return f"{len(query.keys)} keys cannot lie on {len(query.tasks)} tasks: each key has one"
        good = all(query.keys) and max(map(len, query.keys), default=0) <= KEY_BYTES_MAX
    else:
        good = len(query.start) <= KEY_BYTES_MAX and bool(query.end)
    if not good:
        return f"a key is empty or longer than {KEY_BYTES_MAX} bytes"
    if isinstance(query, wire.ScanKeys) and not _is_path(query):
        return f"no path ends {query.depth} bytes into all keys from {query.start!r} to {query.end!r}"
    return None


def wrong_age(stale: wire.Stale | None) -> str | None:
    """Say why the age that a read accepts is not allowed, or None."""
    if stale is not None and not 0 < stale.max_staleness_ms <= STALENESS_MS_MAX:
        return f"an answer cannot be {stale.max_staleness_ms} ms old; accept 1 to {STALENESS_MS_MAX}"
    return None


def _is_path(query: wire.ScanKeys) -> bool:
    """Whether the keys of all rows in the range go on after the same whole keys."""
    at = 0
    try:
        while at < query.depth:
            at = ordered.end_of(query.start, at)
    except PeerError:
        return False
    return at == query.depth and query.end <= ordered.subtree(query.start[:at])[1]


Found: TypeAlias = tuple[wire.RowPage, Offset]
"""A page of rows, and an offset: at least everything below it was applied where the page was read."""


def answer(state: AppliedState, query: Scan) -> Found:
    """Answer a scan from the applied state."""
    applied = state.applied
    with state.reading_pstate(query.task, query.pstate) as rows:
        return _answer(rows, query), _seen(applied, rows)


def _seen(applied: Offset, rows: Rows) -> Offset:
    """Return the offset below which everything was applied where rows were read. A task's file may be further
    than its group's offset, which was looked at before; if idle, behind it."""
    return max(applied, rows.applied) if isinstance(rows, StoredRows) else applied


def _answer(rows: Rows, query: Scan) -> wire.RowPage:
    match query:
        case wire.ScanRows(backwards=True):
            last = rows.last(query.start, query.end)
            value = None if last is None else rows.get(last)
            if last is None or value is None:
                return wire.RowPage(query.request, (), (), 0, None)
            return wire.RowPage(query.request, (last,), (value,), 1, None)
        case wire.ScanRows():
            return _page(rows, query)
        case wire.ScanKeys():
            return _keys(rows, query)


Values: TypeAlias = tuple[tuple[bytes | None, ...], Offset]
"""The values of rows, and the offset below which everything was applied where they were read."""


def look_up(state: AppliedState, query: wire.ReadRows, *, wait: bool = True) -> Values:
    """Look up the first keys of a point read, as many as fit an answer, with one transaction for keys in a
    row that lie on one task.

    Without ``wait``, raises WouldWait if the state is not to be had at once.
    """
    applied = state.applied
    tasks, keys, pstate = query.tasks, query.keys, query.pstate
    found: list[bytes | None] = []
    left_bytes = ANSWER_BYTES_MAX
    start = 0
    while start < len(keys) and left_bytes > 0:
        task, end = tasks[start], start + 1
        while end < len(keys) and tasks[end] == task:
            end += 1
        values, at = state.look_up(task, pstate, keys[start:end], max_bytes=left_bytes, wait=wait)
        applied = max(applied, at)
        found += values
        if end < len(keys):
            left_bytes -= sum([len(value) for value in values if value is not None])
        start = end
    return tuple(found), applied


def _page(rows: Rows, query: wire.ScanRows) -> wire.RowPage:
    keys: list[bytes] = []
    values: list[bytes] = []
    left_bytes = ANSWER_BYTES_MAX
    rows_max = max(1, min(query.rows_max, SCAN_ROWS_MAX))
    next_: bytes | None = None
    for key, value in rows.scan(query.start, query.end):
        if len(keys) == rows_max or left_bytes <= 0:
            next_ = key
            break
        keys.append(key)
        values.append(value)
        left_bytes -= len(key) + len(value)
    return wire.RowPage(query.request, tuple(keys), tuple(values), len(keys), next_)


def _keys(rows: Rows, query: wire.ScanKeys) -> wire.RowPage:
    told: list[bytes] = []
    count = 0
    left_bytes = ANSWER_BYTES_MAX
    keys_max = max(1, min(query.keys_max, COUNT_KEYS_MAX))
    for beginning in beginnings(rows, query.start, query.end, query.depth):
        if count == keys_max or left_bytes <= 0:
            return wire.RowPage(query.request, tuple(told), (), count, beginning)
        count += 1
        if query.tell:
            told.append(beginning)
            left_bytes -= len(beginning)
    return wire.RowPage(query.request, tuple(told), (), count, None)

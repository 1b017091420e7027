"""How a record chooses its task, and what a value looks like as a record.

Records are bytes to everything but their producer and their reader. A *value* (what JSON can say) is a record
as its JSON text in UTF-8: anybody can read it, and msgspec decodes it as fast as MessagePack.

In a depot that is partitioned by a field, the task of a value follows from that field alone, the same in
every process, on every machine and in every release: CRC32C of the field's value in MessagePack (shortest
form, as msgspec writes it; a float without a fraction is written as the integer it equals, because both are
one number in JSON), times 0x9E3779B1 modulo 2^32, times the number of tasks, divided by 2^32. The factor is
needed because a CRC is linear: keys that differ in a few bits only would leave some tasks empty.

What a PState has under a key lies on the task that the key chooses in the same way (:func:`owner_of`): where
the records are that name it in their field. Its keys may be more than JSON can say: bytes, dates, datetimes.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from math import isfinite
from typing import Any, NamedTuple

import msgspec
from crc32c import crc32c

from stretto.errors import UsageError
from stretto.types import TaskId
from stretto.zk.records import DepotSpec

_MIX = 0x9E3779B1
_WHOLE_MAX = 2.0**63
_SHOWN_CHARACTERS_MAX = 60

_key_bytes = msgspec.msgpack.Encoder().encode
_record_bytes = msgspec.json.Encoder().encode


class Placement(NamedTuple):
    """What :meth:`stretto.client.Producer.append` takes."""

    record: bytes
    task: TaskId | None
    """None where the producer chooses."""


class Partitioner:
    """Places the values of one depot."""

    def __init__(self, depot: DepotSpec, tasks: int) -> None:
        self._depot = depot
        self._tasks = tasks

    def place(self, value: Any) -> Placement:
        """Raises UsageError for a value that is no record of this depot."""
        try:
            record = _record_bytes(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"{_shown(value)} cannot be a record: {error}") from None
        field = self._depot.partition_by
        if field is None:
            return Placement(record, None)
        if not isinstance(value, dict) or field not in value:
            raise UsageError(
                f"depot {self._depot.name} is partitioned by {field!r}, "
                f"a field that {_shown(value)} does not have; add it"
            )
        try:
            return Placement(record, task_of(value[field], self._tasks))
        except UsageError as error:
            raise UsageError(f"field {field!r} of {_shown(value)} chooses no task: {error}") from None


def task_of(key: Any, tasks: int) -> TaskId:
    """The task that owns ``key`` among ``tasks``. Raises UsageError for what is no key."""
    return _task_of(key if type(key) is str else _canonical(key), tasks)


def owner_of(key: Any, tasks: int) -> TaskId:
    """The task whose PStates hold what is under ``key``: for what JSON can say, that of :func:`task_of`."""
    return _task_of(key if type(key) is str else _canonical(_plain(key)), tasks)


def _task_of(key: Any, tasks: int) -> TaskId:
    try:
        mixed = crc32c(_key_bytes(key)) * _MIX & 0xFFFF_FFFF
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{_shown(key)} is no key ({error}); use text") from None
    return TaskId(mixed * tasks >> 32)


def _plain(key: Any) -> Any:
    """Keys that JSON cannot say as keys that it can."""
    match key:
        case bytes():
            return ["bytes", key.hex()]
        case datetime() if key.utcoffset() is not None:
            return ["datetime", key.astimezone(UTC).isoformat()]
        case date() if not isinstance(key, datetime):
            return ["date", key.isoformat()]
        case tuple():
            return [_plain(part) for part in key]
        case _:
            return key


def _canonical(key: Any) -> Any:
    """Equal keys become the same bytes."""
    match key:
        case None | bool() | int() | str():
            return key
        case float() if isfinite(key):
            return int(key) if key.is_integer() and abs(key) < _WHOLE_MAX else key
        case list() | tuple():
            return [_canonical(part) for part in key]
        case _:
            raise UsageError(
                f"{_shown(key)} is no key; use text, a number, true, false, null or a list of them"
            )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[: _SHOWN_CHARACTERS_MAX - 3] + "..."

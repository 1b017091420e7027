"""How a record chooses its task, and what a value looks like as a record.

Records are bytes to everything but their producer and their reader. A *value* (what JSON can say) is a record
as its JSON text in UTF-8: anybody can read it, and msgspec decodes it as fast as MessagePack.

A depot is partitioned by a field, by several (:func:`hash_by`), by a function of its module, or not at all
(:data:`RANDOM`, or nothing); or all its records go to one task (:data:`GLOBAL`). A field is one of the
record's JSON, by its name and with its value there: so a dataclass in Python, a row of Spark and a text that
somebody types go to one task if they are one record. The task of that value follows from it alone, the same
in every process, on every machine and in every release: CRC32C of the value in MessagePack (shortest form, as
msgspec writes it; a float without a fraction is written as the integer it equals, because both are one number
in JSON), times 0x9E3779B1 modulo 2^32, times the number of tasks, divided by 2^32. The factor is needed
because a CRC is linear: keys that differ in a few bits only would leave some tasks empty. Several fields
choose as the list of their values does.

What a PState has under a key lies on the task that the key chooses in the same way (:func:`owner_of`): where
the records are that name it in their field. Its keys may be more than JSON can say: bytes, dates, datetimes.
A field of such a type is text in the record, and chooses as that text does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, date, datetime
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec
from crc32c import crc32c

from stretto.errors import UsageError
from stretto.specs.modules import DepotSpec
from stretto.vocabulary.types import TaskId

if TYPE_CHECKING:
    from stretto.module.module import Depot

_MIX = 0x9E3779B1
_WHOLE_MAX = 2.0**63
_SHOWN_CHARACTERS_MAX = 60

_UNSIGNED_END = 2**64
_SIGNED_START = -(2**63)

_BYTES = (bytes, bytearray, memoryview)
_key_bytes = msgspec.msgpack.Encoder().encode
_record_bytes = msgspec.json.Encoder().encode
_from_json = msgspec.json.Decoder().decode


class Placement(NamedTuple):
    """A record and its task, as :meth:`stretto.client.Producer.append` takes them."""

    record: bytes
    task: TaskId | None
    """The task of the record; None where the producer chooses."""


@dataclass(frozen=True, slots=True)
class HashBy:
    """Partitioning by several fields of a record, which choose its task together; see :func:`hash_by`."""

    fields: tuple[str, ...]


class Global:
    """Partitioning that puts all records on task 0, in one order; use the constant ``GLOBAL``."""

    def __repr__(self) -> str:
        return "GLOBAL"


GLOBAL: Final = Global()


class Random:
    """Partitioning that lets the producer choose tasks, evenly; use the constant ``RANDOM``."""

    def __repr__(self) -> str:
        return "RANDOM"


RANDOM: Final = Random()

Custom: TypeAlias = Callable[[Any, int], int]
"""A function that returns the task for a record, given that and the number of tasks."""


def hash_by(*fields: str) -> HashBy:
    """Partition a depot by several fields: ``Depot(partition_by=hash_by("land", "city"))``.

    A record goes to the task where the key ``(land, city)`` of a PState is.
    """
    return HashBy(fields)


class Partitioner:
    """Encodes the values of one depot as records, and chooses their tasks.

    A depot whose task a function chooses is given as it is declared, ``Partitioner(Orders.placed, tasks)``:
    what the cluster knows of it does not hold the function.
    """

    def __init__(self, depot: DepotSpec | Depot[Any], tasks: int) -> None:
        self._custom: Custom | None = None
        if isinstance(depot, DepotSpec):
            self._depot = depot
        else:
            self._depot = depot.spec
            self._custom = depot.custom
        self._tasks = tasks
        #: The attribute of a class that is a field of its JSON; None where only the JSON has it.
        self._attributes: dict[tuple[type, str], str | None] = {}

    def place(self, value: Any) -> Placement:
        """Return the record that a value is, and its task. Bytes are a record as they are.

        Raises UsageError for a value that is no record of this depot.
        """
        record = record_of(value)
        if isinstance(value, _BYTES):
            return Placement(record, task_of_bytes(self._depot))
        return Placement(record, self._task(value, record))

    def _task(self, value: Any, record: bytes) -> TaskId | None:
        if self._depot.rule == "global":
            return TaskId(0)
        if self._depot.rule == "custom":
            return self._chosen(value)
        field = self._depot.partition_by
        if field is None:
            return None
        if isinstance(field, str):
            key = self._field(value, field, record)
        else:
            key = [self._field(value, each, record) for each in field]
        try:
            return task_of(key, self._tasks)
        except UsageError as error:
            raise UsageError(f"field {field!r} of {_shown(value)} chooses no task: {error}") from None

    def _field(self, value: Any, field: str, record: bytes) -> Any:
        """Return a field of the record's JSON, read from the value itself where both are surely the same."""
        if type(value) is dict:
            found = value.get(field, _ABSENT)
        else:
            attribute = self._attribute(type(value), field)
            found = _ABSENT if attribute is None else getattr(value, attribute, _ABSENT)
        if _is_same_in_json(found):
            return found
        decoded = _from_json(record)
        if isinstance(decoded, dict) and field in decoded:
            return decoded[field]
        raise UsageError(
            f"depot {self._depot.name} is partitioned by {field!r}, "
            f"a field that {_shown(value)} does not have; add it"
        )

    def _attribute(self, of: type, field: str) -> str | None:
        asked = (of, field)
        if asked not in self._attributes:
            self._attributes[asked] = _attribute_of(of, field)
        return self._attributes[asked]

    def _chosen(self, value: Any) -> TaskId:
        if self._custom is None:
            raise UsageError(
                f"a function of its module chooses the tasks of depot {self._depot.name}; append to it from "
                f"Python, with the module's class: client.depot(TheModule.{self._depot.name}).append(value)"
            )
        chosen = self._custom(value, self._tasks)
        if type(chosen) is not int or not 0 <= chosen < self._tasks:
            raise UsageError(
                f"the function that partitions depot {self._depot.name} gave {_shown(chosen)} for "
                f"{_shown(value)}; the tasks are 0 to {self._tasks - 1}"
            )
        return TaskId(chosen)


def record_of(value: Any) -> bytes:
    """Return a value as a record: its JSON, or itself if it is bytes. Raises UsageError if it has no JSON."""
    if isinstance(value, _BYTES):
        return bytes(value)
    try:
        return _record_bytes(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{_shown(value)} cannot be a record: {error}") from None


def task_of_bytes(depot: DepotSpec) -> TaskId | None:
    """Return the task of a record that is given as bytes, without one; None where any will do.

    Raises UsageError where what is in a record chooses: bytes are not decoded for that.
    """
    if depot.rule == "global":
        return TaskId(0)
    if depot.rule == "hash" and depot.partition_by is None:
        return None
    by = "a function of its module" if depot.rule == "custom" else repr(depot.partition_by)
    raise UsageError(
        f"depot {depot.name} is partitioned by {by}, and bytes do not tell their task: append a value (a "
        "dict, a dataclass, a Struct) with client.depot(...), which chooses it, or say task=..."
    )


_ABSENT: Final = object()


def _is_same_in_json(value: Any) -> bool:
    """Whether the value of a field is what a reader of its JSON gets, whatever the field is declared as."""
    of = type(value)
    if of is int:
        return bool(_SIGNED_START <= value < _UNSIGNED_END)
    return of is str or of is bool or value is None


def _attribute_of(of: type, field: str) -> str | None:
    """Return the attribute of a class that is always there and is this field of its JSON, or None."""
    if issubclass(of, msgspec.Struct):
        config = of.__struct_config__
        if config.array_like or config.omit_defaults:
            return None
        return next((each.name for each in msgspec.structs.fields(of) if each.encode_name == field), None)
    # Not those of ``__dataclass_fields__``: these have the class variables too, which are not in its JSON.
    if is_dataclass(of) and any(each.name == field for each in fields(of)):
        return field
    return None


def task_of(key: Any, tasks: int) -> TaskId:
    """Return the task that owns ``key`` among ``tasks``. Raises UsageError for what is no key."""
    return _task_of(key if type(key) is str else _canonical(key), tasks)


def owner_of(key: Any, tasks: int) -> TaskId:
    """Return the task whose PStates hold what is under ``key``; for JSON, the same as :func:`task_of`."""
    return _task_of(key if type(key) is str else _canonical(_plain(key)), tasks)


def owners_of(keys: Iterable[Any], tasks: int) -> list[TaskId]:
    """Return :func:`owner_of` each key; text, which most keys are, takes no call for each."""
    return [
        TaskId((crc32c(_key_bytes(key)) * _MIX & 0xFFFF_FFFF) * tasks >> 32)
        if type(key) is str and key.isascii()
        else owner_of(key, tasks)
        for key in keys
    ]


def _task_of(key: Any, tasks: int) -> TaskId:
    try:
        mixed = crc32c(_key_bytes(key)) * _MIX & 0xFFFF_FFFF
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{_shown(key)} is no key ({error}); use text") from None
    return TaskId(mixed * tasks >> 32)


def _plain(key: Any) -> Any:
    """Convert keys that JSON cannot say to keys that it can."""
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
    """Return a key in the form in which equal keys are encoded as the same bytes."""
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

"""Filters of Spark as ranges of keys, offsets and tasks, so that only what can match is read.

Keys are bytes in the order of the keys, and so a comparison of a key column is a range of bytes. If the first
key is one of a few values, only the tasks that own these are read; and then the second key narrows the ranges
in the same way, and so on. The members of a tuple narrow it one after the other, as if each were a key. A
filter that is carried out exactly is not tried again by Spark; the others are given back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from pyspark_stretto.columns.schema import OFFSET, TASK, TIMESTAMP, optional
from stretto.errors import UsageError
from stretto.module.partition import owner_of
from stretto.pstate import ordered, types
from stretto.pstate.ordered import (
    EVERYTHING,
    KEY_BYTES_MAX,
    TUPLE_BEGINS,
    TUPLE_ENDS,
    Range,
    beginning_with,
    behind,
    subtree,
)
from stretto.pstate.types import Type
from stretto.wire.scans import OFFSET_END

POINTS_MAX = 1_000
"""Number of keys beyond which only the range that they span is read."""
_CLASSES: Final[dict[str, type]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "datetime": datetime,
    "date": date,
}
#: The range of bytes that the keys of each type lie in.
_WITHIN: Final[dict[str, Range]] = {
    "bool": (b"\x04", b"\x06"),
    "int": (b"\x10", b"\x21"),
    "float": (b"\x28", b"\x29"),
    "str": (b"\x30", b"\x31"),
    "bytes": (b"\x38", b"\x39"),
    "datetime": (b"\x40", b"\x41"),
    "date": (b"\x48", b"\x49"),
}


@dataclass(slots=True)
class _Level:
    """What filters ask of one key: that it is in a range, and if ``points`` are given one of these."""

    low: bytes
    high: bytes
    points: dict[bytes, Any] | None = None

    def only(self, points: dict[bytes, Any]) -> None:
        """Narrow the key to these points, among those that it was narrowed to before."""
        known = self.points
        self.points = points if known is None else {key: points[key] for key in points if key in known}

    def chosen(self) -> dict[bytes, Any]:
        """Return the points that are in the range, ascending."""
        points = self.points or {}
        return {key: points[key] for key in sorted(points) if self.low <= key < self.high}


@dataclass(frozen=True, slots=True)
class _Column:
    """A key, or a member of a tuple key, with the bytes that are written before and after it."""

    attribute: tuple[str, ...]
    type: Type
    level: int
    before: bytes = b""
    after: bytes = b""


def _columns(attribute: tuple[str, ...], type_: Type, level: int) -> list[_Column]:
    if not isinstance(type_, types.Tuple) or not type_.items:
        return [_Column(attribute, type_, level)]
    found = [
        column
        for number, item in enumerate(type_.items, 1)
        for column in _columns((*attribute, f"_{number}"), item, level)
    ]
    found[0] = replace(found[0], before=TUPLE_BEGINS + found[0].before)
    found[-1] = replace(found[-1], after=found[-1].after + TUPLE_ENDS)
    return found


def _key_of(type_: Type, members: Iterator[Any]) -> Any:
    if not isinstance(type_, types.Tuple):
        return next(members)
    return tuple(_key_of(item, members) for item in type_.items)


class KeyFilters:
    """Filters on the keys of one PState.

    ``columns`` are the key columns by level, with None as the name of one that is read as text.
    """

    def __init__(self, columns: Sequence[tuple[str | None, Type]]) -> None:
        self._first = columns[0][1] if columns else None
        self._columns = [
            column
            for level, (name, type_) in enumerate(columns)
            for column in _columns((name or "",), type_, level)
        ]
        self._tasks: list[Callable[[int], bool]] = []
        #: The ranges that are read, each with the members of the first key that all of it shares.
        self._spans: list[tuple[tuple[Any, ...], Range]] = [((), EVERYTHING)]

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Take the filters that narrow the ranges, and return those that Spark has to apply itself."""
        left = [each for each in filters if not _push_task(each, self._tasks) and not self._is_so(each)]
        paths: list[tuple[tuple[Any, ...], bytes]] = [((), b"")]
        for column in self._columns:
            level = _level(column.type)
            if level is None:
                break
            mine = [each for each in left if getattr(each, "attribute", None) == column.attribute]
            taken = [each for each in mine if _push_key(each, column.type, level)]
            left = [each for each in left if not any(each is other for other in taken)]
            paths = [(first, path + column.before) for first, path in paths]
            if level.points is None:
                if level != _level(column.type):
                    self._spans = [(first, (path + level.low, path + level.high)) for first, path in paths]
                break
            paths = [
                ((*first, key) if column.level == 0 else first, path + encoded + column.after)
                for first, path in paths
                for encoded, key in level.chosen().items()
            ]
            self._spans = [(first, subtree(path)) for first, path in paths]
            if len(paths) > POINTS_MAX:
                break
        return left

    def _is_so(self, each: Filter) -> bool:
        """Whether a filter always holds: a tuple key, whose members are columns, is never null."""
        if not isinstance(each, IsNotNull):
            return False
        depth = len(each.attribute)
        return any(
            len(column.attribute) > depth and column.attribute[:depth] == each.attribute
            for column in self._columns
        )

    def ranges(self, task: int, tasks: int) -> list[Range]:
        """Return the ranges of a task's keys that are to be read, ascending."""
        if not all(fits(task) for fits in self._tasks):
            return []
        return [
            range_
            for members, range_ in self._spans
            if range_[0] < range_[1] and self._is_on(members, task, tasks)
        ]

    def _is_on(self, members: tuple[Any, ...], task: int, tasks: int) -> bool:
        """Whether the task can own the key; only a key whose members are all known tells its owner."""
        if self._first is None or len(members) < sum(column.level == 0 for column in self._columns):
            return True
        return owner_of(_key_of(self._first, iter(members)), tasks) == task


@dataclass(slots=True)
class DepotFilters:
    """Filters on the offsets, times and tasks of one depot."""

    start: int = 0
    end: int = OFFSET_END
    start_ms: int | None = None
    _tasks: list[Callable[[int], bool]] = field(default_factory=list)

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Take the filters that narrow what is read, and return those that Spark has to apply itself."""
        return [each for each in filters if not self._push(each)]

    def _push(self, each: Filter) -> bool:
        if _push_task(each, self._tasks):
            return True
        match each:
            case IsNotNull(attribute=("offset" | "timestamp" | "value",)):
                return True
            case GreaterThan(attribute=(column,), value=int(value)) if column == OFFSET:
                self.start = max(self.start, value + 1)
            case GreaterThanOrEqual(attribute=(column,), value=int(value)) if column == OFFSET:
                self.start = max(self.start, value)
            case LessThan(attribute=(column,), value=int(value)) if column == OFFSET:
                self.end = min(self.end, value)
            case LessThanOrEqual(attribute=(column,), value=int(value)) if column == OFFSET:
                self.end = min(self.end, value + 1)
            case EqualTo(attribute=(column,), value=int(value)) if column == OFFSET:
                self.start, self.end = max(self.start, value), min(self.end, value + 1)
            case (
                GreaterThan(attribute=(column,), value=datetime() as moment)
                | GreaterThanOrEqual(attribute=(column,), value=datetime() as moment)
                | EqualTo(attribute=(column,), value=datetime() as moment)
            ) if column == TIMESTAMP and moment.utcoffset() is not None:
                # Clocks go back: there may be older records behind, and Spark has to look.
                moment_ms = int(moment.astimezone(UTC).timestamp() * 1_000)
                self.start_ms = max(self.start_ms or 0, moment_ms)
                return False
            case _:
                return False
        return True

    def fits(self, task: int) -> bool:
        """Whether the filters leave anything of a task to read."""
        return all(fits(task) for fits in self._tasks)


def _push_task(each: Filter, tasks: list[Callable[[int], bool]]) -> bool:
    if getattr(each, "attribute", None) != (TASK,):
        return False
    match each:
        case IsNotNull():
            return True
        case EqualTo(value=int(value)):
            tasks.append(lambda task: task == value)
        case In(value=values):
            tasks.append(lambda task: task in values)
        case GreaterThan(value=int(value)):
            tasks.append(lambda task: task > value)
        case GreaterThanOrEqual(value=int(value)):
            tasks.append(lambda task: task >= value)
        case LessThan(value=int(value)):
            tasks.append(lambda task: task < value)
        case LessThanOrEqual(value=int(value)):
            tasks.append(lambda task: task <= value)
        case _:
            return False
    return True


def _level(type_: Type) -> _Level | None:
    """Return the whole range of a type's keys; None for keys whose order Spark does not know."""
    inner, _ = optional(type_)
    if not isinstance(inner, types.Plain) or inner.name not in _WITHIN:
        return None
    return _Level(*(EVERYTHING if inner != type_ else _WITHIN[inner.name]))


def _push_key(each: Filter, type_: Type, level: _Level) -> bool:
    inner, _ = optional(type_)
    if not isinstance(inner, types.Plain):
        return False
    least, beyond = _WITHIN[inner.name]
    match each:
        case IsNotNull():
            low, high = least, beyond
        case IsNull() | EqualNullSafe(value=None):
            level.only({ordered.encode(None): None})
            return True
        case EqualTo(value=value) | EqualNullSafe(value=value):
            encoded = _encoded(inner.name, value)
            if encoded is None:
                return False
            level.only({encoded: _key(inner.name, value)})
            return True
        case In(value=values):
            return _push_in(inner.name, values, level)
        case StringStartsWith(value=str(value)) if inner.name == "str" and _encoded("str", value) is not None:
            low, high = beginning_with(value)
        case (
            GreaterThan(value=value)
            | GreaterThanOrEqual(value=value)
            | LessThan(value=value)
            | LessThanOrEqual(value=value)
        ):
            encoded = _encoded(inner.name, value)
            if encoded is None:
                return False
            low, high = least, beyond
            match each:
                case GreaterThan():
                    low = behind(encoded)
                case GreaterThanOrEqual():
                    low = encoded
                case LessThan():
                    high = encoded
                case _:
                    high = behind(encoded)
        case _:
            return False
    level.low, level.high = max(level.low, low), min(level.high, high)
    return True


def _push_in(name: str, values: Iterable[Any], level: _Level) -> bool:
    points: dict[bytes, Any] = {}
    for value in values:
        if value is None:
            continue
        encoded = _encoded(name, value)
        if encoded is None:
            return False
        points[encoded] = _key(name, value)
    if len(points) > POINTS_MAX:
        level.low, level.high = max(level.low, min(points)), min(level.high, behind(max(points)))
        return False
    level.only(points)
    return True


def _key(name: str, value: Any) -> Any:
    """Return a value of Spark as a key: whole numbers that are compared with floats become floats."""
    return float(value) if name == "float" else value


def _encoded(name: str, value: Any) -> bytes | None:
    """Return the bytes of a key; None if the value is no key of this type, so that Spark has to compare."""
    is_number = name == "float" and type(value) is int
    if not is_number and type(value) is not _CLASSES[name]:
        return None
    try:
        encoded = ordered.encode(_key(name, value))
    except (UsageError, OverflowError):
        return None
    return encoded if len(encoded) < KEY_BYTES_MAX else None

"""One table of records and their tasks, for every way there is to append: all choose the same task.

It stands in a file of its own, with a module to be launched. Tasks are written down and not computed: what
was appended by one release is looked for by the next.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from stretto import GLOBAL, RANDOM, Depot, Module, hash_by

TASKS = 8


@dataclass
class Keyed:
    """A record as a dataclass. Its key is whatever a case says."""

    way: str
    case: str
    key: Any


class KeyedStruct(msgspec.Struct):
    way: str
    case: str
    key: Any


class Renamed(msgspec.Struct, rename={"customer_id": "key"}, tag="renamed"):
    """In JSON, which chooses, the field is called otherwise than in Python."""

    way: str
    case: str
    customer_id: str


class Sparing(msgspec.Struct, omit_defaults=True):
    way: str
    case: str
    key: str = "default"


@dataclass
class City:
    way: str
    case: str
    land: str
    city: str | None


class Colour(enum.Enum):
    RED = "red"


def by_length(record: dict[str, Any], tasks: int) -> int:
    return len(record["text"]) % tasks


class Placed(Module):
    by_field = Depot(partition_by="key")
    by_fields = Depot(partition_by=hash_by("land", "city"))
    on_one = Depot(partition_by=GLOBAL)
    anywhere = Depot(partition_by=RANDOM)
    undeclared = Depot()
    by_function = Depot(partition_by=by_length)


class Anywhere(enum.Enum):
    ANY = "any task"


@dataclass(frozen=True)
class Refused:
    """An expectation: the value is no record of the depot, and the error message contains ``why``."""

    why: str


Expected: TypeAlias = int | Anywhere | Refused
ANY = Anywhere.ANY
NO_KEY = Refused("is no key")
NO_FIELD = Refused("partitioned by 'key', a field that")


#: The answer of a way of appending that lacks the function which chooses the tasks of a depot.
NO_FUNCTION = Refused("a function of its module chooses the tasks of depot by_function")


@dataclass(frozen=True)
class Case:
    """A value, and where it belongs, whatever the way by which it is appended."""

    name: str
    depot: str
    value: Any
    expected: Expected

    def by(self, way: str) -> Any:
        """Return the value as it is appended by one of the ways."""
        if isinstance(self.value, dict):
            return {"way": way, "case": self.name, **self.value}
        if isinstance(self.value, msgspec.Struct):
            return msgspec.structs.replace(self.value, way=way, case=self.name)
        return replace(self.value, way=way, case=self.name)

    def expected_by(self, *, has_function: bool) -> Expected:
        """Return where the value belongs, or why it cannot be appended without the module's class."""
        return NO_FUNCTION if self.depot == "by_function" and not has_function else self.expected

    def plain(self, way: str) -> Any:
        """Return the same value as JSON has it."""
        return msgspec.json.decode(msgspec.json.encode(self.by(way)))


_KEYS: tuple[tuple[str, Any, Expected], ...] = (
    ("text", "user-1", 4),
    ("empty text", "", 0),
    ("text beyond ASCII", "straße", 7),
    ("zero", 0, 1),
    ("int", 300, 7),
    ("negative int", -1, 2),
    ("largest int", 2**63 - 1, 2),
    ("fraction", 1.5, 3),
    ("whole float", 300.0, 7),
    ("true", True, 7),
    ("none", None, 6),
    ("list", ["de", 7], 5),
    ("nested list", [["de", None], [1]], 3),
    ("bytes", b"\x00\xff", 3),
    ("date", date(2026, 1, 31), 4),
    ("moment", datetime(2026, 1, 31, 12, tzinfo=UTC), 1),
    ("decimal", Decimal("1.50"), 1),
    ("UUID", UUID(int=7), 6),
    ("enum", Colour.RED, 2),
    ("dict", {"a": 1}, NO_KEY),
)

CASES: tuple[Case, ...] = (
    *(Case(f"{name} in a dict", "by_field", {"key": key}, task) for name, key, task in _KEYS),
    *(Case(f"{name} in a dataclass", "by_field", Keyed("", "", key), task) for name, key, task in _KEYS),
    *(Case(f"{name} in a Struct", "by_field", KeyedStruct("", "", key), task) for name, key, task in _KEYS),
    Case("renamed field", "by_field", Renamed("", "", "user-1"), _KEYS[0][2]),
    Case("field that is not left out", "by_field", Sparing("", "", "user-1"), _KEYS[0][2]),
    Case("field that is left out", "by_field", Sparing("", ""), NO_FIELD),
    Case("no such field", "by_field", {"text": "x"}, NO_FIELD),
    Case("two fields", "by_fields", {"city": "Bonn", "land": "de"}, 1),
    Case("two fields of a dataclass", "by_fields", City("", "", "de", "Bonn"), 1),
    Case("two fields, one none", "by_fields", City("", "", "de", None), 4),
    Case("one for all", "on_one", {"key": "user-1"}, 0),
    Case("random", "anywhere", {"key": "user-1"}, ANY),
    Case("not said", "undeclared", {"key": "user-1"}, ANY),
    Case("chosen", "by_function", {"text": "abc"}, 3),
    Case("chosen, around", "by_function", {"text": "abcdefghij"}, 2),
)

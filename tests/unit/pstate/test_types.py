"""Types of PStates as data: told, rebuilt without their author's classes, compared between versions."""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest

from stretto.errors import UsageError
from stretto.pstate.types import Type, describe, incompatible, python_type


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Address(msgspec.Struct, rename="kebab"):
    street_name: str
    zip_code: int | None = None


@dataclass
class Account:
    owner: str
    balance: Decimal
    address: Address
    opened: datetime | None = None


class Point(NamedTuple):
    x: float
    y: float = 0.0


class Options(TypedDict, total=False):
    color: Color


class StrictOptions(TypedDict):
    color: Color


class Deposit(msgspec.Struct, tag=True, array_like=True):
    amount: int


class Withdrawal(msgspec.Struct, tag=True, array_like=True):
    amount: int
    fee: int = 0


NATURAL = Annotated[int, msgspec.Meta(ge=0)]


class Old(msgspec.Struct):
    a: int


class New(msgspec.Struct):
    a: int
    b: int = 0


class Circular(msgspec.Struct):
    next: Circular | None


ADDRESS = "Address(street_name: str, zip_code: None | int = ...)"
VALUES: list[tuple[Any, Any, str]] = [
    (int, 7, "int"),
    (NATURAL, 7, "int with ge=0"),
    (int | None, None, "None | int"),
    (dict[str, dict[date, int]], {"a": {date(2026, 1, 1): 3}}, "dict[str, dict[date, int]]"),
    (frozenset[int], {1, 2}, "set[int]"),
    (tuple[int, str], (1, "a"), "tuple[int, str]"),
    (tuple[int, ...], (1, 2, 3), "tuple[int, ...]"),
    (tuple[()], (), "tuple[()]"),
    (Literal["b", "a"], "a", "Literal['a', 'b']"),
    (Color, Color.RED, "Literal['blue', 'red']"),
    (Any, {"what": ["ever"]}, "Any"),
    (Address, Address("Hill", 7), ADDRESS),
    (Point, Point(1.5), "Point(x: float, y: float = ...)"),
    (Options, {"color": Color.BLUE}, "Options(color: Literal['blue', 'red'] = ...)"),
    (
        Account,
        Account("ann", Decimal("1.50"), Address("Hill"), datetime(2026, 1, 1, tzinfo=UTC)),
        f"Account(owner: str, balance: Decimal, address: {ADDRESS}, opened: None | datetime = ...)",
    ),
    (
        list[Deposit | Withdrawal],
        [Deposit(5), Withdrawal(3, 1)],
        "list[Deposit(amount: int) | Withdrawal(amount: int, fee: int = ...)]",
    ),
]


@pytest.mark.parametrize(("annotation", "value", "text"), VALUES, ids=[text for *_, text in VALUES])
def test_a_type_is_told_and_rebuilt_without_its_classes(annotation: Any, value: Any, text: str) -> None:
    described = describe(annotation)
    assert str(described) == text

    told = msgspec.json.decode(msgspec.json.encode(described), type=Type)
    assert told == described

    written = msgspec.msgpack.encode(value)
    read = msgspec.msgpack.decode(written, type=python_type(told))
    assert msgspec.json.encode(read) == msgspec.json.encode(value)


def test_what_was_rebuilt_has_the_fields_and_refuses_other_types() -> None:
    rebuilt = python_type(describe(Address))
    read = msgspec.msgpack.decode(msgspec.msgpack.encode({"street-name": "Hill"}), type=rebuilt)
    assert (read.street_name, read.zip_code) == ("Hill", msgspec.UNSET)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"street-name": 7}), type=rebuilt)


def test_unions_are_equal_in_any_order() -> None:
    assert describe(int | str | None) == describe(None | str | int)


@pytest.mark.parametrize(
    ("annotation", "sentence"),
    [
        (complex, "complex cannot be stored; use a dataclass"),
        (Circular, "Circular holds itself"),
        (Deposit | Address, "cannot be stored"),
        (7, "7 cannot be stored"),
    ],
)
def test_what_cannot_be_stored_is_refused(annotation: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        describe(annotation)


def record(name: str, *fields: Any, array: bool = False) -> Any:
    return msgspec.defstruct(name, fields, array_like=array)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (dict[str, int], dict[str, int]),
        (record("Old", ("a", int)), record("New", ("a", int))),
        (record("A", ("a", int)), record("A", ("b", int, 0), ("a", int, 0))),
        (record("A", ("a", int), array=True), record("A", ("a", int), ("b", int, 0), array=True)),
        (tuple[Old, int], tuple[New, int]),
        (record("A", ("a", int)), record("A", ("a", int, 0))),
        (NATURAL, int),
        (NATURAL, NATURAL),
        (dict[str, list[NATURAL]], dict[str, list[int]]),
    ],
)
def test_versions_that_read_what_others_wrote(old: Any, new: Any) -> None:
    assert incompatible(describe(old), describe(new)) is None


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (dict[str, int], dict[str, float], "int cannot become float"),
        (dict[str, int], dict[str, dict[str, int]], "int cannot become dict[str, int]"),
        (dict[str, list[int]], dict[str, set[int]], "list[int] cannot become set[int]"),
        (dict[int, str], dict[str, str], "int cannot become str"),
        (int | None, int, "None | int cannot become int"),
        (record("A", ("a", int)), record("A"), "A has lost its field 'a'"),
        (record("A"), record("A", ("a", int)), "field 'a' of A is new and has no default"),
        (record("A", ("a", int)), record("A", ("a", str)), "field 'a' of A: int cannot become str"),
        (record("A", ("a", int)), record("A", ("a", int), array=True), "written in another way"),
        (
            record("A", ("a", int, 0), ("b", int, 0), array=True),
            record("A", ("b", int, 0), ("a", int, 0), array=True),
            "have another order",
        ),
        (
            record("A", ("a", int), ("b", int, 0)),
            record("A", ("a", int), ("b", int)),
            "field 'b' of A had a default, and rows may lack it",
        ),
        (Options, StrictOptions, "field 'color' of StrictOptions had a default"),
        (int, NATURAL, "int with ge=0 would refuse values that int took; leave out ge=0"),
        (dict[str, set[int]], dict[str, set[NATURAL]], "leave out ge=0"),
        (NATURAL, Annotated[int, msgspec.Meta(ge=0, le=9)], "leave out le=9"),
        (str, Annotated[str, msgspec.Meta(max_length=3)], "leave out max_length=3"),
        (datetime, Annotated[datetime, msgspec.Meta(tz=True)], "leave out tz=True"),
        (list[int], Annotated[list[int], msgspec.Meta(min_length=1)], "leave out min_length=1"),
        (tuple[int, ...], Annotated[tuple[int, ...], msgspec.Meta(min_length=1)], "leave out min_length=1"),
        (dict[str, int], Annotated[dict[str, int], msgspec.Meta(min_length=1)], "leave out min_length=1"),
    ],
)
def test_versions_that_do_not(old: Any, new: Any, why: str) -> None:
    assert why in (incompatible(describe(old), describe(new)) or "")


def test_no_chain_of_updates_makes_rows_unreadable() -> None:
    """Each version reads what the one before wrote, so it must read what any earlier one wrote."""
    fields = [("a", int), ("a", int, 0), ("a", NATURAL), ("b", int), ("b", int, 0)]
    versions = [
        record("A", *chosen)
        for size in range(3)
        for chosen in itertools.permutations(fields, size)
        if len({field[0] for field in chosen}) == size
        and not any(len(one) > len(two) for one, two in itertools.pairwise(chosen))
    ]
    follows = {
        (one, two): incompatible(describe(one), describe(two)) is None
        for one, two in itertools.product(versions, repeat=2)
    }
    for one, two, three in itertools.product(versions, repeat=3):
        if follows[one, two] and follows[two, three]:
            assert follows[one, three], (one, two, three)

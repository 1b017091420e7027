"""The record that a launch shows can be appended as it is."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest

from stretto import GLOBAL, Depot, Module, hash_by, stream
from stretto.artifact.importing import manifest


class Kind(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Item(msgspec.Struct, rename="camel"):
    article_number: int
    price: Decimal
    tags: set[str]
    parts: list[Item]


class Place(NamedTuple):
    land: str
    zip: int


class Note(TypedDict, total=False):
    text: str


@dataclass
class Order:
    customer: str
    items: list[Item]
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    day: date
    hour: time
    length: timedelta
    number: UUID
    kind: Kind
    state: Literal["new", "paid"]
    place: Place
    note: Note
    by_page: dict[int, float]
    blob: bytes
    either: int | None
    anything: Any
    small: Annotated[int, msgspec.Meta(ge=10, multiple_of=7)]
    large: Annotated[float, msgspec.Meta(lt=-1)]
    code: Annotated[str, msgspec.Meta(pattern=r"^\d$")]
    short: Annotated[str, msgspec.Meta(max_length=1)]
    long: Annotated[str, msgspec.Meta(min_length=5)]
    pair: tuple[int, str]
    coupon: str | None = None
    amount: int = 3
    more: list[int] = field(default_factory=list)


class Deposit(msgspec.Struct, tag="deposit"):
    account: str


class Expiry(msgspec.Struct, tag="expiry"):
    before: int


class Tagged(msgspec.Struct, tag="first", tag_field="kind", array_like=True):
    value: int


class Impossible(msgspec.Struct):
    code: Annotated[str, msgspec.Meta(pattern="^nobody would guess this$")]


class Endless(msgspec.Struct):
    next: Endless


def raising() -> str:
    raise RuntimeError("not today")


@dataclass
class Unlucky:
    text: str = field(default_factory=raising)


def sample(by: Any, *annotations: Any, of: Any = Any) -> Any:
    """What is made up for a depot with these functions; "" if nothing is."""

    def taking(annotation: Any) -> Any:
        def take(self: Any, record: Any) -> None:
            pass

        take.__annotations__["record"] = annotation
        return take

    depot = Depot(of, partition_by=by)
    names = {f"take{number}": stream(depot)(taking(each)) for number, each in enumerate(annotations)}
    module = type("Shop", (Module,), {"orders": depot, **names})
    return json.loads(manifest(module, "shop:Shop").samples.get("orders", '""'))


def test_a_record_has_every_field_and_what_is_declared_for_it() -> None:
    assert sample("customer", Order) == {
        "customer": "...",
        "items": [{"articleNumber": 1, "price": "1.5", "tags": ["..."], "parts": []}],
        "at": "2026-01-31T12:00:00Z",
        "day": "2026-01-31",
        "hour": "12:00:00",
        "length": "PT3600S",
        "number": "00000000-0000-0000-0000-000000000001",
        "kind": "small",
        "state": "new",
        "place": ["...", 1],
        "note": {"text": "..."},
        "by_page": {"1": 1.0},
        "blob": "Li4u",
        "either": 1,
        "anything": "...",
        "small": 14,
        "large": -2.0,
        "code": "1",
        "short": ".",
        "long": ".....",
        "pair": [1, "..."],
        "coupon": None,
        "amount": 3,
        "more": [],
    }


@pytest.mark.parametrize(
    ("by", "annotations", "expected"),
    [
        ("before", [Deposit | Expiry], {"type": "expiry", "before": 1}),
        (GLOBAL, [Deposit | Expiry], {"type": "deposit", "account": "..."}),
        ("account", [Deposit, dict[str, str]], {"type": "deposit", "account": "..."}),
        (hash_by("land", "city"), [], {"land": "...", "city": "..."}),
        ("user", [Any], {"user": "..."}),
        ("user", [dict[str, int]], {"user": 1}),
        (None, [Tagged], ["first", 1]),
        (None, [list[int]], [1]),
        (None, [str], "..."),
        (None, [bytes], "any JSON"),
        (None, [], "any JSON"),
    ],
)
def test_a_record_is_one_that_every_function_takes(by: Any, annotations: list[Any], expected: Any) -> None:
    assert sample(by, *annotations) == expected


def test_the_type_of_the_depot_is_shown_first() -> None:
    assert sample("account", Any, of=Deposit) == {"type": "deposit", "account": "..."}


@pytest.mark.parametrize(
    ("by", "annotations"),
    [
        (None, [Impossible]),
        (None, [Endless]),
        (None, [Unlucky]),
        (None, [int, str]),
        (lambda record, tasks: 0, [Order]),
    ],
)
def test_where_no_record_is_known_none_is_shown(by: Any, annotations: list[Any]) -> None:
    assert sample(by, *annotations) == ""

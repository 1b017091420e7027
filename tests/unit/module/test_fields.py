"""A depot that is partitioned by what its records do not have is noticed when its module is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest

from stretto import Depot, Module, hash_by, stream
from stretto.errors import DeclarationError
from stretto.module.fields import fields_of


@dataclass
class Order:
    customer: str
    land: str = "de"


class Renamed(msgspec.Struct, rename="camel"):
    customer_id: str


class Deposit(msgspec.Struct, tag="deposit"):
    account: str


class Expiry(msgspec.Struct, tag="expiry"):
    before: int


class Listed(msgspec.Struct, array_like=True):
    customer: str


class Named(NamedTuple):
    customer: str


class Typed(TypedDict, total=False):
    customer: str


def taking(annotation: Any) -> Callable[[Any, Any], None]:
    def take(self: Any, record: Any) -> None:
        pass

    take.__annotations__["record"] = annotation
    return take


def declare(by: Any, *annotations: Any, of: Any = Any) -> None:
    depot = Depot(of, partition_by=by)
    names = {f"take{number}": stream(depot)(taking(each)) for number, each in enumerate(annotations)}
    type("Shop", (Module,), {"orders": depot, **names})


@pytest.mark.parametrize(
    ("by", "annotations", "sentence"),
    [
        ("custmer", [Order], r"'custmer', .* \(take0 says Order\); did you mean customer\?"),
        ("customer_id", [Renamed], r"did you mean customerId\?"),
        (hash_by("land", "city"), [Order], r"'city', a field .* there are customer, land"),
        ("user", [Deposit | Expiry], r"there are account, before, type"),
        ("user", [Order, Typed], r"\(take0 says Order, take1 says Typed\)"),
        ("customer", [Listed], "such a record has none"),
        ("customer", [Named], "such a record has none"),
        ("customer", [str], "such a record has none"),
        ("customer", [list[Order]], "such a record has none"),
    ],
)
def test_a_field_that_no_annotation_has_is_refused(by: Any, annotations: list[Any], sentence: str) -> None:
    with pytest.raises(DeclarationError, match=rf"Shop.orders: it is partitioned by .*{sentence}"):
        declare(by, *annotations)


def test_the_type_of_the_depot_tells_more_than_those_of_functions() -> None:
    with pytest.raises(DeclarationError, match=r"by 'account', .* \(the Depot says Order\)"):
        declare("account", Deposit, of=Order)
    declare("customer", Deposit, of=Order)


@pytest.mark.parametrize(
    ("by", "annotations"),
    [
        ("customer", [Order]),
        ("customer", [Typed]),
        ("customerId", [Renamed]),
        ("type", [Deposit | Expiry]),
        ("account", [Deposit | Expiry]),
        ("account", [Order, Deposit]),
        ("anything", [dict[str, int]]),
        ("anything", [Any]),
        ("anything", [bytes]),
        ("anything", [Order, dict]),
        ("anything", []),
        (lambda record, tasks: 0, [Order]),
        (None, [str]),
    ],
)
def test_a_field_that_records_may_have_is_taken(by: Any, annotations: list[Any]) -> None:
    declare(by, *annotations)


def test_fields_of_a_list_that_is_decoded_at_once_are_those_of_its_elements() -> None:
    def take(self: Any, records: list[Order]) -> None:
        pass

    depot = Depot(partition_by="custmer")
    with pytest.raises(DeclarationError, match="did you mean customer"):
        type("Shop", (Module,), {"orders": depot, "take": stream(depot, batch=True)(take)})
    assert fields_of(Order) == frozenset({"customer", "land"})

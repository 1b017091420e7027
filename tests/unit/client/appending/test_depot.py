"""Values go where the depot's declaration says, and bytes only where nobody has to look into them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, assert_type

import msgspec
import pytest

import stretto
import stretto.testing
from stretto import Depot, Module, PState, connect
from stretto.client import Client, DepotAppender
from stretto.control import ModuleDescription
from stretto.errors import UsageError
from stretto.module.partition import task_of
from stretto.specs.modules import DepotSpec
from tests.unit.client.workers import MODULE, FakeWorker

SECONDS = 10


@dataclass
class Order:
    customer: str
    amount: int = 1


class Refund(msgspec.Struct, tag="refund"):
    customer: str


class Voucher(msgspec.Struct, tag="voucher"):
    customer: str


class Shop(Module, name=MODULE):
    orders = Depot(Order, partition_by="customer")
    refunds: Depot[Refund | Voucher] = Depot(Refund | Voucher, partition_by="customer")
    anything = Depot()
    totals = PState(dict[str, int])


class Branch(Shop, name="branch"):
    pass


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    worker = FakeWorker()
    depots = (Shop.orders.spec, Shop.refunds.spec, Shop.anything.spec, DepotSpec(name="one", rule="global"))
    worker.description = ModuleDescription(tasks=2, depots=depots)
    yield worker
    worker.close()


@pytest.fixture
def client(worker: FakeWorker) -> Iterator[Client]:
    client = connect([worker.address])
    yield client
    client._network.close()


def taken(worker: FakeWorker) -> dict[int, list[Any]]:
    """By task, which is a group here."""
    found: dict[int, list[Any]] = {}
    for group, _, _, records in worker.taken:
        found.setdefault(group.group, []).extend(map(msgspec.json.decode, records))
    return found


def test_values_go_to_the_tasks_of_their_keys(worker: FakeWorker, client: Client) -> None:
    customers = [f"customer-{number}" for number in range(20)]
    with client.depot(Shop.orders) as orders:
        for customer in customers:
            _ack = orders.append(Order(customer))
    assert {task: {each["customer"] for each in found} for task, found in taken(worker).items()} == {
        task: {each for each in customers if task_of(each, 2) == task} for task in (0, 1)
    }


def test_type_checkers_hold_who_appends_to_what_the_depot_declares(client: Client) -> None:
    """By the comments: mypy would miss each of them if it said nothing there."""
    orders = client.depot(Shop.orders)
    assert_type(orders, DepotAppender[Order])
    assert_type(client.depot(Shop.refunds), DepotAppender[Refund | Voucher])
    assert_type(client.depot(Shop.anything), DepotAppender[Any])
    assert_type(client.depot(MODULE, "orders"), DepotAppender[Any])
    _ack = orders.append(Refund("ann"))  # type: ignore[arg-type]
    _ack = orders.append({"customer": "ann"})  # type: ignore[arg-type]
    client.depot(Shop.refunds).append(Refund("ann")).result(SECONDS)
    client.depot(Shop.anything).append({"any": "thing"}).result(SECONDS)
    client.depot(Shop.orders, ack="all").append_and_wait(Order("ann"))
    orders.close()


def test_what_is_no_depot_of_a_module_is_told(client: Client) -> None:
    with pytest.raises(UsageError, match=r"Depot\(partition_by=None\) is of no module; .* as Shop.orders"):
        client.depot(Depot())
    with pytest.raises(UsageError, match=r"is no depot; give one of a module's class, as Shop.orders"):
        client.depot(Shop.totals)  # type: ignore[call-overload]


def test_a_depot_that_is_inherited_is_of_the_class_that_is_asked(client: Client) -> None:
    assert Branch.orders.owner is Branch
    assert (Shop.orders.owner, Branch.orders.spec) == (Shop, Shop.orders.spec)
    with pytest.raises(UsageError, match="there is no module branch; there is m"):
        client.depot(Branch.orders)
    client.depot(Branch.orders, module=MODULE).append(Order("ann")).result(SECONDS)


def test_how_a_depot_is_declared_is_asked_once_and_not_at_all_if_records_say_their_task(
    worker: FakeWorker, client: Client
) -> None:
    producer = client.producer(MODULE, "anything", linger_ms=0)
    producer.append(b"1", task=0).result(SECONDS)
    assert worker.asked == 0
    for _ in range(3):
        producer.append(b"2").result(SECONDS)
        producer.append_and_wait(b"3")
        producer.append_batch([b"4"]).result(SECONDS)
    assert worker.asked == 1


def test_bytes_that_do_not_tell_their_task_are_refused_and_those_of_one_task_go_there(
    worker: FakeWorker, client: Client
) -> None:
    producer = client.producer(MODULE, "orders")
    for append in (producer.append, producer.append_and_wait, lambda each: producer.append_batch([each])):
        with pytest.raises(UsageError, match=r"depot orders is partitioned by 'customer', and bytes do not"):
            append(b"{}")
    one = client.producer(MODULE, "one", linger_ms=0)
    for number in range(4):
        one.append(b"%d" % number).result(SECONDS)
        one.append_and_wait(b"%d" % number)
    assert taken(worker) == {0: [0, 0, 1, 1, 2, 2, 3, 3]}


def test_a_callback_that_cannot_wait_to_be_told_is_told_what_to_say(
    worker: FakeWorker, client: Client
) -> None:
    """It would wait for its own thread, until the time is over."""
    told: list[str] = []

    def append() -> None:
        try:
            _ack = client.producer(MODULE, "anything").append(b"{}")
        except UsageError as error:
            told.append(str(error))

    client._network.call(append)
    stretto.testing.eventually(lambda: told)
    assert told == ["a callback says task=... with what it appends: it cannot wait to be told"]
    assert not worker.taken


def test_the_partitioner_is_where_its_docs_say() -> None:
    assert stretto.Partitioner(Shop.orders, 2).place(Order("ann")).task == task_of("ann", 2)

"""A value goes to the same task whoever appends it: the clients, REST, the command line, tests of modules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

import stretto.testing
from stretto import connect, connect_async
from stretto.client import Client
from stretto.errors import UsageError
from stretto.testing.clusters import ClusterUnderTest, LaunchedModule
from tests.integration.ui.serving import Served
from tests.support import placements
from tests.support.commands import stretto as command
from tests.support.placements import ANY, CASES, TASKS, Case, Expected, Placed, Refused

MODULE = "Placed"
SECONDS = 60.0

Appending = Callable[[Case], str]
"""Appends a case; returns why it was refused, or nothing."""


@pytest.fixture(scope="module")
def bootstrap(served: Served) -> Iterator[str]:
    """Addresses of a cluster that has the module of the table."""
    addresses = ",".join(served.cluster.bootstrap)
    sizes = ("--tasks", str(TASKS), "--threads", "2", "--workers", "1", "--replication-factor", "1")
    file = str(Path(placements.__file__).resolve())
    launched = command("deploy", "launch", "--module", file, *sizes, "--bootstrap", addresses)
    assert launched.code == 0, launched.err
    yield addresses
    gone = command("deploy", "destroy", MODULE, "--yes", "--bootstrap", addresses)
    assert gone.code == 0, gone.err


@pytest.fixture(scope="module")
def client(bootstrap: str) -> Iterator[Client]:
    with connect(bootstrap.split(",")) as client:
        yield client


def refusal(append: Callable[[], object]) -> str:
    try:
        append()
    except UsageError as error:
        return str(error)
    return ""


def by_class(client: Client) -> Appending:
    def append(case: Case) -> str:
        depot = client.depot(getattr(Placed, case.depot), linger_ms=0)
        return refusal(lambda: depot.append(case.by("class")).result(SECONDS))

    return append


def by_names(client: Client) -> Appending:
    def append(case: Case) -> str:
        depot = client.depot(MODULE, case.depot, linger_ms=0)
        return refusal(lambda: depot.append_and_wait(case.by("names")))

    return append


def by_asyncio(client: Client) -> Appending:
    async def appended(case: Case) -> None:
        async with await connect_async([address(client)]) as connected:
            depot = await connected.depot(getattr(Placed, case.depot), linger_ms=0)
            await depot.append(case.by("asyncio"))

    return lambda case: refusal(lambda: asyncio.run(appended(case)))


def address(client: Client) -> str:
    return next(iter(client._network.view.addresses.values()))


def by_cluster_fixture(client: Client) -> Appending:
    on = SimpleNamespace(connect=lambda: client)
    launched = LaunchedModule(cast("ClusterUnderTest", on), Placed, MODULE, TASKS)
    return lambda case: refusal(lambda: launched.append(case.depot, case.by("fixture")))


def by_rest(served: Served) -> Appending:
    def append(case: Case) -> str:
        path = f"/modules/{MODULE}/depots/{case.depot}/records"
        answer = served.send("POST", path, {"records": [case.plain("REST")]})
        return "" if answer.is_success else str(answer.json()["detail"])

    return append


def by_command_line(bootstrap: str) -> Appending:
    def append(case: Case) -> str:
        record = msgspec.json.encode(case.plain("command line")).decode()
        done = command("append", MODULE, case.depot, record, "--bootstrap", bootstrap)
        return done.err if done.code else ""

    return append


def check(client: Client, way: str, append: Appending, *, has_function: bool) -> None:
    refusals = {case.name: append(case) for case in CASES}
    tasks = {case.name: None for case in CASES} | found(client, way)
    outcomes = {
        case.name: (case.expected_by(has_function=has_function), tasks[case.name], refusals[case.name])
        for case in CASES
    }
    assert {name: each for name, each in outcomes.items() if not is_right(*each)} == {}


def found(client: Client, way: str) -> dict[str, int]:
    """The task of each case that was appended by that way."""
    tasks: dict[str, int] = {}
    for depot in {case.depot for case in CASES}:
        for record in client.reader(MODULE, depot).read_all():
            value = msgspec.json.decode(record.data)
            if value["way"] == way:
                assert value["case"] not in tasks, f"{value['case']} is there twice"
                tasks[value["case"]] = record.task
    return tasks


def is_right(expected: Expected, task: int | None, refusal: str) -> bool:
    if isinstance(expected, Refused):
        return task is None and expected.why in refusal
    return not refusal and task is not None and (expected is ANY or task == expected)


@pytest.mark.timeout(300)
def test_the_clients_choose_the_tasks_of_the_table(client: Client) -> None:
    check(client, "class", by_class(client), has_function=True)
    check(client, "names", by_names(client), has_function=False)
    check(client, "asyncio", by_asyncio(client), has_function=True)
    check(client, "fixture", by_cluster_fixture(client), has_function=True)


def test_the_rest_api_chooses_the_tasks_of_the_table(served: Served, client: Client) -> None:
    check(client, "REST", by_rest(served), has_function=False)


@pytest.mark.timeout(300)
def test_the_command_line_chooses_the_tasks_of_the_table(client: Client, bootstrap: str) -> None:
    check(client, "command line", by_command_line(bootstrap), has_function=False)


def test_bytes_are_refused_where_a_record_chooses_its_task(client: Client) -> None:
    """They used to be dealt to the tasks in turn, where what they change is not."""
    why = r"depot by_field is partitioned by 'key', and bytes do not tell their task: .* or say task="
    for append in (
        client.producer(MODULE, "by_field").append,
        client.producer(MODULE, "by_field").append_and_wait,
        lambda record: client.producer(MODULE, "by_field").append_batch([record]),
        client.depot(Placed.by_field).append,
    ):
        with pytest.raises(UsageError, match=why):
            append(b"{}")
    with pytest.raises(UsageError, match="partitioned by a function of its module, and bytes"):
        _ack = client.producer(MODULE, "by_function").append(b"{}")

    async def awaited() -> None:
        async with await connect_async([address(client)]) as connected:
            producer = await connected.producer(MODULE, "by_field")
            with pytest.raises(UsageError, match=why):
                _ack = producer.append(b"{}")

    asyncio.run(awaited())


def test_bytes_that_say_their_task_and_those_of_depots_that_do_not_look_into_them_are_taken(
    client: Client,
) -> None:
    record = b'{"way": "bytes", "case": "%s"}'
    client.producer(MODULE, "by_field").append(record % b"keyed", task=5).result(SECONDS)
    client.depot(Placed.by_field).append(record % b"keyed value", task=6).result(SECONDS)
    client.producer(MODULE, "on_one").append(record % b"one").result(SECONDS)
    client.producer(MODULE, "on_one").append_and_wait(record % b"one, waiting")
    client.depot(Placed.anywhere).append(record % b"any").result(SECONDS)
    tasks = found(client, "bytes")
    assert tasks.pop("any") in range(TASKS)
    assert tasks == {"keyed": 5, "keyed value": 6, "one": 0, "one, waiting": 0}


def test_a_class_that_says_otherwise_than_the_cluster_is_told(client: Client) -> None:
    class Other(stretto.Module, name=MODULE):
        by_field = stretto.Depot(partition_by="user")
        by_feld = stretto.Depot(partition_by="key")

    with pytest.raises(UsageError, match="has another partition_by on the cluster than in the class given"):
        client.depot(Other.by_field)
    with pytest.raises(UsageError, match="module Placed has no depot by_feld; did you mean by_field"):
        client.depot(Other.by_feld)
    with pytest.raises(UsageError, match="say which depot of module Placed"):
        client.depot(MODULE)  # type: ignore[call-overload]

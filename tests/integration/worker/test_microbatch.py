"""Microbatches on real workers: transfers between accounts on different tasks, each booked exactly once."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from stretto import control
from stretto.client import connect_async
from stretto.errors import OutcomeUnknown, ProcessingFailed, StrettoError
from stretto.module.partition import owner_of
from stretto.network.asking import ask
from stretto.options import CLUSTER
from stretto.vocabulary.types import TaskId
from stretto.zk.watches.options import set_options
from tests.support.cluster import DEADLINE_SECONDS, MODULE, Cluster, Code
from tests.support.commands import Done, stretto
from tests.support.waiting import wait_until

BANK = """
    from stretto import Depot, Module, PState, microbatch, step

    class Bank(Module):
        orders = Depot(partition_by="account")
        balances = PState(dict[str, int])
        booked = PState(dict[str, int])

        @microbatch(orders)
        def book(self, order):
            if order["amount"] <= 0:
                raise ValueError("moves nothing")
            self.booked.increment(order["account"])
            self.receive.at(order["to"])(order["to"], order["amount"])
            return self.balances.increment(order["account"], by=-order["amount"])

        @step
        def receive(self, account: str, amount: int) -> None:
            if amount == 666:
                raise ValueError("not that amount")
            while amount == 777:
                pass
            self.balances.increment(account, by=amount)
"""
ACCOUNTS = [f"account-{number}" for number in range(40)]


class Orders:
    """What was ordered, and what has to come of it."""

    def __init__(self, cluster: Cluster, seed: int = 1) -> None:
        self._client = cluster.connect()
        self._tasks = cluster.assignment.tasks
        self._random = random.Random(seed)
        self._producer = self._client.producer(MODULE, "orders", batch_records=20, linger_ms=2)
        self.balances: Counter[str] = Counter()
        self.booked: Counter[str] = Counter()

    def send(self, count: int) -> None:
        for _ in range(count):
            account, to = self._random.sample(ACCOUNTS, 2)
            amount = self._random.randint(1, 500)
            self.send_one(account, to, amount)
            self.balances[account] -= amount
            self.balances[to] += amount
            self.booked[account] += 1

    def send_one(self, account: str, to: str, amount: int) -> None:
        """Of which nothing has to come."""
        order = msgspec.json.encode({"account": account, "to": to, "amount": amount})
        _ack = self._producer.append(order, task=owner_of(account, self._tasks))

    def settle(self) -> None:
        """Every order is in its depot, once."""
        self._producer.close(120)

    def check(self, cluster: Cluster, seconds: float = DEADLINE_SECONDS) -> None:
        """All are booked, each once."""
        booked, count = self._client.pstate(MODULE, "booked"), self.booked.total()
        try:
            wait_until("all are booked", lambda: sum(dict(booked.items()).values()) >= count, seconds)
            wait_until("microbatches are idle", lambda: _is_idle(cluster), seconds)
        except AssertionError as late:
            raise AssertionError(f"{late}; of {count} orders, {view_of(cluster)}") from late
        assert dict(self._client.pstate(MODULE, "booked").items()) == self.booked
        found = dict(self._client.pstate(MODULE, "balances").items())
        assert sum(found.values()) == 0
        assert {account: found.get(account, 0) for account in ACCOUNTS} == {
            account: self.balances[account] for account in ACCOUNTS
        }


def view_of(cluster: Cluster) -> control.MicrobatchView | None:
    """By the leader of task 0; None while there is none."""
    network = cluster.connect()._network
    group = next(number for number, plan in enumerate(cluster.plans) if TaskId(0) in plan.tasks)
    try:
        views = ask(network, cluster.leader(group).address, control.Microbatches(module=MODULE), timeout=2.0)
    except StrettoError:
        return None
    finally:
        network.close()
    return views[0] if views else None


def failures_of(cluster: Cluster) -> list[control.FailureView]:
    network = cluster.connect()._network
    return [
        each
        for number in range(len(cluster.plans))
        for each in ask(
            network, cluster.leader(number).address, control.Failures(group=cluster.key_of(number))
        ).parked
    ]


def settle(cluster: Cluster, failures: list[control.FailureView], *, again: bool) -> int:
    network = cluster.connect()._network
    count = 0
    for number, plan in enumerate(cluster.plans):
        keys = tuple(
            control.FailureKey(topology=each.topology, depot=each.depot, task=each.task, offset=each.offset)
            for each in failures
            if each.task in plan.tasks
        )
        call = control.SettleFailures(group=plan.key, keys=keys, again=again)
        count += ask(network, cluster.leader(number).address, call)
    return count


def _id_of(cluster: Cluster) -> int:
    view = view_of(cluster)
    return 0 if view is None else view.id


def _is_idle(cluster: Cluster) -> bool:
    view = view_of(cluster)
    return view is not None and (view.phase, view.lag, view.why) == ("idle", 0, "")


def bank(start: Callable[..., Cluster], tmp_path: Path, **options: object) -> Cluster:
    code = Code(tmp_path / "code", BANK, "Bank")
    given = {"topology.microbatch.interval.millis": 5, "topology.microbatch.max.records": 50, **options}
    return start(code=code, tasks=4, groups=2, options=given)


@pytest.mark.soak
def test_every_transfer_is_booked_once_although_leaders_are_killed(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = bank(start, tmp_path)
    orders = Orders(cluster)
    for group in (0, 1):
        orders.send(1_000)
        wait_until("microbatches are under way", lambda: _id_of(cluster) > 2)
        cluster.leader(group).kill()
        orders.send(500)
        cluster.heal()
    orders.settle()
    orders.check(cluster)
    cluster.check_replicas_agree()


def test_orders_that_fail_are_left_out_and_kept_for_people(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = bank(start, tmp_path, **{"topology.microbatch.retries": 1})
    orders = Orders(cluster)
    orders.send(50)
    orders.send_one("account-1", "account-2", -5)
    orders.send_one("account-3", "account-4", 666)
    orders.send(50)
    orders.settle()
    orders.check(cluster)
    assert sum(worker.said("microbatch_retried") for worker in cluster.workers.values()) >= 2
    parked = failures_of(cluster)
    assert sorted((each.topology, each.attempts, each.error) for each in parked) == [
        ("book", 2, "ValueError: moves nothing"),
        ("book", 2, "ValueError: not that amount"),
    ]
    assert ["-5" in each.record or "666" in each.record for each in parked] == [True, True]
    assert all("raise ValueError" in each.traceback for each in parked)
    with pytest.raises(StrettoError, match="append them again"):
        settle(cluster, parked, again=True)
    elsewhere = [msgspec.structs.replace(each, offset=each.offset + 1_000) for each in parked]
    assert settle(cluster, elsewhere, again=False) == 0
    assert settle(cluster, [*parked, *elsewhere, *parked], again=False) == 2
    assert failures_of(cluster) == []
    assert settle(cluster, parked, again=False) == 0


def test_who_waits_for_all_topologies_finds_what_microbatches_did_and_is_told_what_they_returned(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    """The interval is an hour: nobody who waits is kept waiting for it."""
    given = {"topology.microbatch.retries": 0, "topology.microbatch.interval.millis": 3_600_000}
    cluster = bank(start, tmp_path, **given)
    client, tasks = cluster.connect(), cluster.assignment.tasks
    balances = client.pstate(MODULE, "balances")

    def order(account: str, to: str, amount: int) -> bytes:
        return msgspec.json.encode({"account": account, "to": to, "amount": amount})

    expected: Counter[str] = Counter()
    with client.producer(MODULE, "orders", ack="all") as producer:
        for payer, payee in itertools.permutations(ACCOUNTS[:5], 2):
            expected.update({payer: -7, payee: 7})
            task = owner_of(payer, tasks)
            told = producer.append(order(payer, payee, 7), task=task).result(DEADLINE_SECONDS)
            assert told == {"book": expected[payer]}
            assert [balances.get(each) for each in (payer, payee)] == [expected[payer], expected[payee]]
        payer = ACCOUNTS[6]
        many = [order(payer, ACCOUNTS[7], 1) for _ in range(120)]
        acks = [producer.append(each, task=owner_of(payer, tasks)) for each in many]
        # More than a microbatch takes of a task.
        assert [ack.result(DEADLINE_SECONDS)["book"] for ack in acks] == [-1 - each for each in range(120)]
        wrong = producer.append(order("account-1", "account-2", -5), task=owner_of("account-1", tasks))
        with pytest.raises(ProcessingFailed, match="book failed on the record: ValueError: moves nothing"):
            wrong.result(DEADLINE_SECONDS)

    async def pay() -> list[dict[str, int]]:
        async with await connect_async(cluster.addresses()) as asking:
            waiting = await asking.producer(MODULE, "orders", ack="all")
            pays = order("account-8", "account-9", 5)
            paid = await waiting.append(pays, task=owner_of("account-8", tasks))
            not_waiting = await asking.producer(MODULE, "orders", ack="streams")
            return [paid, await not_waiting.append(pays, task=owner_of("account-8", tasks))]

    assert asyncio.run(pay()) == [{"book": -5}, {}]

    def command(*args: str) -> Done:
        return stretto(*args, "--bootstrap", ",".join(cluster.addresses()))

    pays = order("account-10", "account-11", 5).decode()
    assert command("append", MODULE, "orders", pays).out == "appended 1 record\nbook returned -5\n"
    assert command("append", MODULE, "orders", pays, "--ack", "streams").out == "appended 1 record\n"
    nothing = command("failures", MODULE, "--offset", "98765", "--forget")
    assert (nothing.code, nothing.out) == (1, "")
    assert "no such record is parked, so nothing was done" in nothing.err
    assert command("failures", MODULE, "--forget").out == f"forgot 1 record of {MODULE}\n"


class Payer(threading.Thread):
    """Pays 1 again and again, each time when it was told of the last; knows what it may be told."""

    def __init__(self, cluster: Cluster, account: str) -> None:
        super().__init__(name=account, daemon=True)
        self._producer = cluster.connect().producer(
            MODULE, "orders", ack="all", linger_ms=0, timeout_ms=10_000
        )
        self._task = owner_of(account, cluster.assignment.tasks)
        self._order = msgspec.json.encode({"account": account, "to": "account-39", "amount": 1})
        #: More than one after an order whose outcome it does not know.
        self.balances = {0}
        self.told = 0
        self.wrong: list[object] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.is_set():
            may_be = {balance - 1 for balance in self.balances}
            try:
                told = self._producer.append(self._order, task=self._task).result(DEADLINE_SECONDS)
            except OutcomeUnknown:
                self.balances |= may_be
                continue
            self.told += 1
            if told.get("book") not in may_be:
                self.wrong.append((told, may_be))
            self.balances = {told.get("book", 1)}


@pytest.mark.soak
def test_who_waits_is_told_the_truth_or_nothing_although_leaders_are_killed(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = bank(start, tmp_path)
    payers = [Payer(cluster, account) for account in ACCOUNTS[:6]]
    for payer in payers:
        payer.start()
    for group in (0, 1):
        before = sum(payer.told for payer in payers)
        wait_until("orders are booked", lambda: sum(payer.told for payer in payers) > before + 20)  # noqa: B023
        cluster.leader(group).kill()
        cluster.heal()
    before = sum(payer.told for payer in payers)
    wait_until("orders are booked again", lambda: sum(payer.told for payer in payers) > before + 20)
    for payer in payers:
        payer.is_over.set()
    for payer in payers:
        payer.join(DEADLINE_SECONDS)
    assert [payer.wrong for payer in payers] == [[]] * len(payers)
    wait_until("microbatches are idle", lambda: _is_idle(cluster))
    balances = cluster.connect().pstate(MODULE, "balances")
    for payer in payers:
        assert balances.get(payer.name) in payer.balances


@pytest.mark.soak
def test_an_order_that_hangs_on_another_task_is_found_and_left_out(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    given = {"topology.microbatch.retries": 0, "executor.timeout.millis": 2_000}
    cluster = bank(start, tmp_path, **given)
    orders = Orders(cluster)
    orders.send(50)
    orders.send_one("account-3", "account-4", 777)
    orders.send(50)
    orders.settle()
    orders.check(cluster, 120)
    (parked,) = failures_of(cluster)
    assert parked.error == "ran longer than 2 s, and was killed"
    assert "777" in parked.record


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_what_an_unclean_election_took_from_a_committed_microbatch_is_told_and_the_next_ones_go_on(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    """Group 0 has the commit; what it makes visible on task 3 was on one worker only, which is gone."""
    payer, receiver = (
        next(each for each in ACCOUNTS if owner_of(each, 4) in tasks) for tasks in ((0, 1), (3,))
    )
    given = {"replication.min.isr": 1, "replication.max.time.lag.millis": 500}
    code = Code(tmp_path / "code", BANK, "Bank")
    cluster = start(code=code, workers=4, tasks=4, groups=3, factor=2, options=given)
    lost, (empty,) = cluster.leader(2), cluster.followers(2)
    empty.kill()
    cluster.wait_isr([lost.name], 2)

    def pay(amount: int) -> None:
        with cluster.connect().producer(MODULE, "orders") as producer:
            order = msgspec.json.encode({"account": payer, "to": receiver, "amount": amount})
            producer.append(order, task=owner_of(payer, 4)).result(DEADLINE_SECONDS)

    def received() -> object:
        return cluster.connect().pstate(MODULE, "balances").get(receiver)

    pay(100)
    wait_until("it is booked", lambda: received() == 100)
    wait_until("microbatches are idle", lambda: _is_idle(cluster))
    lost.kill()
    set_options(cluster.operator, cluster.paths, CLUSTER, {"replication.unclean.election": True})
    empty.start()
    cluster.wait_led_by([empty.name], 2)
    # Whoever coordinates next makes sure that the latest microbatch took effect everywhere.
    coordinator, (other,) = cluster.leader(0), cluster.followers(0)
    coordinator.kill()
    cluster.wait_led_by([other.name], 0)
    coordinator.start()

    def parked() -> list[control.FailureView]:
        with suppress(StrettoError):
            return failures_of(cluster)
        return []

    wait_until("what is missing is told", parked)
    (missing,) = failures_of(cluster)
    assert (missing.topology, missing.task) == ("book", 3)
    assert "was lost in an unclean election; put it right by hand" in missing.error
    assert empty.said("microbatch_has_nothing_staged") == 1
    pay(7)
    wait_until("the next one is booked", lambda: received() == 7)
    assert cluster.connect().pstate(MODULE, "balances").get(payer) == -107


class Havoc(threading.Thread):
    """Kills leaders, pauses workers, and leaves groups with too few replicas, over and over.

    Every other time without waiting for the groups to recover from what was before.
    """

    def __init__(self, cluster: Cluster, rounds: int, seed: int) -> None:
        super().__init__(name="havoc", daemon=True)
        self._cluster = cluster
        self._rounds = rounds
        self._random = random.Random(seed)
        self.errors: list[BaseException] = []

    def run(self) -> None:
        try:
            for number in range(self._rounds):
                self._once(number)
                self._cluster.revive()
                if number % 2:
                    self._cluster.wait_healed()
        except BaseException as error:  # noqa: BLE001 - told by the test
            self.errors.append(error)

    def _once(self, number: int) -> None:
        cluster, group = self._cluster, self._random.randrange(2)
        match number % 4:
            case 0 | 2:
                cluster.leader(group).kill()
            case 1:
                paused = cluster.leader(group)
                paused.pause()
                others = [name for name in cluster.workers if name != paused.name]
                cluster.wait_led_by(others, group)
            case _:
                # Below min-ISR: nothing is applied, microbatches fail and are tried again.
                for follower in cluster.followers(group):
                    follower.kill()
                time.sleep(self._random.uniform(0.5, 3.0))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
def test_every_transfer_is_booked_once_whatever_happens(
    start: Callable[..., Cluster], tmp_path: Path, seed: int
) -> None:
    cluster = bank(start, tmp_path, **{"topology.microbatch.max.records": 500})
    orders = Orders(cluster, seed)
    havoc = Havoc(cluster, 12, seed)
    havoc.start()
    while havoc.is_alive():
        orders.send(50)
        havoc.join(0.1)
    assert havoc.errors == []
    orders.send(200)
    orders.settle()
    orders.check(cluster, 120)
    cluster.check_replicas_agree()

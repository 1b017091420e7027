"""A bank on a whole cluster, with orders that come all the time, and what a snapshot of it has to hold."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

import stretto.examples
from stretto.client import connect
from stretto.client.appending.producer import Producer
from stretto.errors import StrettoError
from stretto.module.partition import owner_of
from stretto.pstate import ordered
from stretto.snapshot.reading import open_snapshot
from tests.support.commands import Done
from tests.support.commands import stretto as run
from tests.support.waiting import wait_until

SOURCE = f"{Path(next(iter(stretto.examples.__path__))) / 'bank' / 'bank.py'}:Bank"
ACCOUNTS = [f"account-{number}" for number in range(60)]
MONEY = 1_000 * len(ACCOUNTS)
TASKS = 4
DEADLINE_SECONDS = 60.0


class Bank:
    """One module on a cluster, under a name of its own."""

    def __init__(self, bootstrap: Sequence[str], name: str) -> None:
        self.bootstrap = list(bootstrap)
        self.name = name

    def run(self, *args: str) -> Done:
        return run(*args, "--bootstrap", ",".join(self.bootstrap))

    def launch(self, *, threads: int = 2) -> None:
        shape = [
            "--tasks",
            str(TASKS),
            "--threads",
            str(threads),
            "--workers",
            "1",
            "--replication-factor",
            "3",
        ]
        done = self.run("deploy", "launch", "--module", SOURCE, "--name", self.name, *shape)
        assert done.code == 0, done

    def create(self, to: Path, *more: str) -> Done:
        return self.run("snapshot", "create", self.name, "--to", str(to), *more)

    def order(self, orders: Sequence[dict[str, object]]) -> None:
        with connect(self.bootstrap, timeout=DEADLINE_SECONDS) as client:
            producer = client.producer(self.name, "orders")
            acks = [
                producer.append(msgspec.json.encode(order), task=owner_of(order["account"], TASKS))
                for order in orders
            ]
            producer.flush()
            for ack in acks:
                ack.result(DEADLINE_SECONDS)

    def letters(self, producer: Producer, chance: random.Random, count: int) -> None:
        """Of a module that sends them; until all are taken."""
        pairs = [chance.sample(ACCOUNTS, 2) for _ in range(count)]
        acks = [
            producer.append(msgspec.json.encode({"sender": sender, "to": to}), task=owner_of(sender, TASKS))
            for sender, to in pairs
        ]
        producer.flush()
        for ack in acks:
            ack.result(DEADLINE_SECONDS)

    def pay_in(self) -> None:
        self.order([{"type": "deposit", "account": account, "amount": 1_000} for account in ACCOUNTS])

    @contextmanager
    def transfers(self, seed: int = 1) -> Iterator[Counter[str]]:
        """Orders go on and on; counts how many were taken."""
        stop, taken = threading.Event(), Counter[str]()
        failures: list[StrettoError] = []

        def load() -> None:
            chance = random.Random(seed)
            while not stop.is_set():
                pairs = [chance.sample(ACCOUNTS, 2) for _ in range(50)]
                try:
                    self.order(
                        [
                            {
                                "type": "transfer",
                                "account": account,
                                "to": to,
                                "amount": chance.randint(1, 90),
                            }
                            for account, to in pairs
                        ]
                    )
                except StrettoError as error:
                    failures.append(error)
                    return
                taken["orders"] += len(pairs)

        loading = threading.Thread(target=load, name="transfers")
        loading.start()
        try:
            wait_until("orders are taken", lambda: taken["orders"] > 0 or bool(failures), DEADLINE_SECONDS)
            yield taken
        finally:
            stop.set()
            loading.join()
        assert failures == []

    def settle(self, money: int) -> None:
        """Until all that was paid in is booked, and no transfer is half-way."""
        told: list[Done] = []

        def is_settled() -> bool:
            """What accounts hold, and what was paid in. Refused while leaders move."""
            told[:] = [self.run("query", self.name, "totals")]
            return told[0].code == 0 and json.loads(told[0].out) == [money, money]

        try:
            wait_until(f"accounts hold {money}, and so much was paid in", is_settled, DEADLINE_SECONDS)
        except AssertionError as late:
            status = self.run("module-status", self.name)
            raise AssertionError(f"{late}; {told}; {status.out}") from late


def transfer(chance: random.Random) -> dict[str, object]:
    account, to = chance.sample(ACCOUNTS, 2)
    return {"type": "transfer", "account": account, "to": to, "amount": chance.randint(1, 90)}


def rows_of(folder: Path, pstate: str) -> dict[str, int]:
    """What a PState of a snapshot holds."""
    found: dict[str, int] = {}
    with open_snapshot(folder) as snapshot:
        for task in snapshot.tasks:
            for page in snapshot.rows(task, pstate):
                keys = _parts(page.keys, page.key_ends)
                values = _parts(page.values, page.value_ends)
                for key, value in zip(keys, values, strict=True):
                    found[str(ordered.decode(key))] = msgspec.msgpack.decode(value, type=int)
    return found


def _parts(joined: bytes, ends: bytes) -> list[bytes]:
    positions = memoryview(ends).cast("I").tolist()
    return [joined[start:end] for start, end in zip([0, *positions], positions, strict=False)]

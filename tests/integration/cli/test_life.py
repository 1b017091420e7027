"""A module that runs is paused, resumed and updated, on a whole cluster, while it is used."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from stretto.client import connect
from stretto.errors import ModulePaused, StrettoError
from stretto.local.cluster import LocalCluster
from stretto.module.partition import task_of
from tests.support.commands import Done, stretto
from tests.support.waiting import wait_until

MODULE = """
from stretto import Depot, Module, PState, stream

class Ledger(Module):
    entries = Depot(partition_by="account")
    notes = Depot()
    totals = PState(dict[str, int])

    @stream(entries)
    def count(self, entry):
        self.totals.increment(entry["account"])
"""
DEADLINE_SECONDS = 60.0


class Life:
    """A module of its own on the shared cluster."""

    def __init__(self, cluster: LocalCluster, folder: Path, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.source = folder / "ledger.py"
        self.source.write_text(MODULE)

    @property
    def on(self) -> list[str]:
        return ["--bootstrap", self.cluster.bootstrap[0]]

    def launch(self) -> None:
        shape = ["--tasks", "4", "--threads", "2", "--workers", "1", "--replication-factor", "3"]
        # Leaders stay where they are, unless somebody moves them.
        shape += ["--option", "leadership.balance.threshold=10"]
        done = stretto(
            "deploy", "launch", "--module", str(self.source), "--name", self.name, *shape, *self.on
        )
        assert done.code == 0, done

    def deploy(self, verb: str, *more: str) -> Done:
        return stretto("deploy", verb, self.name, *more, *self.on)

    def append(self, account: str) -> Done:
        return stretto("append", self.name, "entries", json.dumps({"account": account}), *self.on)

    def accounts(self) -> list[str]:
        read = stretto("tail", self.name, "entries", "--from-start", "--no-follow", *self.on)
        assert read.code == 0, read
        return sorted(json.loads(line)["account"] for line in read.lines)

    def status(self) -> dict[str, object]:
        [view] = json.loads(stretto("module-status", self.name, "--json", *self.on).out)
        assert isinstance(view, dict)
        return view

    def groups(self) -> list[dict[str, object]]:
        groups = json.loads(stretto("task-groups-status", self.name, "--json", *self.on).out)
        assert isinstance(groups, list)
        return groups

    def leaders(self) -> list[tuple[object, object]]:
        return [(group["leader"], group["epoch"]) for group in self.groups()]

    def pids(self) -> dict[str, int]:
        files = self.cluster.folder.glob(f"node-*/run/{self.name}-*.json")
        return {found["worker"]: found["pid"] for found in (json.loads(file.read_text()) for file in files)}


@pytest.fixture
def life(whole_cluster: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Life]:
    life = Life(whole_cluster, tmp_path, f"l{abs(hash(request.node.name)) % 10_000}")
    life.launch()
    yield life
    assert life.deploy("destroy", "--yes").code == 0


def test_a_paused_module_refuses_records_at_once_serves_reads_and_stays_so_over_restarts(life: Life) -> None:
    name = life.name
    sentence = f"module {name} is paused and takes no records; resume it with 'stretto deploy resume {name}'"
    with connect(life.cluster.bootstrap) as client:
        producer = client.producer(life.name, "entries", linger_ms=0)
        producer.append(b'{"account": "a"}', task=0).result(DEADLINE_SECONDS)

        paused = life.deploy("pause")
        assert (paused.code, paused.err) == (0, "")
        assert paused.out == f"{life.name} is paused; 'stretto deploy resume {life.name}' lets it go on\n"
        with pytest.raises(ModulePaused, match=sentence):
            producer.append(b'{"account": "b"}', task=0).result(DEADLINE_SECONDS)
        refused = life.append("c")
        assert (refused.code, refused.err) == (1, f"stretto: the record was not appended: {sentence}\n")
        assert life.accounts() == ["a"]
        assert life.status()["state"] == "paused"
        assert {group["state"] for group in life.groups()} == {"paused"}

        before = life.pids()
        for pid in before.values():
            os.kill(pid, signal.SIGKILL)
        wait_until(
            "others have taken their places", lambda: not set(life.pids().values()) & set(before.values())
        )
        with pytest.raises(ModulePaused):
            client.producer(life.name, "entries", linger_ms=0).append(b"{}", task=1).result(DEADLINE_SECONDS)

        resumed = life.deploy("resume")
        assert (resumed.code, resumed.out) == (0, f"{life.name} runs\n")
        producer.append(b'{"account": "d"}', task=0).result(DEADLINE_SECONDS)
        assert life.append("e").code == 0
    assert life.accounts() == ["a", "d", "e"]
    told = json.loads(stretto("operations", "--module", life.name, "--json", *life.on).out)
    assert [each["what"] for each in told if each["what"] in ("pause", "resume")] == ["pause", "resume"]


NEW = """
from stretto import Depot, Module, PState, stream

class Ledger(Module):
    entries = Depot(partition_by="account")
    notes = Depot()
    totals = PState(dict[str, int])
    more = Depot()
    by_new_code = PState(dict[str, int])

    @stream(entries)
    def count(self, entry):
        self.totals.increment(entry["account"])
        self.by_new_code.increment(entry["account"])
"""
BREAKS_ON_NODES = (
    NEW
    + """
import os

def look():
    return os.environ["LEDGER_TEST_IS_HERE"]

look()
"""
)


class Load:
    """Appends and reads, one after the other, until it is told to stop; remembers what was acknowledged.

    A stream counts what comes: each record once, whatever code it met.
    """

    def __init__(self, life: Life) -> None:
        self._life = life
        self._stop = threading.Event()
        self.acknowledged: list[str] = []
        self.problems: list[StrettoError] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with connect(self._life.cluster.bootstrap) as client:
            producer = client.producer(self._life.name, "entries", linger_ms=0)
            reader = client.reader(self._life.name, "entries")
            number = 0
            while not self._stop.is_set():
                account = str(number % 50)
                task = task_of(account, 4)
                try:
                    producer.append(b'{"account": "%s"}' % account.encode(), task=task).result(
                        DEADLINE_SECONDS
                    )
                    self.acknowledged.append(account)
                    reader.read(task, 0)
                except StrettoError as error:
                    self.problems.append(error)
                number += 1

    def goes_on(self) -> None:
        reached = len(self.acknowledged) + 20
        wait_until("it goes on", lambda: len(self.acknowledged) >= reached, DEADLINE_SECONDS)


def test_new_code_is_taken_up_under_load_and_what_does_not_load_is_rolled_back(life: Life) -> None:
    leaders, pids = life.leaders(), life.pids()
    with connect(life.cluster.bootstrap) as client:
        origin = client.describe(life.name).origin
    with Load(life) as load:
        load.goes_on()
        life.source.write_text(BREAKS_ON_NODES)
        failed = stretto(
            "deploy",
            "update",
            life.name,
            "--module",
            str(life.source),
            *life.on,
            LEDGER_TEST_IS_HERE="yes",
        )
        assert (failed.code, failed.out) == (1, ""), failed
        *traceback, sentence = failed.err.splitlines()
        assert any(line.strip() == 'File "ledger.py", line 19, in look' for line in traceback), failed
        assert "KeyError: 'LEDGER_TEST_IS_HERE'" in traceback
        assert sentence.startswith("stretto: version 2 does not load on node ")
        assert sentence.endswith(f"; {life.name} still runs version 1")
        load.goes_on()

        life.source.write_text(NEW)
        updated = life.deploy("update", "--module", str(life.source))
        assert (updated.code, updated.out) == (0, f"{life.name} runs version 2 of its code\n"), updated
        load.goes_on()
        added = stretto("append", life.name, "more", "1", *life.on)
        assert added.code == 0, added
    assert load.problems == []
    assert life.leaders() == leaders
    assert life.pids() == pids
    assert life.accounts() == sorted(load.acknowledged)
    with connect(life.cluster.bootstrap) as client:
        assert client.describe(life.name).origin == origin != ""
        totals = client.pstate(life.name, "totals")
        wait_until(
            "every record is counted",
            lambda: sum(totals.get_many(set(load.acknowledged)).values()) >= len(load.acknowledged),
            DEADLINE_SECONDS,
        )
        assert dict(totals.items()) == Counter(load.acknowledged)
        by_new_code = dict(client.pstate(life.name, "by_new_code").items())
        assert 0 < sum(by_new_code.values()) < len(load.acknowledged)

    before = life.status()
    for code, refusal in (
        (
            NEW.replace("totals = PState(dict[str, int]", "totals = PState(dict[str, str]"),
            "PState totals has another type",
        ),
        (NEW.replace("    more = Depot()\n", ""), "does not declare depot more, whose data would be lost"),
    ):
        life.source.write_text(code)
        refused = life.deploy("update", "--module", str(life.source))
        assert (refused.code, refusal in refused.err) == (2, True), refused
    assert life.status() == before


def test_what_an_update_deletes_is_gone_on_all_replicas_and_its_name_can_be_used_again(life: Life) -> None:
    for _ in range(3):
        assert life.append("a").code == 0
        assert stretto("append", life.name, "notes", "1", *life.on).code == 0
    life.source.write_text("""
from stretto import Depot, Module

class Ledger(Module):
    entries = Depot(partition_by="account")
""")
    deletions = [word for name in ("notes", "count", "totals") for word in ("--delete", name)]
    updated = life.deploy("update", "--module", str(life.source), *deletions)
    assert (updated.code, updated.out) == (0, f"{life.name} runs version 2 of its code\n"), updated
    refused = stretto("append", life.name, "notes", "1", *life.on)
    assert (refused.code, "has no depot notes" in refused.err) == (2, True)

    life.source.write_text(MODULE + "# notes are back\n")

    def is_back() -> bool:
        """Refused as long as the old data is still going."""
        done = life.deploy("update", "--module", str(life.source))
        assert done.code == 0 or "the old data of " in done.err, done
        return done.code == 0

    wait_until("the name is free", is_back, DEADLINE_SECONDS)
    with connect(life.cluster.bootstrap) as client:
        described = client.describe(life.name)
        assert described.origin_of("notes") == f"{described.origin}.3" != described.origin_of("entries")
        reader = client.reader(life.name, "notes")
        assert [reader.bounds(task) for task in reader.tasks] == [(0, 0)] * 4
        with client.producer(life.name, "notes") as producer:
            producer.append(b"new", task=2).result(DEADLINE_SECONDS)
        assert [(record.task, record.offset) for record in reader.read_all()] == [(2, 0)]
        totals = client.pstate(life.name, "totals")
        wait_until("it is counted from the first record", lambda: totals.get("a") == 3, DEADLINE_SECONDS)
    assert life.accounts() == ["a"] * 3
    verified = stretto("verify", life.name, *life.on)
    assert verified.code == 0, verified

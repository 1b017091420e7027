"""A module that runs is paused, resumed and updated, on a whole cluster, while it is used."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.client import connect
from stretto.errors import ModulePaused
from stretto.local import LocalCluster
from tests.integration.cli.running import Done, stretto
from tests.integration.zk.waiting import wait_until

MODULE = """
from stretto import Depot, Module, PState

class Ledger(Module):
    entries = Depot(partition_by="account")
    notes = Depot()
    totals = PState(dict[str, int])
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

"""A whole cluster with a module and the Cluster UI beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from stretto import control
from stretto.cli.cluster import reach
from stretto.local.cluster import LocalCluster
from stretto.supervisor.children import RunFile
from stretto.zk.server.embedded import free_ports
from tests.support.commands import stretto
from tests.support.waiting import wait_until

MODULE = "Shown"
SOURCE = """
from typing import Any

from stretto import Depot, Module, PState, microbatch, query, stream

class Shown(Module):
    events = Depot(partition_by="user")
    counts = PState(dict[str, int])
    notes = PState(dict[str, dict[int, str]])
    totals = PState(dict[str, int])

    @stream(events, retry="none")
    def count(self, event: dict[str, Any]) -> None:
        if event["user"] == "unlucky":
            raise ValueError("no luck")
        self.counts.increment(str(event["user"]))
        if "note" in event:
            self.notes.set(str(event["user"]), int(event["number"]), value=str(event["note"]))

    @microbatch(events)
    def total(self, event: dict[str, Any]) -> int | None:
        if "counted" not in event:
            return None
        if event["user"] == "unlucky":
            raise ValueError("no luck here either")
        return self.totals.increment(str(event["user"]))

    @query(key="user")
    def seen(self, user: str, extra: int = 0) -> int:
        return self.counts.get(user, default=0) + extra
"""
GROUPS = 4
DEADLINE_SECONDS = 90.0
REQUEST_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Served:
    cluster: LocalCluster
    url: str

    def get(self, path: str) -> Any:
        return self.send("GET", path).raise_for_status().json()

    def send(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        content = None if body is None else msgspec.json.encode(body)
        return httpx.request(
            method, f"{self.url}/api/v1{path}", content=content, headers=headers, timeout=REQUEST_SECONDS
        )

    @contextmanager
    def killed(self, worker: str) -> Iterator[None]:
        """With no word to anybody, as a machine would lose it; nobody starts it again before the end."""
        [file] = self.cluster.folder.glob(f"node-*/run/{worker}.json")
        supervisor = self.cluster.folder / "run" / f"{file.parents[1].name}.json"
        os.kill(_pid(supervisor), signal.SIGSTOP)
        try:
            os.kill(_pid(file), signal.SIGKILL)
            yield
        finally:
            os.kill(_pid(supervisor), signal.SIGCONT)


def _pid(file: Path) -> int:
    return msgspec.json.decode(file.read_bytes(), type=RunFile).pid


@pytest.fixture(scope="session")
def served(whole_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("ui") / "module code"
    folder.mkdir()
    source = folder / "shown.py"
    source.write_text(SOURCE)
    bootstrap = ",".join(whole_cluster.bootstrap)
    sizes = ("--tasks", "8", "--threads", str(GROUPS), "--workers", "1", "--replication-factor", "3")
    launched = stretto("deploy", "launch", "--module", f"{source}:{MODULE}", *sizes, "--bootstrap", bootstrap)
    assert launched.code == 0, launched.err
    [port] = free_ports(1)
    with (folder / "ui.log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                *("-m", "stretto", "ui", "--bootstrap", bootstrap),
                *("--port", str(port), "--data-dir", str(folder / "data")),
            ],
            stdout=log,
            stderr=log,
        )
    served = Served(whole_cluster, f"http://127.0.0.1:{port}")
    try:
        wait_until("the UI answers", lambda: _answers(served, process, folder / "ui.log"), DEADLINE_SECONDS)
        yield served
    finally:
        process.terminate()
        assert process.wait(30) == 0
        with reach(bootstrap, None) as cluster:
            cluster.ask(control.Destroy(module=MODULE))


@pytest.fixture
def by_hand(served: Served) -> Iterator[None]:
    """The conductor moves no leader by itself."""

    def is_balanced() -> bool:
        view = served.get(f"/modules/{MODULE}/leadership")
        if view["state"] == "running" and view["switches"]:
            # By itself the conductor may look again in a minute only.
            served.send("POST", f"/modules/{MODULE}/leadership/balance")
        return bool(view["state"] == "running" and not view["switches"])

    wait_until("nothing is left to balance", is_balanced, DEADLINE_SECONDS)
    threshold = f"/options/leadership.balance.threshold?module={MODULE}"
    served.send("PUT", threshold, {"value": 10}).raise_for_status()
    yield
    served.send("DELETE", threshold).raise_for_status()


def _answers(served: Served, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    try:
        return {each["state"] for each in served.get(f"/modules/{MODULE}/groups")} == {"running"}
    except httpx.HTTPError:
        return False

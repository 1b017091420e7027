"""A cluster on one machine, where the machine is in trouble."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from stretto.errors import UsageError
from stretto.local.cluster import LocalCluster
from stretto.supervisor.children import Child, Children
from stretto.vocabulary.backoff import Backoff
from stretto.vocabulary.types import Millis, WorkerId
from stretto.zk.server.embedded import free_ports


def test_a_daemon_that_cannot_be_started_on_a_full_disk_is_tried_again_and_the_others_stay_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster(tmp_path, 1, port=0)
    cluster._daemons["conductor"].backoff = Backoff(first_ms=1, most_ms=30_000, at_once=1)
    told: list[str] = []
    cluster.tell = told.append
    tried: list[str] = []

    def start(_: Children, worker: WorkerId, *__: Any) -> None:
        tried.append(worker)
        if len(tried) < 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        cluster._loop.stop()

    monkeypatch.setattr(Children, "start", start)
    dead = Child(WorkerId("conductor"), "", "launch", 1, -1, Millis(cluster._loop.now), None)
    cluster._loop.call_soon(cluster._exited, dead, "signal SIGKILL")
    cluster._loop.run()
    assert tried == ["conductor"] * 3
    assert [line.partition(" and is")[0] for line in told] == [
        "conductor ended with signal SIGKILL",
        "conductor cannot be started (No space left on device)",
        "conductor cannot be started (No space left on device)",
    ]


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The commands of daemons that would be started, by their names."""
    started: dict[str, list[str]] = {}

    def start(_: Children, worker: WorkerId, __: str, ___: str, command: list[str], *____: Any) -> None:
        started[str(worker)] = command

    monkeypatch.setattr(Children, "start", start)
    return started


def begin(folder: Path, **more: Any) -> LocalCluster:
    """Start a cluster whose watcher is killed at once."""
    cluster = LocalCluster(folder, 1, port=0, has_ui=True, **more)
    try:
        cluster._begin()
    finally:
        os.close(cluster._lock)
        cluster._loop.close()
    return cluster


def test_the_ui_listens_where_it_did_before_unless_another_port_is_asked_for(
    tmp_path: Path, no_processes: dict[str, list[str]]
) -> None:
    first = begin(tmp_path, ui_port=0)
    assert first.ui is not None
    port = first.ui.rpartition(":")[2]
    assert no_processes["ui"][no_processes["ui"].index("--port") + 1] == port
    assert begin(tmp_path).ui == begin(tmp_path, ui_port=0).ui == first.ui
    [other] = free_ports(1)
    assert begin(tmp_path, ui_port=other).ui == begin(tmp_path).ui == f"http://127.0.0.1:{other}"


def test_a_port_that_is_refused_is_not_remembered(tmp_path: Path, no_processes: dict[str, list[str]]) -> None:
    first = begin(tmp_path, ui_port=0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port}, where ui is to listen, is in use"):
            begin(tmp_path, ui_port=port)
    assert begin(tmp_path).ui == first.ui


def test_a_daemon_that_refuses_to_run_is_told_with_its_sentence(
    tmp_path: Path, no_processes: dict[str, list[str]]
) -> None:
    cluster = LocalCluster(tmp_path, 1, port=0)
    told: list[str] = []
    cluster.tell = told.append
    log_file = cluster.log_of("conductor")
    log_file.parent.mkdir()
    dead = Child(WorkerId("conductor"), "", "launch", 1, -1, Millis(cluster._loop.now), None)
    for text in ("{}\nstretto: the disk is full; make room\n", '{"event": "stopped"}\n', ""):
        log_file.write_text(text)
        cluster._exited(dead, "exit code 1")
    os.close(cluster._lock)
    cluster._loop.close()
    assert [line.partition(" and is started again")[0] for line in told] == [
        "conductor ended with exit code 1 (the disk is full; make room)",
        "conductor ended with exit code 1",
        "conductor ended with exit code 1",
    ]

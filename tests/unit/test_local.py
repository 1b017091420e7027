"""A cluster on one machine, where the machine is in trouble."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from stretto import local
from stretto.local import LocalCluster
from stretto.types import Millis, WorkerId
from stretto.worker.children import Child, Children


def test_a_daemon_that_cannot_be_started_on_a_full_disk_is_tried_again_and_the_others_stay_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "RESTART_MS", 1)
    cluster = LocalCluster(tmp_path, 1, port=0)
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

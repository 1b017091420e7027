"""A worker goes by what its command line said, and is found by its launch before and after it became one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stretto.types import WorkerId
from stretto.worker.children import _pid_of
from stretto.worker.settings import WorkerSettings

LAUNCH = "0123456789abcdef"
SETTINGS = WorkerSettings(
    worker=WorkerId("counts-0"),
    module="counts",
    data_dir=Path("data/ü 'n' \"m\""),
    zookeeper="127.0.0.1:2181",
    address="127.0.0.1:0",
    advertise=None,
    node="node-1",
    cluster="stretto",
    root="/stretto",
    key=Path("cluster.key"),
    credentials=None,
    session_timeout_ms=10_000,
    artifacts=None,
    launch=LAUNCH,
    node_dir=Path("/data"),
)


def test_settings_pass_a_command_line_unchanged() -> None:
    *program, words = SETTINGS.command()
    assert program == [sys.executable, "-P", "-m", "stretto.worker"]
    assert WorkerSettings.decode(words) == SETTINGS


@pytest.mark.parametrize(
    "arguments", [["worker", "--launch", LAUNCH, "--id", "a"], SETTINGS.command()[-1:]], ids=["typed", "run"]
)
def test_a_process_is_found_by_its_launch(arguments: list[str]) -> None:
    waits = [sys.executable, "-c", "input()", *arguments]
    with subprocess.Popen(waits, stdin=subprocess.PIPE) as process:
        assert _pid_of(LAUNCH) == process.pid
        assert _pid_of(LAUNCH[:-1]) == 0
        process.communicate(b"\n")
    assert _pid_of(LAUNCH) == 0

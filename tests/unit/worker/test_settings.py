"""A worker goes by what its command line said, and is found by its launch before and after it became one."""

from __future__ import annotations

import secrets
import shlex
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from stretto.specs.assignments import Assignment, PlacedWorker
from stretto.specs.modules import ModuleSpec, ModuleState
from stretto.supervisor.children import _pid_of
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import WorkerId
from stretto.worker.settings import WorkerSettings
from stretto.worker.start import _config

SETTINGS = WorkerSettings(
    worker=WorkerId("counts-0"),
    module="counts",
    data_dir=Path("data/ü 'n' \"m\" \udcff"),
    zookeeper="127.0.0.1:2181",
    address="127.0.0.1:0",
    advertise=None,
    node="node-1",
    cluster="stretto",
    root="/stretto",
    key_file=Path("cluster.key"),
    credentials_file=None,
    session_timeout_ms=10_000,
    artifacts=None,
    launch="0123",
    node_dir=Path("/data"),
)


def test_settings_pass_a_command_line_unchanged() -> None:
    *program, words = SETTINGS.command()
    assert (program[0], program[-2:]) == (sys.executable, ["-m", "stretto.worker"])
    code = "import sys; from stretto.worker.settings import *; print(WorkerSettings.decode(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, words], capture_output=True, text=True, check=True)
    assert done.stdout == f"{SETTINGS}\n"


def test_a_worker_goes_by_all_that_it_was_given_and_by_what_that_led_to(tmp_path: Path) -> None:
    given = msgspec.structs.replace(SETTINGS, data_dir=tmp_path)
    assignment = Assignment(
        generation=1, tasks=2, workers=(PlacedWorker(given.worker, "node-1"),), groups=((0,), (0,)), plan=1
    )
    spec = ModuleSpec(
        artifact="a",
        entry="m:M",
        tasks=2,
        threads=2,
        workers=1,
        replication_factor=1,
        version=4,
        state=ModuleState.RUNNING,
    )
    config = _config(given, None, None, assignment, spec)
    assert {name: getattr(config, name) for name in given.__struct_fields__} == msgspec.structs.asdict(given)
    assert (config.artifact, config.entry, config.description.version) == ("a", "m:M", 4)
    assert [plan.key for plan in config.plans] == [GroupKey("counts", 1, 0), GroupKey("counts", 1, 1)]
    by_hand = _config(given, None, None, assignment, None)
    assert (by_hand.artifact, by_hand.entry, by_hand.restored) == ("", "", None)
    assert (by_hand.description.tasks, by_hand.description.depots) == (2, None)


@pytest.mark.parametrize("is_worker", [False, True])
def test_a_process_is_found_by_its_launch(is_worker: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto.supervisor.children.STARTING_SECONDS", 0.0)
    launch = secrets.token_hex(8)
    run = msgspec.structs.replace(SETTINGS, launch=launch).command()[-1:]
    typed = ["worker", "--launch", launch, "--id", "counts-0"]
    waits = [sys.executable, "-c", "print(flush=True); input()", *(run if is_worker else typed)]
    with subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # before that the kernel may not tell its command line yet
        assert _pid_of(launch) == process.pid
        assert _pid_of(launch[:-1]) == 0
        process.communicate(b"\n")
    assert _pid_of(launch) == 0


def test_a_process_that_is_being_started_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its supervisor was killed before it had its command line."""
    monkeypatch.setattr("stretto.supervisor.children.STARTING_SECONDS", 60.0)
    launch = secrets.token_hex(8)
    python = shlex.quote(sys.executable)
    becomes = f"read line; exec {python} -c 'input()' worker --launch {launch} --id counts-0"
    with subprocess.Popen(["/bin/sh", "-c", becomes], stdin=subprocess.PIPE) as process:
        looked, sleep = threading.Event(), time.sleep

        def look_again(_: float) -> None:
            looked.set()
            sleep(0.01)

        monkeypatch.setattr("stretto.supervisor.children.time.sleep", look_again)

        def go_on() -> None:
            assert looked.wait(60)
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()

        with ThreadPoolExecutor(1) as pool:
            going = pool.submit(go_on)
            assert _pid_of(launch) == process.pid
            going.result(60)
        process.communicate(b"\n")

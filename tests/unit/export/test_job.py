"""How an export's Spark job is watched and ended, whatever it does; no Spark runs here."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pytest

from stretto.errors import UsageError
from stretto.export.job import (
    Done,
    Event,
    Order,
    Progress,
    _EndWithInput,
    _others_of_group,
    _Watching,
    plain,
    run_to_the_end,
)
from stretto.export.running import JobFailed, run_job
from stretto.testing import eventually

ORDER = Order(options={}, format="json", into="/nowhere", master="local", settings={})


def test_stages_that_are_over_still_count() -> None:
    looks = iter([{1: (0, 4)}, {1: (3, 4)}, {2: (1, 2)}])
    stages: dict[int, tuple[int, int]] = {}
    told: list[Event] = []
    is_done = threading.Event()

    def active() -> list[int]:
        stages.update(next(looks, {}))
        return list(stages)

    def info(stage: int) -> Any:
        done, tasks = stages[stage]
        return SimpleNamespace(numCompletedTasks=done, numTasks=tasks)

    def tell(event: Event) -> None:
        told.append(event)
        if event == Progress(4, 6):
            is_done.set()

    tracker = SimpleNamespace(getActiveStageIds=active, getStageInfo=info)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    with mock.patch("stretto.export.job.LOOK_SECONDS", 0.01), _Watching(spark, tell):
        assert is_done.wait(30)
    assert told == [Progress(0, 4), Progress(3, 4), Progress(4, 6)]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put this program in the place of the job; scratch files are below ``tmp_path``."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    real = subprocess.Popen

    def replace(program: str) -> None:
        def start(command: list[str], **more: Any) -> subprocess.Popen[bytes]:
            return real([sys.executable, "-c", program, command[-1]], **more)

        monkeypatch.setattr("stretto.export.running.subprocess.Popen", start)

    return replace


def says(*events: dict[str, Any]) -> str:
    lines = "\n".join(json.dumps(event) for event in events)
    return f"import sys, time; print({lines!r}, flush=True); print('what Java says', file=sys.stderr)"


def test_progress_is_passed_on_and_nothing_is_left(job: Callable[[str], None], tmp_path: Path) -> None:
    job(
        says(
            {"type": "Progress", "done": 1, "tasks": 2},
            {"type": "Done", "rows": 7, "schema": {}, "as_json": []},
        )
    )
    told: list[Progress] = []
    assert run_job(ORDER, told.append) == Done(7, {}, ())
    assert told == [Progress(1, 2)]
    assert list(tmp_path.iterdir()) == []


def test_a_failure_names_the_log_which_stays(job: Callable[[str], None], tmp_path: Path) -> None:
    job(says({"type": "Failed", "sentence": "the disk is full", "is_usage": False}))
    with pytest.raises(JobFailed, match="the disk is full; Spark's log is") as caught:
        run_job(ORDER, print)
    [log] = tmp_path.iterdir()
    assert str(caught.value).endswith(str(log))
    job(says({"type": "Failed", "sentence": "no such column", "is_usage": True}))
    with pytest.raises(UsageError, match=r"^no such column$"):
        run_job(ORDER, print)
    job("raise SystemExit(3)")
    with pytest.raises(JobFailed, match="ended with exit code 3 before it was done; its log is"):
        run_job(ORDER, print)


def test_who_is_interrupted_ends_all_of_the_job(job: Callable[[str], None], tmp_path: Path) -> None:
    """A child of the job, as Java is, dies with it."""
    pids = tmp_path / "pids"
    pids.mkdir()
    job(
        f"import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r} + '/' + str(child.pid), 'w').close()\n"
        f"os.kill({os.getpid()}, {int(signal.SIGINT)})\n"
        f"time.sleep(600)\n"
    )
    with pytest.raises(KeyboardInterrupt):
        run_job(ORDER, print)
    [pid] = [int(path.name) for path in pids.iterdir()]
    eventually(lambda: is_dead(pid), what="the child of the job is dead")
    assert [path.name for path in tmp_path.iterdir()] == ["pids"]


def test_who_is_interrupted_while_it_starts_the_job_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.Popen
    started: list[subprocess.Popen[bytes]] = []

    def start(_: list[str], **more: Any) -> subprocess.Popen[bytes]:
        started.append(real([sys.executable, "-c", "import time; time.sleep(600)"], **more))
        os.kill(os.getpid(), signal.SIGINT)
        return started[0]

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("stretto.export.running.subprocess.Popen", start)
    # A progress bar has a thread, which may be the one that gets the signal.
    is_over = threading.Event()
    other = threading.Thread(target=is_over.wait)
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_job(ORDER, print)
    finally:
        is_over.set()
        other.join()
    assert started[0].returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def is_dead(pid: int) -> bool:
    """A zombie is, too: init may take its time."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_what_spark_says_becomes_one_sentence() -> None:
    analysis = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `valu` cannot be resolved. "
        "SQLSTATE: 42703; line 1 pos 0;\n'Filter ('valu > 1)\n+- RelationV2"
    )
    assert plain(ValueError(analysis)) == "A column `valu` cannot be resolved"
    java = "An error occurred while calling o51.load.\n: org.Sad: [X_Y] It broke. SQLSTATE: 1\n\tat a"
    assert plain(ValueError(java)) == "It broke"


def test_a_job_that_lost_a_pin_begins_anew_and_any_other_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = msgspec.structs.replace(ORDER, into=str(tmp_path / "tree"))
    failures = ["stretto.errors.PinLost: pin 7 is lost", "stretto.errors.PinLost: pin 8 is lost"]

    def run_once(asked: Order, *_: object) -> Done:
        Path(asked.into).mkdir()
        if failures:
            raise ValueError(f"Spark says: {failures.pop(0)}")
        return Done(7, {}, ())

    monkeypatch.setattr("stretto.export.job.run", run_once)
    spark: Any = None
    assert run_to_the_end(order, spark, print).rows == 7
    shutil.rmtree(order.into)
    failures += ["stretto.errors.PinLost: pin 9 is lost", "the disk is full"]
    with pytest.raises(ValueError, match="the disk is full"):
        run_to_the_end(order, spark, print)


def test_a_job_that_nobody_waits_for_kills_what_it_started_and_clears_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    heard, others = [b"x", b""], [[7, 8], [8], []]
    done: list[tuple[str, int, bool]] = []

    def kill(pid: int, _: int) -> None:
        done.append(("kill", pid, scratch.exists()))
        if pid == 7:
            raise ProcessLookupError

    quiet = SimpleNamespace(
        read=lambda *_: heard.pop(0),
        kill=kill,
        killpg=lambda group, _: done.append(("killpg", group, scratch.exists())),
    )
    monkeypatch.setattr("stretto.export.job.os", quiet)
    monkeypatch.setattr("stretto.export.job.LOOK_SECONDS", 0.001)
    monkeypatch.setattr("stretto.export.job._others_of_group", lambda: others.pop(0))
    ending = _EndWithInput(scratch)
    begun = [ending.has_begun]
    ending.run()
    assert ([*begun, ending.has_begun], heard) == ([False, True], [])
    assert done == [("kill", 7, True), ("kill", 8, True), ("kill", 8, True), ("killpg", 0, False)]


def test_what_a_job_started_is_found_and_not_the_job_itself_nor_the_dead() -> None:
    living, dead = (subprocess.Popen(["sleep", "600"]) for _ in range(2))
    try:
        dead.kill()
        eventually(lambda: is_dead(dead.pid), what="it is dead, and nobody has waited for it")
        found = _others_of_group()
        assert living.pid in found
        assert dead.pid not in found
        assert os.getpid() not in found
    finally:
        living.kill()
        for each in (living, dead):
            each.wait()

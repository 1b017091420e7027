"""How daemons end that must not go on."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from stretto.conductor.process import Conductor, ConductorConfig
from stretto.vocabulary.invariants import InvariantViolation

FAILING = """
import threading
from concurrent.futures import ThreadPoolExecutor

from stretto.process.exit_codes import run_daemon
from stretto.vocabulary.invariants import InvariantViolation


def daemon():
    copying = threading.Event()
    ThreadPoolExecutor(1).submit(lambda: (copying.set(), threading.Event().wait()))
    copying.wait()
    raise InvariantViolation("two leaders", {"epoch": 7})


run_daemon(daemon)
"""


def test_a_daemon_that_fails_does_not_wait_for_its_threads() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILING], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "InvariantViolation: two leaders (epoch=7)" in done.stderr


def test_a_conductor_that_can_no_longer_answer_ends() -> None:
    conductor = Conductor(ConductorConfig(cluster="c", zookeeper="127.0.0.1:1"))
    conductor._loop.end_with(InvariantViolation("two leaders", {}))
    limit = threading.Timer(30.0, conductor.stop)
    limit.start()
    with pytest.raises(InvariantViolation, match="two leaders"):
        conductor.run()
    limit.cancel()

"""Calls and their results."""

from __future__ import annotations

import subprocess
import sys

import pytest

MANY_AT_ONCE = """
import sys, threading
from stretto import control
sys.setswitchinterval(1e-6)
raw = control.encode([])
calls = [control.Modules(), control.Replicas(), control.Nodes(), control.Replicas()] * 4
barrier = threading.Barrier(len(calls))
def decode(call):
    barrier.wait()
    assert control.decode_result(call, raw) == ()
threads = [threading.Thread(target=decode, args=(call,)) for call in calls]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


@pytest.mark.parametrize("_", range(4))
def test_threads_that_decode_for_the_first_time_at_once_do_not_crash(_: int) -> None:
    """msgspec looks into a struct when it is first needed, and two threads that do so at once crash."""
    done = subprocess.run(
        [sys.executable, "-c", MANY_AT_ONCE], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")

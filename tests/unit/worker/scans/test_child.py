"""The turns of a scan process, taken by hand."""

from __future__ import annotations

import contextlib
import socket

import pytest

from stretto.worker.scans import protocol
from stretto.worker.scans.child import ADMISSIONS_PER_TURN, ScanProcess


@pytest.mark.parametrize("waiting", [3, ADMISSIONS_PER_TURN + 5])
def test_readers_that_wait_are_let_in_together_but_not_without_end(
    waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = socket.socketpair()
    start = protocol.Start(1, worker="w0", host="127.0.0.1", public=b"", secret=b"", idle_ms=60_000)
    with near, far, contextlib.closing(ScanProcess(near, start)) as process:
        questions = list(range(waiting))

        def admit() -> bool:
            return questions.pop() is not None if questions else False

        monkeypatch.setattr(process._listener, "admit", admit)
        process._admit()
        assert len(questions) == max(0, waiting - ADMISSIONS_PER_TURN)

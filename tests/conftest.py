"""Processes of a run: one that is told to end stops those it has started, and none is left at the end."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

RUN = "STRETTO_TEST_RUN"


def pytest_configure() -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def no_process_left() -> Iterator[None]:
    """Whatever a test starts has this in its environment. ZooKeepers go with the process that has them."""
    os.environ[RUN] = secrets.token_hex(8)
    yield
    mark = f"{RUN}={os.environ[RUN]}\0".encode()
    with contextlib.suppress(AssertionError):
        wait_until("all are gone", lambda: not _left(mark))
    assert _left(mark) == {}


def _left(mark: bytes) -> dict[int, str]:
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes()
            if b"\0stretto" in words and mark in (process / "environ").read_bytes():
                found[int(process.name)] = words.decode(errors="replace").replace("\0", " ")
    return found

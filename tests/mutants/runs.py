"""Tests that are run against a copy of the tree, in a process of their own.

The process is forked from one that has imported pytest and the libraries, but nothing of this project: so an
edit is met by the very import of it, by processes that tests start as well, and a run begins within a moment.
It leads a session, and everything it starts carries a mark in its environment: what is left of it when its
time is over is ended by that.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import secrets
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

MARK = "STRETTO_MUTANT"
LIBRARIES = (
    "crc32c",
    "kazoo.client",
    "kazoo.testing",
    "lmdb",
    "msgspec",
    "numpy",
    "pyarrow",
    "pyspark.sql",
    "rich.console",
    "structlog",
    "typer",
    "uvicorn",
    "xxhash",
    "zmq",
)
TEST_SECONDS = 40
"""Seconds for one test, after which it counts as failed."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How a run of some tests ended."""

    is_green: bool
    took_seconds: float
    by: str
    """The first test that failed, or what else ended it."""
    output: str


def load_libraries() -> None:
    """Import what every run needs and no edit concerns."""
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def run(copy: Path, tests: tuple[str, ...], *, seconds: float) -> Run:
    """Run tests of a copy until one fails, or the time is over, which is a failure too."""
    mark = secrets.token_hex(8)
    output = copy.parent / "output"
    began = time.monotonic()
    process = os.fork()
    if process == 0:
        _be_tested(copy, tests, mark, output)
    try:
        code = _wait(process, began + seconds)
    finally:
        _end(process)
        _end_marked(mark)
    text = output.read_text(errors="replace")
    took = time.monotonic() - began
    if code is None:
        return Run(is_green=False, took_seconds=took, by="time-out", output=text)
    if code == pytest.ExitCode.USAGE_ERROR:
        raise RuntimeError(f"pytest could not be run:\n{text}")
    is_green = code in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}
    failed = _FAILED.search(text)
    by = "" if is_green else failed[1] if failed else f"exit status {code}"
    return Run(is_green=is_green, took_seconds=took, by=by, output=text)


def _be_tested(copy: Path, tests: tuple[str, ...], mark: str, output: Path) -> None:
    """The whole life of the forked process."""
    code = 70
    try:
        os.setsid()
        # A shell that starts us in the background has it ignored, and tests that interrupt would hang.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(copy)
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for standard in (1, 2):
            os.dup2(descriptor, standard)
        os.environ[MARK] = mark
        os.environ["PYTHONPATH"] = str(copy)
        sys.path[0] = str(copy)
        for name in [each for each in sys.modules if each.split(".")[0] == "tests"]:
            del sys.modules[name]
        # Plugins take seconds to load, and one of them is needed; as in CI, hypothesis draws no chance.
        os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CI": "1"}
        arguments = [
            "-p",
            "pytest_timeout",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "--timeout",
            str(TEST_SECONDS),
            "--tb",
            "short",
        ]
        code = pytest.main([*arguments, "-m", "not soak", *tests])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _wait(process: int, deadline: float) -> int | None:
    """The exit status; None if it takes too long."""
    while time.monotonic() < deadline:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return None


def _end(process: int) -> None:
    """End a run that is not over. Interrupted, it stops what it has started."""
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 30.0)):
        until = time.monotonic() + patience
        try:
            os.kill(process, number)
            while time.monotonic() < until:
                if os.waitpid(process, os.WNOHANG)[0]:
                    return
                time.sleep(0.05)
        except (ChildProcessError, ProcessLookupError):
            return


def _end_marked(mark: str) -> None:
    """End whatever the tests have left behind."""
    wanted = f"{MARK}={mark}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)

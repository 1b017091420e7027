"""Commands as people run them.

Most run inside the test's process, which saves starting Python for each: the same entry, with its standard
streams and environment replaced. What ends by a signal or a closed pipe gets a process of its own.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

import pytest

from stretto import cli


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def stretto(*args: str, given: str = "", **environment: str) -> Done:
    """Run a command with this on its standard input; a bug in it is raised."""
    with (
        _streams(given) as (out, err),
        mock.patch.dict(os.environ, environment),
        pytest.raises(SystemExit) as exit_,
    ):
        cli.main(args)
    assert isinstance(exit_.value.code, int)
    return Done(exit_.value.code, _text(out), _text(err))


@contextlib.contextmanager
def _streams(given: str) -> Iterator[tuple[io.TextIOWrapper, io.TextIOWrapper]]:
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    stdin = io.TextIOWrapper(io.BytesIO(given.encode()), "utf-8")
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "stdin", stdin),
    ):
        yield out, err


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()


def start(*args: str) -> subprocess.Popen[str]:
    """Start a command as a process of its own; its output is read line by line."""
    command = [sys.executable, "-m", "stretto", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

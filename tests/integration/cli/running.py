"""Commands as people run them: processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

TIMEOUT_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "stretto", *args]


def stretto(*args: str, given: str = "", **environment: str) -> Done:
    """What a command did with this on its standard input."""
    done = subprocess.run(
        command(*args),
        input=given,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def start(*args: str) -> subprocess.Popen[str]:
    """A command that goes on; its output is read line by line."""
    return subprocess.Popen(command(*args), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

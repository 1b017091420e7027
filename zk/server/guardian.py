"""Runs one program as its only child and makes sure that it does not outlive the process that asked for it.

Started as a script by :mod:`stretto.zk.server.embedded`, with nothing but the standard library, in an
interpreter of its own: ``guardian.py PROGRAM ARGUMENT...``. Standard input is the tie to the parent. Each
byte on it is the number of a signal to pass on; its end, which comes when the parent closes it *or dies in
whatever way*, means: stop the program, first politely. The exit code is the program's.

A death signal set by the parent itself would not do: the kernel ties it to the parent's *thread*. Here it
covers the one case that is left, the death of the guardian, which has a single thread.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PATIENCE_SECONDS = 5.0


def _exec(program: list[str], guardian: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guardian:
        os._exit(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    try:
        os.execvp(program[0], program)  # noqa: S606 - a shell would only be in the way
    except OSError as error:
        sys.stderr.write(f"cannot run {program[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127)


def _has_ended(pidfd: int, timeout_seconds: float) -> bool:
    return bool(select.select([pidfd], [], [], timeout_seconds)[0])


def main(program: list[str]) -> int:
    guardian = os.getpid()
    child = os.fork()
    if child == 0:
        _exec(program, guardian)
    pidfd = os.pidfd_open(child)
    while True:
        ready = select.select([0, pidfd], [], [])[0]
        if pidfd in ready:
            break
        signals = os.read(0, 64)
        for number in signals:
            signal.pidfd_send_signal(pidfd, number)
        if not signals:
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            if not _has_ended(pidfd, _PATIENCE_SECONDS):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            break
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) & 0xFF)

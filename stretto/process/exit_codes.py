"""How a program ends: with an exit code, and one sentence where a person can mend what stopped it.

A traceback always means a bug.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Callable

from stretto.errors import ModuleError, QueryFailed, StrettoError, UpdateFailed, UsageError

_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EPIPE})
"""Errors of a disk or a standard output that takes no more; a reader that is gone is no trouble."""


def refuse(sentence: str, code: int) -> int:
    """Print one sentence to stderr, and return the exit code."""
    _say(f"stretto: {' '.join(sentence.split())}")
    return code


def _say(text: str) -> None:
    if sys.stderr is not None:  # print() would take standard output instead.
        print(text, file=sys.stderr)


def exit_code(program: Callable[[], object]) -> int:
    """Run a program and return its exit code, 0 if it returns none; what it raises is printed."""
    try:
        code = program()
    except StrettoError as error:
        if isinstance(error, ModuleError | QueryFailed | UpdateFailed) and error.traceback:
            _say(error.traceback)
        return refuse(str(error), 2 if isinstance(error, UsageError) else 1)
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.filename is not None:
            return refuse(f"cannot use {error.filename}: {error.strerror}", 1)
        if error.errno in _UNWRITABLE:
            # What is still buffered must not fail again when the interpreter ends.
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1 if error.errno == errno.EPIPE else refuse(f"cannot write: {error.strerror}", 1)
        # Without a file it is not the person's to mend: a bug, which needs its traceback.
        raise
    return code if isinstance(code, int) else 0


def run_daemon(daemon: Callable[[], None]) -> None:
    """Run a daemon until it is told to stop; one that fails ends as if it were killed.

    An interpreter that ends waits for the threads of pools, which may copy files for minutes. Meanwhile the
    threads that speak to ZooKeeper would keep a session alive whose process does nothing any more, and nobody
    would take its place.
    """
    try:
        daemon()
    except (UsageError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - whatever it is, it is told
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

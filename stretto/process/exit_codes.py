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
"""What may become of standard output, or of a disk; nobody who reads any more is no trouble."""


def refuse(sentence: str, code: int) -> int:
    _say(f"stretto: {' '.join(sentence.split())}")
    return code


def _say(text: str) -> None:
    if sys.stderr is not None:  # print() would take standard output instead.
        print(text, file=sys.stderr)


def exit_code(program: Callable[[], object]) -> int:
    """What it returns, 0 if that is no code, or that of what it raised, which is told."""
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
    """Until it is told to stop. One that fails ends as if it were killed.

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

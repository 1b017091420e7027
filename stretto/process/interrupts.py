"""What Ctrl-C does while a command is still being loaded, or has nothing left to do but to end.

Python raises KeyboardInterrupt wherever it happens to be. In the middle of an import that shows a person the
insides of some library, or is swallowed by one, and the command goes on. As long as nothing has begun, the
signal may as well end the process, as it ends programs that do not care for it.

This module imports next to nothing: it has to be there before what takes a while.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def end_at_once() -> None:
    """From here on Ctrl-C ends this process in silence, unless it is ignored or somebody listens to it."""
    if _is_pythons_own():
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """In this block Ctrl-C ends this process in silence; for what takes a while and has begun nothing."""
    before = signal.getsignal(signal.SIGINT)
    end_at_once()
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is not before:
            signal.signal(signal.SIGINT, before)


def _is_pythons_own() -> bool:
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler

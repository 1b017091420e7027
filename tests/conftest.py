"""A run that is told to end stops the processes that it has started, as one that is interrupted does."""

from __future__ import annotations

import signal
import threading


def pytest_configure() -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)

"""How many workers of a node send state at the moment: they share one allowance of bytes per second.

Each has a file in a folder of the node, and holds a lock on it as long as it sends. So the number of locks is
the number of senders; a lock ends with its process, however that ends. Nobody waits for anybody: a worker
looks now and then, and takes its part of what is allowed.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from stretto.process.private_files import private_folder


class NodeShare:
    """One worker's lock on its share of the node's allowance.

    For one thread at a time; :meth:`look` uses the disk.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._fd: int | None = None

    def look(self, *, sending: bool) -> int:
        """Hold the lock or let it go; return how many workers send, this one included."""
        if sending and self._fd is None:
            private_folder(self._folder)
            self._fd = os.open(self._folder / self._name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # Whoever looks holds it for a moment.
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        elif not sending:
            self.close()
            return 1
        return 1 + sum(_is_locked(file) for file in self._folder.iterdir() if file.name != self._name)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _is_locked(file: Path) -> bool:
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False

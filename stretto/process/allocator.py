"""How a daemon's C library keeps memory: freed buffers stay with the process.

A batch of records is a buffer of some hundred kilobytes that lives for milliseconds: received, joined, copied
into a socket, freed. By default glibc gives such memory back to the system and takes it again, page by page,
which costs more than the copies themselves.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MMAP_BYTES_MAX = 32 * 1024 * 1024
"""The most that glibc accepts; larger buffers are mapped and unmapped as ever."""
_TRIM_BYTES = 256 * 1024 * 1024


def keep_freed_memory() -> None:
    """Make glibc keep freed memory, in a process that is ours alone; nothing with another C library."""
    with contextlib.suppress(AttributeError):
        libc = ctypes.CDLL(None)
        # What it took to load the program is not needed again.
        gc.collect()
        libc.malloc_trim(0)
        mallopt = libc.mallopt
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES_MAX)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)

"""One process at a time in a data folder, on one start of the machine."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from stretto.errors import UsageError
from stretto.process.private_files import private_folder


def boot_id() -> str:
    """The kernel's id of this boot, another with every start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def lock_folder(path: Path) -> int:
    """Keep other processes out of a data folder for as long as the descriptor is open."""
    private_folder(path)
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(
            f"{path} is in use by another process; stop it first, or give this one its own --data-dir"
        ) from None
    return descriptor

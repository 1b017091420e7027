"""Folders and files that are their owner's alone: data, logs, keys.

Daemons begin with :func:`create_private_files`, and whatever they start inherits it. Folders are made, and
those of an earlier version tightened, by :func:`private_folder`: files in a folder that nobody else may enter
are out of reach whatever their own modes are.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
from pathlib import Path
from typing import IO, Any

from stretto.errors import UsageError

OTHERS = 0o077
UMASK = OTHERS


def create_private_files() -> None:
    """Make whatever this process creates from now on its owner's alone."""
    os.umask(UMASK)


def private_folder(path: Path) -> Path:
    """Create a folder and what is missing above it; one that is there already is closed to others.

    One that other things are kept in as well stays as it is: a home, the folder that a shell is in, or one
    that everybody writes to. What is made inside is private in any case.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.stat()
    is_ours = found.st_uid == os.geteuid() and not found.st_mode & stat.S_ISVTX
    if found.st_mode & OTHERS and is_ours and path.resolve() not in _shared_folders():
        path.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS)
    return path


def open_private(path: Path, mode: str, **options: Any) -> IO[Any]:
    """Open a file as ``open`` does; a file that this creates is its owner's alone."""
    return open(path, mode, opener=_create_private, **options)


def require_private(path: Path) -> None:
    """Refuse a secret that others can read. Raises OSError if it cannot be looked at."""
    if path.stat().st_mode & OTHERS:
        command = f"chmod 600 {shlex.quote(str(path))}"
        raise UsageError(f"{path} is open to others than its owner; first run: {command}")


def _create_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _shared_folders() -> set[Path]:
    shared = {Path("/")}
    with contextlib.suppress(RuntimeError, OSError):
        shared.add(Path.home().resolve())
    with contextlib.suppress(OSError):
        shared.add(Path.cwd().resolve())
    return shared

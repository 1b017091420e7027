"""Which folders were made durable, in order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def folders_synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Filled from now on."""
    synced: list[Path] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.is_dir():
            synced.append(path)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    return synced

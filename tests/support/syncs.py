"""What reaches the disk by the real system calls: they are made as ever, and written down."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class RecordedSyncs:
    """The files and folders that ``fsync`` and ``fdatasync`` were called for, and were synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._synced: list[tuple[int, int]] = []
        for call in (os.fsync, os.fdatasync):
            monkeypatch.setattr(os, call.__name__, self._recording(call))

    def _recording(self, call: Callable[[Any], None]) -> Callable[[Any], None]:
        def sync(file: Any) -> None:
            call(file)
            self._synced.append(_identity(os.fstat(file if isinstance(file, int) else file.fileno())))

        return sync

    def count(self, path: Path) -> int:
        """How often a file or folder was synced, under whatever name it had then."""
        return self._synced.count(_identity(path.stat()))

    def lacks(self, tree: Path) -> list[Path]:
        """Which files and folders of a tree were never synced, the tree itself included."""
        return [path for path in (tree, *sorted(tree.rglob("*"))) if not self.count(path)]


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino

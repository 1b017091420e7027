"""The implementations that every contract test runs against.

A new kind of folder joins by one line in :data:`FOLDERS`; a new kind of log by one in :data:`STORAGES`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from stretto.replog.folder import OsFolder
from stretto.replog.log import Replog
from stretto.replog.storage import Folder, Storage
from stretto.sim.replication.disk import SimFolder
from tests.support.power import PowerFolder

FOLDERS: dict[str, Callable[[Path], Folder]] = {
    "os": OsFolder,
    "power": lambda _: PowerFolder(),
    "simulator": lambda _: SimFolder(),
}


class OpenStorage(Protocol):
    def __call__(self, folder: Folder, *, segment_bytes: int) -> Storage: ...


STORAGES: dict[str, OpenStorage] = {
    "replog": Replog.open,
}


@pytest.fixture(params=FOLDERS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """An empty folder."""
    return FOLDERS[request.param](tmp_path)


@pytest.fixture(params=STORAGES)
def open_storage(request: pytest.FixtureRequest) -> OpenStorage:
    """Opens the log in a folder."""
    return STORAGES[request.param]

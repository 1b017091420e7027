"""One process at a time has a data folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stretto.errors import StrettoError
from stretto.process.folder_lock import lock_folder


def test_a_folder_is_made_and_locked_until_its_descriptor_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    descriptor = lock_folder(folder)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(StrettoError):
        lock_folder(folder)
    assert set(os.listdir("/proc/self/fd")) == before, "who is refused leaves nothing open"
    assert not os.get_inheritable(descriptor), "no child keeps it locked"
    os.close(descriptor)
    os.close(lock_folder(folder))

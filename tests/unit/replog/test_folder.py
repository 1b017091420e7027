"""That the folder on a real file system makes the system calls which durability rests on.

What the log demands and when is held by the folder that models a power loss; here the real one must do what
it says, as no test can cut the power of a real disk.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stretto.replog.folder import OsFile, OsFolder
from stretto.replog.log import Replog
from stretto.vocabulary.types import Offset
from tests.support.frames import make_frame
from tests.support.syncs import RecordedSyncs


def test_a_file_is_synced_by_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = OsFolder(tmp_path)
    file = folder.open("a", create=True)
    file.writev(0, [b"x"])
    syncs = RecordedSyncs(monkeypatch)
    file.fdatasync()
    assert syncs.count(tmp_path / "a") == 1
    file.close()


def test_a_sync_that_the_kernel_refuses_is_raised() -> None:
    """A pipe cannot be synced: the call has to come as far as the kernel to be told so."""
    reading, writing = os.pipe()
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            OsFile(writing).fdatasync()
    finally:
        os.close(reading)
        os.close(writing)


def test_a_folder_is_synced_by_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = RecordedSyncs(monkeypatch)
    OsFolder(tmp_path).sync()
    assert syncs.count(tmp_path) == 1


def test_a_log_syncs_its_segment_before_it_calls_entries_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Replog.open(OsFolder(tmp_path))
    syncs = RecordedSyncs(monkeypatch)
    log.append([make_frame(0)])
    segments = [path for path in tmp_path.iterdir() if path.suffix == ".replog"]
    assert [syncs.count(segment) for segment in segments] == [0]
    assert log.sync() == Offset(1)
    assert [syncs.count(segment) for segment in segments] == [1]
    log.close()

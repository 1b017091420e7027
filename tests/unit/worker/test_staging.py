"""What is staged of a leader's state, when disks and bytes are not as they should be."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from stretto.types import Offset
from stretto.worker.environment import NoSpace
from stretto.worker.images import make_image
from stretto.worker.staging import Staging
from tests.unit.worker.entries import TASKS, Log
from tests.unit.worker.test_install import a_log, ask, close, fetch_image, opened


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@contextmanager
def no_file_beyond(size_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=0, f_frsize=4096))
        yield


def all_but_entries(path: Path, pool: ThreadPoolExecutor) -> tuple[Staging, Offset, Offset, memoryview]:
    """Images of different offsets are staged; the entries that bring them together are returned."""
    log = a_log(60)
    leader = opened(path / "leader", pool)
    staging = Staging(path / "r", TASKS, None)
    third = len(log.frames) // 3
    offsets = []
    for number, task in enumerate(TASKS):
        leader.state.apply(log.frames[number * third : (number + 1) * third])
        staging.prepare(task)
        fetch_image(staging, make_image(leader.state, path / "leader", ask(task), None))
        offsets.append(leader.state.applied)
    close(leader)
    return staging, offsets[0], offsets[-1], body_of(log, offsets[0], offsets[-1])


def body_of(log: Log, start: Offset, end: Offset) -> memoryview:
    frames = [frame for frame in log.frames if start <= frame.header.offset < end]
    return memoryview(b"".join(bytes(part) for frame in frames for part in frame.parts))


def test_a_disk_without_room_for_the_entries_is_told_as_such(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    staging, start, _, body = all_but_entries(tmp_path, pool)
    with no_file_beyond(1_000), pytest.raises(NoSpace, match=r"cannot hold the entries .* free some space"):
        staging.store_entries(start, body)
    staging.close()


def test_a_disk_that_is_full_when_all_is_here_is_told_and_the_state_is_put_together_later(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging, start, end, body = all_but_entries(tmp_path, pool)
    staging.store_entries(start, body)
    for _ in range(2):
        with full_disk(monkeypatch), pytest.raises(NoSpace):
            staging.assemble(end)
    staging.assemble(end)
    staging.close()

"""What is staged of a leader's state, when disks and bytes are not as they should be."""

from __future__ import annotations

import os
import resource
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from stretto.catchup.images import make_image, task_folder
from stretto.catchup.machines import blocks
from stretto.catchup.staging import Abandoned, Staging
from stretto.state.environment import SPARE_BYTES, NoSpace
from stretto.vocabulary.types import Offset
from tests.support.entries import TASKS, Log
from tests.unit.catchup.test_install import SEED, a_log, ask, close, fetch_image, opened


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
    staging = Staging(path / "r", TASKS, None, seed=SEED)
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


@pytest.mark.parametrize(
    ("spoilt", "damaged"),
    [((), ()), ((0,), ((0, 1),)), ((5, 6, 100), ((5, 2), (100, 1))), ((127,), ((127, 1),))],
)
def test_of_many_blocks_in_one_message_only_the_damaged_ones_are_asked_for_again(
    tmp_path: Path, pool: ThreadPoolExecutor, spoilt: tuple[int, ...], damaged: tuple[tuple[int, int], ...]
) -> None:
    leader = opened(tmp_path / "leader", pool, a_log(20_000))
    image = make_image(leader.state, tmp_path / "leader", ask(TASKS[0]), None)
    staging = Staging(tmp_path / "r", TASKS, None, seed=SEED)
    staging.prepare(TASKS[0])
    missing = staging.compare(image.described, (image.listed,))
    assert missing is not None
    ((first, count),) = missing
    assert (first, count >= 128) == (0, True)
    runs = ((0, 128),)
    content = image.spool.read(image.pieces(runs))
    came = bytearray(content)
    for block in spoilt:
        came[block * blocks.BLOCK_BYTES] ^= 1

    assert staging.store(image.described, runs, memoryview(came)) == damaged

    file = task_folder(tmp_path / "r" / "incoming" / "state", TASKS[0]) / "data.mdb"
    written = file.read_bytes()[: len(content)]
    for block in range(128):
        part = slice(block * blocks.BLOCK_BYTES, (block + 1) * blocks.BLOCK_BYTES)
        assert written[part] == (bytes(blocks.BLOCK_BYTES) if block in spoilt else content[part])
    staging.close()
    close(leader)


def test_a_transfer_that_never_began_closes_the_one_before_it(tmp_path: Path) -> None:
    first = Staging(tmp_path, TASKS, None, seed=SEED)
    first.prepare(TASKS[0])
    open_files = len(os.listdir("/proc/self/fd"))
    Staging(tmp_path, TASKS, first, seed=SEED).close()
    assert len(os.listdir("/proc/self/fd")) < open_files
    with pytest.raises(Abandoned):
        first.prepare(TASKS[0])


def test_the_next_transfer_waits_until_the_files_of_the_last_are_deleted(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Staging(tmp_path, TASKS, None, seed=SEED)
    first.prepare(TASKS[0])
    deleting, go_on = threading.Event(), threading.Event()
    delete = shutil.rmtree

    def slow_delete(folder: Path) -> None:
        deleting.set()
        assert go_on.wait(20)
        delete(folder)

    monkeypatch.setattr(shutil, "rmtree", slow_delete)
    discarded = pool.submit(first.discard)
    assert deleting.wait(20)
    second = Staging(tmp_path, TASKS, first, seed=SEED)
    prepared = pool.submit(second.prepare, TASKS[0])
    assert not prepared.done()
    go_on.set()
    discarded.result(20)
    assert prepared.result(20)
    assert (tmp_path / "incoming").exists()
    second.close()


def test_room_is_not_promised_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free_bytes = SPARE_BYTES + 100_000_000
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free_bytes, f_frsize=1))
    staging = Staging(tmp_path, TASKS, None, seed=SEED)
    for task in TASKS:
        staging.prepare(task)
    staging.make_room({TASKS[0]: 60_000_000})
    with pytest.raises(NoSpace, match=f"has {free_bytes} bytes left"):
        staging.make_room({TASKS[1]: 60_000_000})
    staging.make_room({TASKS[1]: 40_000_000})
    staging.close()

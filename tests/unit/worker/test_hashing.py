"""Hashing beside the process that copies or writes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from stretto.catchup.blocks import hash_of
from stretto.worker.hasher import READ_BYTES, is_direct, open_direct, write
from stretto.worker.hashing import SMALL_BYTES, HashedParts, copy_and_hash, hashes_of

BLOCK_BYTES = 8_192


def expected(content: bytes) -> bytes:
    return b"".join(hash_of(content[at : at + BLOCK_BYTES]) for at in range(0, len(content), BLOCK_BYTES))


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, SMALL_BYTES, SMALL_BYTES + 12_345])
def test_a_file_is_hashed_in_blocks(file: int, size: int) -> None:
    content = Random(1).randbytes(size)
    os.write(file, content)
    assert hashes_of(file, size, BLOCK_BYTES) == expected(content)


@pytest.fixture(params=[0, os.O_DIRECT], ids=["through the page cache", "past it"])
def spool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "spool", os.O_RDWR | os.O_CREAT | request.param)
    yield fd
    os.close(fd)


def content_of(fd: int) -> bytes:
    return Path(f"/proc/self/fd/{fd}").read_bytes()


@pytest.mark.parametrize("size", [0, 100, 3 * READ_BYTES, 6 * READ_BYTES + 12_345])
def test_a_copy_is_hashed_while_it_is_made(spool: int, size: int) -> None:
    content = Random(2).randbytes(size)
    seen: list[int] = []

    def copy(fd: int) -> None:
        for at in range(0, size, 100_000):
            write_all(fd, content[at : at + 100_000])

    assert copy_and_hash(copy, spool, BLOCK_BYTES, seen.append) == expected(content)
    assert content_of(spool) == content
    assert seen == sorted(seen)
    assert seen[-1:] == ([-(-size // BLOCK_BYTES)] if size else [])


def write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def test_what_is_told_to_be_there_can_be_read_while_the_copy_goes_on(spool: int) -> None:
    content = Random(3).randbytes(2 * READ_BYTES)
    told: list[bytes] = []
    go_on, goes_on = os.pipe()

    def copy(fd: int) -> None:
        write_all(fd, content[:READ_BYTES])
        os.read(go_on, 1)
        write_all(fd, content[READ_BYTES:])

    def grew(blocks: int) -> None:
        if not told:
            os.write(goes_on, b".")
        told.append(content_of(spool)[: blocks * BLOCK_BYTES])

    assert copy_and_hash(copy, spool, BLOCK_BYTES, grew) == expected(content)
    assert told[0] == content[:READ_BYTES]
    assert told[-1] == content
    os.close(go_on)
    os.close(goes_on)


def test_a_copy_that_fails_says_why(spool: int) -> None:
    def copy(fd: int) -> None:
        os.write(fd, bytes(100))
        raise OSError("the disk is on fire")

    with pytest.raises(OSError, match="on fire"):
        copy_and_hash(copy, spool, BLOCK_BYTES)


def test_a_copy_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    (tmp_path / "spool").touch()
    read_only = os.open(tmp_path / "spool", os.O_RDONLY)

    def copy(fd: int) -> None:
        for _ in range(20):
            write_all(fd, bytes(READ_BYTES))

    with pytest.raises(OSError, match=r"could not be hashed: .*Bad file descriptor"):
        copy_and_hash(copy, read_only, BLOCK_BYTES)
    os.close(read_only)


def test_what_cannot_go_past_the_page_cache_goes_through_it(tmp_path: Path) -> None:
    fd = open_direct(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    write(fd, memoryview(b"not aligned at all"), 3)
    assert not is_direct(fd)
    assert content_of(fd) == bytes(3) + b"not aligned at all"
    os.close(fd)


def test_parts_are_hashed_where_they_can_be_written_from() -> None:
    parts = HashedParts(3, 16 * BLOCK_BYTES)
    contents = [Random(number).randbytes(5 * BLOCK_BYTES + 77) for number in range(50)]

    def put(content: bytes) -> tuple[bytes, bytes]:
        with parts.put(memoryview(content), BLOCK_BYTES) as (copied, hashes):
            return bytes(copied), hashes

    try:
        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(put, contents)) == [(each, expected(each)) for each in contents]
    finally:
        parts.close()


def test_who_hashes_parts_is_started_again_when_it_died() -> None:
    parts = HashedParts(3, 16 * BLOCK_BYTES)
    content = memoryview(bytes(2 * BLOCK_BYTES))
    try:
        with parts.put(content, BLOCK_BYTES) as (copied, _):
            for pid in children():
                os.kill(pid, signal.SIGKILL)
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            with pytest.raises(OSError, match="could not be hashed"), parts.put(content, BLOCK_BYTES):
                pass
            assert bytes(copied) == content
        with parts.put(content, BLOCK_BYTES) as (_, hashes):
            assert hashes == expected(bytes(content))
    finally:
        parts.close()


def children() -> list[int]:
    """Of this process."""
    files = Path("/proc/self/task").glob("*/children")
    return [int(pid) for file in files for pid in file.read_text().split()]

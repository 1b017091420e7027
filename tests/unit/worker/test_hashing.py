"""Hashing beside the process that copies or writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from stretto.catchup.blocks import hash_of
from stretto.worker.hashing import READ_BYTES, SMALL_BYTES, WrittenHashes, copy_and_hash, hashes_of

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


@pytest.mark.parametrize("size", [0, 100, 3 * READ_BYTES, 3 * READ_BYTES + 12_345])
def test_a_copy_is_hashed_while_it_is_made(file: int, size: int) -> None:
    content = Random(2).randbytes(size)
    seen: list[int] = []

    def copy(fd: int) -> None:
        for at in range(0, size, 100_000):
            os.write(fd, content[at : at + 100_000])

    assert copy_and_hash(copy, file, BLOCK_BYTES, seen.append) == expected(content)
    assert seen == sorted(seen)
    assert seen[-1:] == ([-(-size // BLOCK_BYTES)] if size else [])


def test_what_is_told_to_be_there_can_be_read_while_the_copy_goes_on(file: int) -> None:
    content = Random(3).randbytes(2 * READ_BYTES)
    told: list[bytes] = []
    go_on, goes_on = os.pipe()

    def copy(fd: int) -> None:
        os.write(fd, content[:READ_BYTES])
        os.read(go_on, 1)
        os.write(fd, content[READ_BYTES:])

    def grew(blocks: int) -> None:
        if not told:
            os.write(goes_on, b".")
        told.append(os.pread(file, blocks * BLOCK_BYTES, 0))

    assert copy_and_hash(copy, file, BLOCK_BYTES, grew) == expected(content)
    assert told[0] == content[:READ_BYTES]
    assert told[-1] == content
    os.close(go_on)
    os.close(goes_on)


def test_a_copy_that_fails_says_why(file: int) -> None:
    def copy(fd: int) -> None:
        os.write(fd, bytes(100))
        raise OSError("the disk is on fire")

    with pytest.raises(OSError, match="on fire"):
        copy_and_hash(copy, file, BLOCK_BYTES)


def test_what_was_written_is_hashed_where_it_lies(tmp_path: Path) -> None:
    files = {number: tmp_path / f"file {number}=x" for number in (0, 3)}
    content = Random(4).randbytes(5 * BLOCK_BYTES + 77)
    for path in files.values():
        path.write_bytes(bytes(BLOCK_BYTES) + content)
    written = WrittenHashes(files)
    try:
        for number in (3, 0, 3):
            assert written.of(number, BLOCK_BYTES, len(content), BLOCK_BYTES) == expected(content)
        with pytest.raises(OSError, match="could not be hashed"):
            written.of(0, len(content), 10 * BLOCK_BYTES, BLOCK_BYTES)
        assert written.of(0, BLOCK_BYTES, len(content), BLOCK_BYTES) == expected(content)
    finally:
        written.close()

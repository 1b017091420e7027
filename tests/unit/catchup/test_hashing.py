"""Hashing beside the process that copies or writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from stretto.catchup.hasher import READ_BYTES, is_direct, open_direct, write
from stretto.catchup.hashing import SMALL_BYTES, copy_and_hash, hashes_of
from stretto.catchup.machines.blocks import HASH_BYTES, hash_of
from stretto.errors import StorageError
from stretto.state.environment import StandingFile
from tests.unit.supervisor.offspring import children

BLOCK_BYTES = 8_192
SEED = 77


def expected(content: bytes) -> bytes:
    return b"".join(
        hash_of(content[at : at + BLOCK_BYTES], SEED) for at in range(0, len(content), BLOCK_BYTES)
    )


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, SMALL_BYTES, SMALL_BYTES + 12_345])
def test_a_file_is_hashed_in_blocks(file: int, size: int) -> None:
    content = Random(1).randbytes(size)
    os.write(file, content)
    assert hashes_of(file, size, BLOCK_BYTES, SEED) == expected(content)


@pytest.fixture(params=[0, os.O_DIRECT], ids=["through the page cache", "past it"])
def spool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "spool", os.O_RDWR | os.O_CREAT | request.param)
    yield fd
    os.close(fd)


def content_of(fd: int) -> bytes:
    return Path(f"/proc/self/fd/{fd}").read_bytes()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "source"


@pytest.mark.parametrize("size", [0, 100, 3 * READ_BYTES, 6 * READ_BYTES + 12_345])
def test_a_copy_is_hashed_while_it_is_made(source: Path, spool: int, size: int) -> None:
    content = Random(2).randbytes(size)
    source.write_bytes(content + b"what is beyond the end")
    seen: list[int] = []

    def grew(hashes: bytearray) -> None:
        seen.append(len(hashes) // HASH_BYTES)

    hashes = copy_and_hash(StandingFile(source, size), spool, BLOCK_BYTES, SEED, grew)
    assert hashes == expected(content)
    assert content_of(spool) == content
    assert seen == sorted(seen)
    assert seen[-1:] == ([-(-size // BLOCK_BYTES)] if size else [])


def test_a_copy_has_the_head_that_it_is_given(source: Path, spool: int) -> None:
    content, head = Random(3).randbytes(2 * READ_BYTES), Random(4).randbytes(BLOCK_BYTES)
    source.write_bytes(content)
    hashes = copy_and_hash(StandingFile(source, len(content), head), spool, BLOCK_BYTES, SEED)
    assert content_of(spool) == head + content[BLOCK_BYTES:]
    assert hashes == expected(content_of(spool))


def test_what_is_told_to_be_there_can_be_read_while_the_copy_goes_on(source: Path, spool: int) -> None:
    content = Random(3).randbytes(20 * READ_BYTES)
    source.write_bytes(content)

    def grew(hashes: bytearray) -> None:
        there = content_of(spool)[: len(hashes) // HASH_BYTES * BLOCK_BYTES]
        assert (there, bytes(hashes)) == (content[: len(there)], expected(there))

    assert copy_and_hash(StandingFile(source, len(content)), spool, BLOCK_BYTES, SEED, grew)


def test_a_copy_that_nobody_wants_any_more_ends(source: Path, spool: int) -> None:
    source.write_bytes(bytes(3 * READ_BYTES))
    others = children()

    def grew(_: bytearray) -> None:
        raise StorageError("the transfer was given up")

    with pytest.raises(StorageError, match="given up"):
        copy_and_hash(StandingFile(source, 3 * READ_BYTES), spool, BLOCK_BYTES, SEED, grew)
    assert children() <= others


def test_a_copy_of_a_file_that_is_too_short_says_so(source: Path, spool: int) -> None:
    source.write_bytes(bytes(100))
    with pytest.raises(OSError, match=r"could not be hashed: .*ends at 100"):
        copy_and_hash(StandingFile(source, 5 * READ_BYTES), spool, BLOCK_BYTES, SEED)


def test_a_copy_that_cannot_be_written_says_why(source: Path, tmp_path: Path) -> None:
    source.write_bytes(bytes(20 * READ_BYTES))
    (tmp_path / "spool").touch()
    read_only = os.open(tmp_path / "spool", os.O_RDONLY)
    with pytest.raises(OSError, match=r"could not be hashed: .*Bad file descriptor"):
        copy_and_hash(StandingFile(source, 20 * READ_BYTES), read_only, BLOCK_BYTES, SEED)
    os.close(read_only)


def test_another_seed_makes_other_hashes(file: int) -> None:
    os.write(file, bytes(BLOCK_BYTES))
    assert hashes_of(file, BLOCK_BYTES, BLOCK_BYTES, SEED) != hashes_of(
        file, BLOCK_BYTES, BLOCK_BYTES, SEED + 1
    )


def test_what_cannot_go_past_the_page_cache_goes_through_it(tmp_path: Path) -> None:
    fd = open_direct(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    write(fd, memoryview(b"not aligned at all"), 3)
    assert not is_direct(fd)
    assert content_of(fd) == bytes(3) + b"not aligned at all"
    os.close(fd)

"""Parts of an image by its blocks, and what is left of one when nobody uses it."""

from __future__ import annotations

import gc
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stretto.catchup import images
from stretto.catchup.images import GrowingImage, Spool, SpooledImage, remove_spools
from stretto.catchup.machines import blocks
from stretto.errors import StorageError
from stretto.state.environment import NoSpace

BLOCK = 4_096


def described(**fields: int) -> Any:
    return SimpleNamespace(block_bytes=BLOCK, **fields)


def hashes(count: int) -> bytes:
    return b"".join(bytes([number]) * blocks.HASH_BYTES for number in range(count))


def test_pieces_are_the_bytes_of_blocks_and_the_last_may_be_short() -> None:
    whole = SpooledImage(cast(Any, None), described(size_bytes=3 * BLOCK + 100), 1, hashes(4), b"")
    assert whole.pieces(((0, 1), (2, 2))) == ((0, BLOCK), (2 * BLOCK, BLOCK + 100))
    growing = GrowingImage(cast(Any, None), described(blocks=3), bytearray(hashes(3)))
    assert growing.pieces(((1, 2),)) == ((BLOCK, 2 * BLOCK),), "what is made of it is whole blocks"


def test_hashes_are_those_of_the_blocks() -> None:
    for image in (
        SpooledImage(cast(Any, None), described(), 1, hashes(4), b""),
        GrowingImage(cast(Any, None), described(), bytearray(hashes(4))),
    ):
        found = image.hashes_of(((0, 1), (2, 2)))
        assert found == b"".join(bytes([number]) * blocks.HASH_BYTES for number in (0, 2, 3))


def test_pieces_are_read_as_they_are_or_not_at_all(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    os.pwrite(spool.fd, b"abcdefgh", 0)
    assert spool.read(((2, 3),)) == b"cde"
    assert spool.read(((6, 2), (0, 1))) == b"gha"
    with pytest.raises(StorageError, match="shorter than the image"):
        spool.read(((0, 1), (6, 3)))


def test_much_is_read_past_the_page_cache_and_a_little_through_it(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    large = images.LARGE_BYTES
    assert spool.fd_for(((0, large), (large, 2 * large))) == spool.direct
    assert spool.fd_for(((0, large - BLOCK),)) == spool.fd
    assert spool.fd_for(((1, large),)) == spool.fd
    assert spool.fd_for(((0, large), (large, BLOCK))) == spool.fd


def test_a_spool_that_nobody_uses_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x")
    before = set(os.listdir("/proc/self/fd"))
    spool = Spool(tmp_path / "spool")
    spool.is_copy_of(tmp_path / "source")
    assert len(set(os.listdir("/proc/self/fd")) - before) >= 3
    del spool
    gc.collect()
    assert not [
        name
        for name in os.listdir("/proc/self/fd")
        if str(tmp_path) in os.path.realpath(f"/proc/self/fd/{name}")
    ]


@pytest.mark.parametrize("is_small", [True, False])
def test_an_image_of_some_size_knows_the_file_that_it_is_a_copy_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_small: bool
) -> None:
    """What is the same there and here takes room on the disk once."""
    source = tmp_path / "data.mdb"
    source.write_bytes(bytes(BLOCK))
    copied: list[Path] = []

    def copy(file: Any, descriptor: int, *_: object) -> bytes:
        copied.append(file.path)
        os.ftruncate(descriptor, BLOCK)
        return hashes(1)

    monkeypatch.setattr(images, "SMALL_BYTES", BLOCK if is_small else BLOCK - 1)
    monkeypatch.setattr(images, "copy_and_hash", copy)
    monkeypatch.setattr(images, "hashes_of", lambda *_: hashes(1))
    monkeypatch.setattr(images, "offset_of_image", lambda *_: 7)
    monkeypatch.setattr(blocks, "block_bytes_for", lambda _: BLOCK)
    state = SimpleNamespace(
        transaction=lambda _: 1,
        size_bytes=lambda _: BLOCK,
        image=lambda _, descriptor: os.ftruncate(descriptor, BLOCK),
        standing=lambda _: nullcontext(SimpleNamespace(path=source)),
    )
    ask = SimpleNamespace(epoch=1, incarnation="i", attempt=1, task=0, round=1, base=0)
    image = images.make_image(cast(Any, state), tmp_path, cast(Any, ask), None)
    assert copied == ([] if is_small else [source])
    if is_small:
        assert image.spool.source is None
    else:
        assert image.spool.source is not None
        assert os.path.samestat(os.fstat(image.spool.source), source.stat())
    assert (image.described.offset, image.described.size_bytes, image.described.base) == (7, BLOCK, 0)
    assert list((tmp_path / images.SPOOL).iterdir()) == []


def test_progress_is_told_every_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "GROWTH_BYTES", 2 * BLOCK)
    told: list[GrowingImage] = []
    ask = SimpleNamespace(epoch=1, incarnation="i", attempt=1, task=0, round=7)
    progress = images._Progress(cast(Any, None), cast(Any, ask), 9 * BLOCK, BLOCK, told.append)
    for count in range(1, 7):
        progress.on_hashed(bytearray(hashes(count)))
    assert [each.described.blocks for each in told] == [2, 4, 6]
    assert {(each.described.size_bytes, each.described.round) for each in told} == {(9 * BLOCK, 7)}


def test_an_image_takes_no_room_that_the_log_may_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = SimpleNamespace(f_bavail=1_000, f_frsize=images.SPOOL_SPARE_BYTES // 500)
    monkeypatch.setattr(os, "statvfs", lambda _: room)
    free = room.f_bavail * room.f_frsize
    images._require_space(tmp_path, free - images.SPOOL_SPARE_BYTES)
    with pytest.raises(NoSpace, match="free some space there"):
        images._require_space(tmp_path, free - images.SPOOL_SPARE_BYTES + 1)


def test_an_image_that_is_not_hashed_completely_is_not_sent() -> None:
    images._check_hashed(hashes(3), 3)
    with pytest.raises(StorageError, match="not hashed completely"):
        images._check_hashed(hashes(2), 3)


def test_spools_that_a_killed_process_left_are_removed(tmp_path: Path) -> None:
    remove_spools(tmp_path)
    (tmp_path / images.SPOOL).mkdir()
    (tmp_path / images.SPOOL / "task-0-abc").touch()
    (tmp_path / "task-0").mkdir()
    remove_spools(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["task-0"]

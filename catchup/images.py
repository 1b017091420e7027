"""Images that a leader makes of its tasks, kept in spool files until a transfer ends.

The copy is made at disk speed beside the writer; only while it is made is a transaction open. A spool file
has no name once it is made, so nothing is left of it when its last user lets go, or the process ends.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from stretto.catchup.hasher import is_aligned, open_direct
from stretto.catchup.hashing import SMALL_BYTES, copy_and_hash, hashes_of
from stretto.catchup.machines import blocks
from stretto.errors import StorageError
from stretto.process.private_files import private_folder
from stretto.state.applied import AppliedState
from stretto.state.environment import NoSpace
from stretto.state.task_meta import offset_of_image
from stretto.vocabulary.types import Offset, TaskId
from stretto.wire import catchup
from stretto.wire.catchup import Run

SPOOL = "spool"
GROWTH_BYTES = 8 << 20
"""How many bytes an image grows by before its growth is reported again."""
SPOOL_SPARE_BYTES = 64 << 20
"""Free space on the leader's disk that no image may take."""
LARGE_BYTES = 64 * 1024
"""Size from which a piece is better read past the page cache."""

Pieces: TypeAlias = tuple[tuple[int, int], ...]
"""Position and length of each piece of a spool file."""


class Spool:
    """The file of an image, from the moment it begins to be made."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        weakref.finalize(self, os.close, self.fd)
        #: Descriptor of the same file that goes past the page cache.
        self.direct = open_direct(path, os.O_RDWR)
        weakref.finalize(self, os.close, self.direct)
        #: Descriptor of the file that this is a copy of. What is there may have changed since.
        self.source: int | None = None

    def is_copy_of(self, source: Path) -> None:
        """Note the file that this is a copy of; its bytes may be sent instead where they are the same."""
        self.source = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.source)

    def fd_for(self, pieces: Pieces) -> int:
        """Descriptor to read these pieces from: much at once past the page cache, a little through it."""
        large = all(length >= LARGE_BYTES and is_aligned(start, length) for start, length in pieces)
        return self.direct if large else self.fd

    def read(self, pieces: Pieces) -> bytes:
        parts = []
        for position, length in pieces:
            part = os.pread(self.fd, length, position)
            if len(part) != length:
                raise StorageError("a spool file is shorter than the image it holds")
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(eq=False)
class SpooledImage:
    """An image that is made.

    ``described`` answers the question that it was made for; ``listed`` is the list that goes with it.
    """

    spool: Spool
    described: catchup.Image
    transaction: int
    hashes: bytes
    listed: bytes

    def pieces(self, runs: tuple[Run, ...]) -> Pieces:
        """Where the blocks of these runs are in the spool file."""
        return _pieces(runs, self.described.size_bytes, self.described.block_bytes)

    def hashes_of(self, runs: tuple[Run, ...]) -> bytes:
        return _hashes_of(runs, self.hashes)


@dataclass(eq=False)
class GrowingImage:
    """An image that is being made, as far as ``described`` says."""

    spool: Spool
    described: catchup.Growing
    hashes: bytearray

    def pieces(self, runs: tuple[Run, ...]) -> Pieces:
        """Where the blocks of these runs are in the spool file."""
        block_bytes = self.described.block_bytes
        return _pieces(runs, self.described.blocks * block_bytes, block_bytes)

    def hashes_of(self, runs: tuple[Run, ...]) -> bytes:
        return _hashes_of(runs, self.hashes)


def _hashes_of(runs: tuple[Run, ...], hashes: bytes | bytearray) -> bytes:
    return b"".join(
        hashes[first * blocks.HASH_BYTES : (first + count) * blocks.HASH_BYTES] for first, count in runs
    )


def _pieces(runs: tuple[Run, ...], size_bytes: int, block_bytes: int) -> Pieces:
    return tuple((run[0] * block_bytes, blocks.length_of(run, size_bytes, block_bytes)) for run in runs)


def make_image(
    state: AppliedState,
    folder: Path,
    ask: catchup.AskImage,
    previous: SpooledImage | None,
    on_growth: Callable[[GrowingImage], None] = lambda _: None,
) -> SpooledImage:
    """Make an image of a task's state in a spool file. Blocks on the disk.

    ``previous`` is of the round before. ``on_growth`` is called on this thread, now and then, while an image
    of some size is made. Raises StorageError or OSError.
    """
    transaction = state.transaction(ask.task)
    if previous is not None and previous.transaction == transaction:
        spool, hashes = previous.spool, previous.hashes
        size_bytes, block_bytes = previous.described.size_bytes, previous.described.block_bytes
        offset = previous.described.offset
    else:
        private_folder(folder / SPOOL)
        path = folder / SPOOL / f"task-{ask.task}-{os.urandom(6).hex()}"
        spool = Spool(path)
        try:
            expected_bytes = state.size_bytes(ask.task)
            block_bytes = blocks.block_bytes_for(expected_bytes)
            seed = blocks.seed_of(ask.incarnation)
            _require_space(folder, expected_bytes)
            if expected_bytes <= SMALL_BYTES:
                state.image(ask.task, spool.fd)
                hashes = hashes_of(spool.fd, os.fstat(spool.fd).st_size, block_bytes, seed)
            else:
                progress = _Progress(spool, ask, expected_bytes, block_bytes, on_growth)
                with state.standing(ask.task) as file:
                    spool.is_copy_of(file.path)
                    hashes = copy_and_hash(file, spool.direct, block_bytes, seed, progress.on_hashed)
            offset = offset_of_image(path, ask.task)
        finally:
            path.unlink()
        size_bytes = os.fstat(spool.fd).st_size
        _check_hashed(hashes, blocks.blocks_in(size_bytes, block_bytes))
    against = previous if previous is not None and ask.base == previous.described.round else None
    if against is not None and against.described.block_bytes != block_bytes:
        against = None
    listed = hashes if against is None else blocks.encode_changes(against.hashes, hashes)
    described = catchup.Image(
        ask.epoch,
        ask.incarnation,
        ask.attempt,
        task=ask.task,
        round=ask.round,
        offset=offset,
        size_bytes=size_bytes,
        block_bytes=block_bytes,
        digest=blocks.digest_of(hashes),
        base=0 if against is None else ask.base,
        list_bytes=len(listed),
        applied=offset,
    )
    return SpooledImage(spool, described, transaction, hashes, listed)


class _Progress:
    """Reports how far an image has come, every ``GROWTH_BYTES``."""

    def __init__(
        self,
        spool: Spool,
        ask: catchup.AskImage,
        size_bytes: int,
        block_bytes: int,
        on_growth: Callable[[GrowingImage], None],
    ) -> None:
        self._spool, self._ask = spool, ask
        self._size_bytes, self._block_bytes = size_bytes, block_bytes
        self._on_growth = on_growth
        self._told = 0

    def on_hashed(self, hashes: bytearray) -> None:
        count = len(hashes) // blocks.HASH_BYTES
        if (count - self._told) * self._block_bytes < GROWTH_BYTES:
            return
        self._told = count
        ask = self._ask
        described = catchup.Growing(
            ask.epoch,
            ask.incarnation,
            ask.attempt,
            task=ask.task,
            round=ask.round,
            size_bytes=self._size_bytes,
            block_bytes=self._block_bytes,
            blocks=count,
            applied=Offset(0),
        )
        self._on_growth(GrowingImage(self._spool, described, hashes))


def _require_space(folder: Path, size_bytes: int) -> None:
    """Raise NoSpace if an image would fill the leader's own disk.

    What it writes its log to matters more than a follower's state.
    """
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < size_bytes + SPOOL_SPARE_BYTES:
        raise NoSpace(
            f"the leader's disk has {free} bytes left, too few for a copy of {size_bytes} bytes to be sent; "
            "free some space there"
        )


def _check_hashed(hashes: bytes, count: int) -> None:
    if len(hashes) != count * blocks.HASH_BYTES:
        raise StorageError(f"an image of {count} blocks was not hashed completely")


def remove_spools(folder: Path) -> None:
    """Remove what a process that was killed in the middle of a copy left."""
    shutil.rmtree(folder / SPOOL, ignore_errors=True)


def task_folder(folder: Path, task: TaskId) -> Path:
    """Folder of a task's environment, within the folder of a state."""
    return folder / f"task-{task}"

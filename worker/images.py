"""Images that a leader makes of its tasks, kept in spool files until a transfer ends.

The copy is made at disk speed beside the writer; only while it is made is a transaction open. A spool file
has no name once it is made, so nothing is left of it when its last user lets go, or the process ends.
"""

from __future__ import annotations

import os
import shutil
import weakref
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stretto.catchup import blocks, messages
from stretto.catchup.messages import Run
from stretto.errors import StorageError
from stretto.types import TaskId
from stretto.worker.hashing import SMALL_BYTES, copy_and_hash, hashes_of
from stretto.worker.state import AppliedState
from stretto.worker.taskstate import offset_of_image

SPOOL = "spool"


@dataclass(eq=False)
class SpooledImage:
    """``described`` answers the question that it was made for; ``listed`` is the list that goes with it."""

    fd: int
    described: messages.Image
    transaction: int
    hashes: bytes
    listed: bytes

    def __post_init__(self) -> None:
        weakref.finalize(self, os.close, self.fd)

    def read(self, runs: tuple[Run, ...]) -> bytes:
        size_bytes, block_bytes = self.described.size_bytes, self.described.block_bytes
        parts = []
        for run in runs:
            wanted = blocks.length_of(run, size_bytes, block_bytes)
            part = os.pread(self.fd, wanted, run[0] * block_bytes)
            if len(part) != wanted:
                raise StorageError("a spool file is shorter than the image it holds")
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def make_image(
    state: AppliedState, folder: Path, ask: messages.AskImage, previous: SpooledImage | None
) -> SpooledImage:
    """Blocks on the disk. ``previous`` is of the round before; raises StorageError or OSError."""
    transaction = state.transaction(ask.task)
    if previous is not None and previous.transaction == transaction:
        fd, hashes = os.dup(previous.fd), previous.hashes
        size_bytes, block_bytes = previous.described.size_bytes, previous.described.block_bytes
        offset = previous.described.offset
    else:
        spool = folder / SPOOL
        spool.mkdir(exist_ok=True)
        path = spool / f"task-{ask.task}-{os.urandom(6).hex()}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                expected_bytes = state.size_bytes(ask.task)
                block_bytes = blocks.block_bytes_for(expected_bytes)
                if expected_bytes <= SMALL_BYTES:
                    state.image(ask.task, fd)
                    hashes = hashes_of(fd, os.fstat(fd).st_size, block_bytes)
                else:
                    hashes = copy_and_hash(partial(state.image, ask.task), fd, block_bytes)
                offset = offset_of_image(path, ask.task)
            finally:
                path.unlink()
            size_bytes = os.fstat(fd).st_size
            _check_hashed(hashes, blocks.blocks_in(size_bytes, block_bytes))
        except BaseException:
            os.close(fd)
            raise
    against = previous if previous is not None and ask.base == previous.described.round else None
    if against is not None and against.described.block_bytes != block_bytes:
        against = None
    listed = hashes if against is None else blocks.encode_changes(against.hashes, hashes)
    described = messages.Image(
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
    return SpooledImage(fd, described, transaction, hashes, listed)


def _check_hashed(hashes: bytes, count: int) -> None:
    if len(hashes) != count * blocks.HASH_BYTES:
        raise StorageError(f"an image of {count} blocks was not hashed completely")


def remove_spools(folder: Path) -> None:
    """What a process that was killed in the middle of a copy left."""
    shutil.rmtree(folder / SPOOL, ignore_errors=True)


def task_folder(folder: Path, task: TaskId) -> Path:
    """Where the environment of a task is, within the folder of a state."""
    return folder / f"task-{task}"

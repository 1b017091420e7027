"""What the file of a task says of itself, beside its data: the rows of its database ``meta``.

::

    format         version of this layout, 1 byte
    task           the task's number, so that a file that was moved to the wrong folder is noticed
    applied        own applied offset, u64
    dropped        the latest version of the module whose deletions were carried out, u64
    sealed         for which grouping the log is sealed, and where: three u64; absent if it is not
    producer/<id>  one row for each open producer: its sequences on this task, or nil before its first batch
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb
import msgspec

from stretto.replog.core.producers import Sequences
from stretto.replog.frame import Header, Kind
from stretto.state.environment import StateCorrupt
from stretto.vocabulary.decoding import MALFORMED
from stretto.vocabulary.types import Epoch, Offset, ProducerId, TaskId

if TYPE_CHECKING:
    from stretto.state.environment import Database, ReadTransaction, WriteTransaction

FORMAT_VERSION = 1
U64 = struct.Struct(">Q")
FORMAT = b"format"
TASK = b"task"
APPLIED = b"applied"
PRODUCER = b"producer/"
DROPPED = b"dropped"
SEALED = b"sealed"
_SEAL = struct.Struct(">QQQ")
encode_producer = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(Sequences | None).decode


@dataclass(frozen=True, slots=True)
class Seal:
    """The entry after which a task goes on in another grouping."""

    grouping: int
    offset: Offset
    epoch: Epoch

    @classmethod
    def of(cls, header: Header) -> Seal | None:
        """The seal after this entry: that of a SEAL, None after an UNSEAL."""
        is_seal = header.kind is Kind.SEAL
        return cls(header.sequence, header.offset, header.epoch) if is_seal else None

    def encode(self) -> bytes:
        return _SEAL.pack(self.grouping, self.offset, self.epoch)

    @classmethod
    def decode(cls, row: bytes) -> Seal:
        grouping, offset, epoch = _SEAL.unpack(row)
        return cls(grouping, Offset(offset), Epoch(epoch))


def offset_of_image(file: Path, task: TaskId) -> Offset:
    """Offset that a copy of a task's file is the state of. The copy must not be open elsewhere."""
    try:
        with (
            lmdb.open(str(file), subdir=False, readonly=True, lock=False, max_dbs=1) as environment,
            environment.begin(buffers=True) as txn,
        ):
            return offset_in(txn, environment.open_db(b"meta", txn=txn, create=False), task)
    except lmdb.Error as error:
        raise StateCorrupt(f"the image of task {task} cannot be read: {error}") from error


def offset_in(txn: ReadTransaction, meta: Database, task: TaskId) -> Offset:
    """Offset that the file of a task says it is the state of. Raises StateCorrupt if it is another task's."""
    version, owner = txn.get(FORMAT, b"", db=meta), txn.get(TASK, b"", db=meta)
    if bytes(version) != bytes([FORMAT_VERSION]) or bytes(owner) != U64.pack(task):
        raise StateCorrupt(f"the image of task {task} is that of something else")
    try:
        return Offset(U64.unpack(txn.get(APPLIED, b"", db=meta))[0])
    except struct.error as error:
        raise StateCorrupt(f"the image of task {task} cannot be read: {error}") from error


def producers_in(
    txn: ReadTransaction | WriteTransaction, meta: Database, task: TaskId
) -> Iterator[tuple[ProducerId, dict[TaskId, Sequences]]]:
    """Yield the producers of a file, ascending."""
    cursor = txn.cursor(meta)
    found = cursor.set_range(PRODUCER)
    while found and bytes(key := cursor.key()).startswith(PRODUCER):
        try:
            row = _decode_row(cursor.value())
        except MALFORMED as error:
            raise StateCorrupt(f"a producer's row of task {task} is damaged: {error}") from error
        yield ProducerId(U64.unpack(key[len(PRODUCER) :])[0]), {} if row is None else {task: row}
        found = cursor.next()

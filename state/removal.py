"""The payload of a TRIM entry: what goes away on a task, the same on every replica.

A *trim* takes whole batches off the front of a depot; offsets stay what they are. A *drop* empties objects
that an update deleted. It carries the module's version that did: a task remembers the latest and drops
nothing a second time, so a leader that repeats it late, when the name is in use again, does no harm.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stretto.errors import PeerError
from stretto.vocabulary.decoding import MALFORMED
from stretto.vocabulary.types import Buffer


class Trim(msgspec.Struct, frozen=True, array_like=True, tag="trim", gc=False):
    """Removal of the batches that end at or below an offset.

    The last batch is never removed: it tells where the depot goes on.
    """

    depot: str
    below: int


class Drop(msgspec.Struct, frozen=True, array_like=True, tag="drop", gc=False):
    """Removal of all that is kept under these names, which a version of the module has deleted."""

    version: int
    names: tuple[str, ...]
    """Names of depots, PStates and topologies."""


Removal: TypeAlias = Trim | Drop

encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Removal] = msgspec.msgpack.Decoder(Removal)


def parse(payload: Buffer) -> Removal:
    """Decode a removal. Raises PeerError."""
    try:
        return _decoder.decode(payload)
    except MALFORMED as error:
        raise PeerError(f"an entry that removes something is malformed: {error}") from None

"""The payload of a STATE entry: what a batch does to the PStates of one task, as rows.

There are three kinds of changes, carried out in this order: ranges of rows are deleted, rows are deleted,
rows are put. Whatever a person means by a change (a counter goes up, a list gets longer, a subtree goes) is
made of these by the time it is written. The writer knows the state that its entry will meet, because one
topology writes a PState and sees what it wrote before, applied or not; so a change is resolved once, there,
and refused there if it cannot be, instead of on every replica when it is too late to refuse. It also makes an
entry harmless to apply twice, and lets LMDB take all rows in one call.

Layout: MessagePack of ``[version, {name of the PState: [ranges, deletes, puts]}]``. Names that begin with
``$`` are the engine's own: rows that no module declares, and that change together with those that one does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from stretto.errors import PeerError, UsageError
from stretto.pstate.ordered import EVERYTHING, KEY_BYTES_MAX, Range
from stretto.pstate.tree import VALUE_BYTES_MAX, Row
from stretto.vocabulary.decoding import MALFORMED
from stretto.vocabulary.suggest import did_you_mean
from stretto.vocabulary.types import Buffer

CHANGES_VERSION = 1
CHANGES_BYTES_MAX = 32 * 1024 * 1024
"""Largest size of a whole payload, which is held in memory, as a batch of records is."""
PART_BYTES_MAX = CHANGES_BYTES_MAX // 2
"""Largest size of what one run changes and sends; the rest of a payload is for what its driver adds."""


class Changes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The changes of one PState: ranges to delete, rows to delete, rows to put, in this order."""

    ranges: tuple[Range, ...] = ()
    deletes: tuple[bytes, ...] = ()
    puts: tuple[Row, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ranges or self.deletes or self.puts)


class _Payload(msgspec.Struct, frozen=True, array_like=True, gc=False):
    version: int
    pstates: dict[str, Changes]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Payload).decode
#: An array of two: the version, and the map whose size and content follow.
_HEAD = bytes([0x92, CHANGES_VERSION])


def pack(changes: Mapping[str, Changes]) -> bytes:
    """Return the payload of these changes; raises UsageError if it is too large."""
    payload = _encode(_Payload(CHANGES_VERSION, dict(changes)))
    if len(payload) > CHANGES_BYTES_MAX:
        raise UsageError(
            f"the changes of a batch have {len(payload)} bytes, beyond the limit of {CHANGES_BYTES_MAX}; "
            "make smaller batches"
        )
    return payload


class Packed(NamedTuple):
    """A part of a payload: the changes of a number of PStates, each behind its name."""

    pstates: int
    body: Buffer


NO_CHANGES = Packed(0, b"")


class TooMuch(UsageError):
    """Raised when the changes of a batch are larger than one entry may be."""


def pack_part(changes: Mapping[str, Changes], bytes_max: int = PART_BYTES_MAX) -> Packed:
    """Return a part of a payload, to which :func:`joined` adds others; raises TooMuch if it is too large."""
    body = b"".join(_encode(name) + _encode(each) for name, each in changes.items())
    if len(body) > bytes_max:
        raise TooMuch(
            f"the changes of a batch have {len(body)} bytes, beyond the limit of {bytes_max}; "
            "make smaller batches"
        )
    return Packed(len(changes), body)


def joined(*parts: Packed) -> bytes:
    """Return the payload of these parts, none of which names a PState that another does."""
    count = sum(part.pstates for part in parts)
    size = bytes([0x80 | count]) if count < 16 else b"\xdf" + count.to_bytes(4, "big")
    return b"".join((_HEAD, size, *(part.body for part in parts)))


def parse(payload: Buffer) -> dict[str, Changes]:
    """Return the changes in a payload that was checked before, or is about to be. Raises PeerError."""
    try:
        parsed = _decode(payload)
    except MALFORMED as error:
        raise PeerError(f"changes of PStates are malformed: {error}") from None
    if parsed.version != CHANGES_VERSION:
        raise PeerError(f"changes of PStates of version {parsed.version} are not known here")
    return parsed.pstates


def check_payload(payload: Buffer, declared: Collection[str]) -> None:
    """Check a payload for all that could keep it from being applied. Raises PeerError."""
    if len(payload) > CHANGES_BYTES_MAX:
        raise PeerError(
            f"changes of {len(payload)} bytes are beyond the limit of {CHANGES_BYTES_MAX}; send smaller ones"
        )
    for name, changes in parse(payload).items():
        if name not in declared and not name.startswith("$"):
            raise PeerError(f"there is no PState {name}; {did_you_mean(name, declared)}")
        _check(name, changes)


def _check(name: str, changes: Changes) -> None:
    keys = [*changes.deletes, *(key for key, _ in changes.puts)]
    if not all(keys) or max(map(len, keys), default=0) > KEY_BYTES_MAX:
        raise PeerError(f"a key of PState {name} is empty or longer than {KEY_BYTES_MAX} bytes")
    if any(len(value) > VALUE_BYTES_MAX for _, value in changes.puts):
        raise PeerError(f"a value of PState {name} is beyond the limit of {VALUE_BYTES_MAX} bytes")
    for start, end in changes.ranges:
        # Both are where LMDB looks for a row.
        whole = (start, end) == EVERYTHING
        if not whole and not (start and start < end and max(len(start), len(end)) <= KEY_BYTES_MAX):
            raise PeerError(f"a range of PState {name} is empty, or ends at more than {KEY_BYTES_MAX} bytes")

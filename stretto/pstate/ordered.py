"""Keys as bytes whose order is the order of the keys.

A key is None, a bool, an int of 64 bits, a float, text, bytes, a datetime, a date, or a tuple of keys. Within
a type, bytes compare as the values do in Python; the types follow one another in the order just given. An
encoded key tells its own end, so keys written one after the other are a path, and all paths that continue
one lie together. Layout, a tag and what follows it::

    02                     None
    04 05                  False, True
    10 ... 17              negative int: its distance to -1, bytes inverted; the longer the smaller the tag
    18                     0
    19 ... 20              positive int of 1 to 8 bytes, big-endian
    28 + 8 bytes           float: IEEE, with the sign bit flipped, or all bits if it is negative
    30 ... 00              text in UTF-8, with 00 written as 00 ff
    38 ... 00              bytes, the same way
    40 + 8 bytes           datetime: microseconds since 1970 UTC, plus 2^63
    48 + 4 bytes           date: its proleptic Gregorian ordinal
    50 ... 00              tuple: its members one after the other

No tag is 00 or ff: where a text, bytes or a tuple ends, a 00 is followed by the tag of what comes next or by
nothing, and an ff after a 00 means that it has not ended. -0.0 is 0.0. NaN has no place in an order and a
datetime without a zone has none in time: both are refused. A datetime comes back in UTC.
"""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, TypeAlias

from stretto.errors import PeerError, UsageError

KEY_BYTES_MAX: Final = 511
"""LMDB's limit for a whole row key, hence for a path."""

INT_MIN: Final = -(1 << 63)
INT_MAX: Final = (1 << 63) - 1

Range: TypeAlias = tuple[bytes, bytes]
"""A range ``[start, end)`` of encoded keys."""

EVERYTHING: Final[Range] = (b"", b"\xff")
"""The range of all keys."""

_END = 0x00
TAG_NONE = 0x02
TAG_FALSE = 0x04
TAG_TRUE = 0x05
TAG_ZERO = 0x18
TAG_FLOAT = 0x28
TAG_TEXT = 0x30
TAG_BYTES = 0x38
TAG_DATETIME = 0x40
TAG_DATE = 0x48
TAG_TUPLE = 0x50

INT_BYTES_MAX = 8
_DOUBLE = struct.Struct(">d")
_U64 = struct.Struct(">Q")
_U32 = struct.Struct(">I")
_SIGN = 1 << 63
_ALL = (1 << 64) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
TEXT_BEGINS = bytes([TAG_TEXT])
TEXT_ENDS = b"\0"
_BYTES_TAG = bytes([TAG_BYTES])
TUPLE_BEGINS: Final = bytes([TAG_TUPLE])
TUPLE_ENDS: Final = bytes([_END])
_SHOWN_CHARACTERS_MAX = 60


def encode(key: Any) -> bytes:
    """Encode a key; raises UsageError for what is none. The caller checks the length: see KEY_BYTES_MAX."""
    if type(key) is str:
        return encode_text(key)
    match key:
        case None:
            return bytes([TAG_NONE])
        case bool():
            return bytes([TAG_TRUE if key else TAG_FALSE])
        case int():
            return _int(key)
        case float():
            return _float(key)
        case str():
            return encode_text(key)
        case bytes():
            return b"".join((_BYTES_TAG, key.replace(b"\0", b"\0\xff"), b"\0"))
        case datetime():
            return _datetime(key)
        case date():
            return bytes([TAG_DATE]) + _U32.pack(key.toordinal())
        case tuple():
            return b"".join((TUPLE_BEGINS, *map(encode, key), TUPLE_ENDS))
        case _:
            raise UsageError(
                f"{shown(key)} is no key; use text, a number, bytes, a bool, a date, a datetime with a zone, "
                "None or a tuple of these"
            )


def decode(data: bytes) -> Any:
    """Decode a key. Raises PeerError if the bytes are anything but one whole key."""
    key, end = decode_at(data, 0)
    if end != len(data):
        raise PeerError(f"{len(data) - end} bytes follow a key")
    return key


def decode_at(data: bytes, at: int) -> tuple[Any, int]:
    """Return the key that begins at ``at``, and where it ends."""
    end = end_of(data, at)
    tag = data[at]
    body = data[at + 1 : end]
    if tag == TAG_TEXT:
        try:
            return body[:-1].replace(b"\0\xff", b"\0").decode(), end
        except UnicodeDecodeError as error:
            raise PeerError(f"a key is damaged: {error}") from None
    if tag == TAG_BYTES:
        return body[:-1].replace(b"\0\xff", b"\0"), end
    if tag >= TAG_ZERO and tag <= TAG_ZERO + INT_BYTES_MAX:
        return int.from_bytes(body, "big"), end
    if tag < TAG_ZERO and tag >= TAG_ZERO - INT_BYTES_MAX:
        return int.from_bytes(body, "big") - (1 << 8 * len(body)) + 1, end
    if tag == TAG_FLOAT:
        bits = _U64.unpack(body)[0]
        return _DOUBLE.unpack(_U64.pack(bits ^ _SIGN if bits & _SIGN else bits ^ _ALL))[0], end
    if tag == TAG_TUPLE:
        members = []
        at += 1
        while at < end - 1:
            member, at = decode_at(data, at)
            members.append(member)
        return tuple(members), end
    try:
        if tag == TAG_DATETIME:
            return _EPOCH + (_U64.unpack(body)[0] - _SIGN) * _MICROSECOND, end
        if tag == TAG_DATE:
            return date.fromordinal(_U32.unpack(body)[0]), end
    except (ValueError, OverflowError) as error:
        raise PeerError(f"a key is damaged: {error}") from None
    return {TAG_NONE: None, TAG_FALSE: False, TAG_TRUE: True}[tag], end


def end_of(data: bytes, at: int) -> int:
    """Return where the key that begins at ``at`` ends; nothing is decoded."""
    if at >= len(data):
        raise PeerError("a key is cut short")
    tag = data[at]
    at += 1
    if tag in (TAG_TEXT, TAG_BYTES):
        while True:
            at = data.find(b"\0", at) + 1
            if at == 0:
                raise PeerError("a key is cut short")
            if data[at : at + 1] != b"\xff":
                return at
            at += 1
    if tag == TAG_TUPLE:
        while data[at : at + 1] != b"\0":
            at = end_of(data, at)
        return at + 1
    size = _SIZES.get(tag)
    if size is None:
        raise PeerError(f"a key is damaged: nothing has the tag {tag:02x}")
    if at + size > len(data):
        raise PeerError("a key is cut short")
    return at + size


# Ranges.


def subtree(path: bytes) -> Range:
    """Return the range of a path and all paths that continue it."""
    return path, path + b"\xff"


def beginning_with(prefix: Any) -> Range:
    """Return the range of texts or bytes that begin so, or of tuples that begin with these members."""
    match prefix:
        case str() | bytes():
            start = encode(prefix)[:-1]
            # Unlike the end of a key, a beginning may be followed by any byte, ff among them.
            return start, successor(start)
        case tuple():
            return subtree(encode(prefix)[:-1])
        case _:
            raise UsageError(f"only text, bytes and tuples have beginnings, unlike {shown(prefix)}")


def behind(path: bytes) -> bytes:
    """Return the least key of a row behind a path and all that continue it."""
    # Nothing continues a path that is as long as a key may be, and one byte more would be no key.
    return path + b"\xff" if len(path) < KEY_BYTES_MAX else successor(path)


def successor(start: bytes) -> bytes:
    """Return the least bytes that are greater than all that begin with ``start``.

    The first byte of that is a tag, so it is not ff.
    """
    stripped = start.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])


def shown(value: object) -> str:
    """Return a value as text for an error message, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[: _SHOWN_CHARACTERS_MAX - 3] + "..."


# Types.

_SIZES = {
    **{TAG_ZERO + size: size for size in range(INT_BYTES_MAX + 1)},
    **{TAG_ZERO - size: size for size in range(1, INT_BYTES_MAX + 1)},
    TAG_NONE: 0,
    TAG_FALSE: 0,
    TAG_TRUE: 0,
    TAG_FLOAT: 8,
    TAG_DATETIME: 8,
    TAG_DATE: 4,
}


def encode_text(key: str) -> bytes:
    """Encode a key that is text, as :func:`encode` does."""
    try:
        data = key.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{shown(key)} is no key: it holds half of a surrogate pair") from None
    return b"".join((TEXT_BEGINS, data.replace(b"\0", b"\0\xff") if b"\0" in data else data, TEXT_ENDS))


def _int(key: int) -> bytes:
    if not INT_MIN <= key <= INT_MAX:
        raise UsageError(f"{shown(key)} is no key: an int has 64 bits at most; use text")
    size = (key.bit_length() + 7) // 8
    if key >= 0:
        return bytes([TAG_ZERO + size]) + key.to_bytes(size, "big")
    return bytes([TAG_ZERO - size]) + (key + (1 << 8 * size) - 1).to_bytes(size, "big")


def _float(key: float) -> bytes:
    if key != key:  # noqa: PLR0124 - NaN
        raise UsageError("NaN is no key: it has no place in an order")
    bits = _U64.unpack(_DOUBLE.pack(key + 0.0))[0]
    return bytes([TAG_FLOAT]) + _U64.pack(bits ^ _ALL if bits & _SIGN else bits | _SIGN)


def _datetime(key: datetime) -> bytes:
    if key.utcoffset() is None:
        raise UsageError(f"{shown(key)} is no key: it has no zone; add one, such as datetime.UTC")
    try:
        since = (key.astimezone(UTC) - _EPOCH) // _MICROSECOND
    except OverflowError:
        raise UsageError(f"{shown(key)} is no key: in UTC it is out of range") from None
    return bytes([TAG_DATETIME]) + _U64.pack(since + _SIGN)

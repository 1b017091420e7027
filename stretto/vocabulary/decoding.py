"""Headers that peers send: decoded, or refused as what no correct peer sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from stretto.errors import PeerError

T = TypeVar("T")

MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors that decoding raises for bytes that are not what they should be.

They are msgspec's; Python's own for text that is no UTF-8, and for what is nested too deeply.
"""


def refusing(decoder: msgspec.msgpack.Decoder[T], what: str) -> Callable[[bytes | memoryview], T]:
    """A function that decodes headers, and raises PeerError, which names ``what``, for malformed ones."""
    decode = decoder.decode

    def decoded(header: bytes | memoryview) -> T:
        try:
            return decode(header)
        except MALFORMED as error:
            raise PeerError(f"a malformed {what} came in: {error}") from error

    return decoded

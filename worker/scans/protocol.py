"""What a worker and its scan process say to each other, over a pair of sockets that keeps messages apart.

The worker speaks first: :class:`Start` is answered with :class:`Ready` or :class:`Failed`. Each request has a
number, and its answer carries it back.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

MESSAGE_BYTES_MAX = 1 << 20
LISTED_MAX = 200
"""How many pins are listed at most, so that a message stays small."""


class Start(msgspec.Struct, frozen=True, tag="start", gc=False):
    """Listen, and serve this worker. The first message; answered with Ready or Failed."""

    number: int
    worker: str
    host: str
    """The host where the process is to listen, on any port."""
    public: bytes
    secret: bytes
    """The secret half of the cluster key; empty without one."""
    idle_ms: int
    """How long the process goes on without any pin before it ends."""


class Open(msgspec.Struct, frozen=True, tag="open", gc=False):
    """Begin a pin: a read transaction on every task. Answered with Done or Failed."""

    number: int
    pin: str
    group: str
    folder: str
    """The folder that holds the folders of the tasks."""
    tasks: tuple[int, ...]
    offset: int
    holder: str
    idle_ms: int
    max_age_ms: int
    hold_ms: int = 0
    """How long the pin is kept at least after it was last read, also if all of it was read."""


class Prepare(msgspec.Struct, frozen=True, tag="prepare", gc=False):
    """Open the files of a group that is about to be pinned, which takes longer than the pin itself."""

    number: int
    group: str
    folder: str
    tasks: tuple[int, ...]


class Close(msgspec.Struct, frozen=True, tag="close", gc=False):
    """End a pin."""

    number: int
    pin: str
    why: str


class Forget(msgspec.Struct, frozen=True, tag="forget", gc=False):
    """Close all pins of a group, and its files."""

    number: int
    group: str
    why: str


class List(msgspec.Struct, frozen=True, tag="list", gc=False):
    """List the pins that are kept. Answered with Listed."""

    number: int


class Ready(msgspec.Struct, frozen=True, tag="ready", gc=False):
    """The process listens at this address."""

    number: int
    address: str


class Done(msgspec.Struct, frozen=True, tag="done", gc=False):
    """The request was carried out."""

    number: int


class Failed(msgspec.Struct, frozen=True, tag="failed", gc=False):
    """The request was not carried out, and why."""

    number: int
    why: str


class Kept(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A pin that is kept."""

    pin: str
    group: str
    offset: int
    holder: str
    age_ms: int
    idle_ms: int
    sent_bytes: int


class Listed(msgspec.Struct, frozen=True, tag="listed", gc=False):
    """The pins that are kept, oldest first."""

    number: int
    pins: tuple[Kept, ...]


ToChild: TypeAlias = Start | Open | Prepare | Close | Forget | List
FromChild: TypeAlias = Ready | Done | Failed | Listed

encode = msgspec.msgpack.Encoder().encode
decode_to_child = msgspec.msgpack.Decoder(ToChild).decode
decode_from_child = msgspec.msgpack.Decoder(FromChild).decode

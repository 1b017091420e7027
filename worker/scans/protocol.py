"""What a worker and its scan process say to each other, over a pair of sockets that keeps messages apart.

The worker speaks first: :class:`Start` is answered with :class:`Ready` or :class:`Failed`. Each request has a
number, and its answer carries it back.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

MESSAGE_BYTES_MAX = 1 << 20
LISTED_MAX = 200
"""Pins that are told, so that a message stays small."""


class Start(msgspec.Struct, frozen=True, tag="start", gc=False):
    number: int
    worker: str
    host: str
    """Where it is to listen, on any port."""
    public: bytes
    secret: bytes
    """The cluster key; empty without one."""
    idle_ms: int
    """The process ends when there has been no pin for so long."""


class Open(msgspec.Struct, frozen=True, tag="open", gc=False):
    """Begin a read transaction on every task. Answered with Done or Failed."""

    number: int
    pin: str
    group: str
    folder: str
    """Holds the folders of the tasks."""
    tasks: tuple[int, ...]
    offset: int
    holder: str
    idle_ms: int
    max_age_ms: int
    hold_ms: int = 0
    """How long it is kept at least after it was read, although all of it was."""


class Prepare(msgspec.Struct, frozen=True, tag="prepare", gc=False):
    """Open the files of a group that is about to be pinned, which takes longer than the pin itself."""

    number: int
    group: str
    folder: str
    tasks: tuple[int, ...]


class Close(msgspec.Struct, frozen=True, tag="close", gc=False):
    number: int
    pin: str
    why: str


class Forget(msgspec.Struct, frozen=True, tag="forget", gc=False):
    """Close all pins of a group, and its files."""

    number: int
    group: str
    why: str


class List(msgspec.Struct, frozen=True, tag="list", gc=False):
    number: int


class Ready(msgspec.Struct, frozen=True, tag="ready", gc=False):
    number: int
    address: str


class Done(msgspec.Struct, frozen=True, tag="done", gc=False):
    number: int


class Failed(msgspec.Struct, frozen=True, tag="failed", gc=False):
    number: int
    why: str


class Kept(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A pin."""

    pin: str
    group: str
    offset: int
    holder: str
    age_ms: int
    idle_ms: int
    sent_bytes: int


class Listed(msgspec.Struct, frozen=True, tag="listed", gc=False):
    number: int
    pins: tuple[Kept, ...]


ToChild: TypeAlias = Start | Open | Prepare | Close | Forget | List
FromChild: TypeAlias = Ready | Done | Failed | Listed

encode = msgspec.msgpack.Encoder().encode
decode_to_child = msgspec.msgpack.Decoder(ToChild).decode
decode_from_child = msgspec.msgpack.Decoder(FromChild).decode

"""Peers that mean harm: bytes on plain sockets, in whatever version of ZMTP a test wants spoken."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Sequence
from typing import Self

GREETING_BYTES = 64
_MORE, _LONG, _COMMAND = 0x01, 0x02, 0x04


def greeting(mechanism: bytes, *, major: int = 3, minor: int = 1) -> bytes:
    """Return the greeting of ZMTP 3: signature, version, mechanism, and not as a server."""
    return b"\xff" + bytes(8) + b"\x7f" + bytes((major, minor)) + mechanism.ljust(20, b"\0") + bytes(32)


def ready(routing_id: bytes = b"") -> bytes:
    """Return the READY command of a DEALER, which names its routing id."""
    properties = b""
    for name, value in ((b"Socket-Type", b"DEALER"), (b"Identity", routing_id)):
        properties += bytes((len(name),)) + name + struct.pack(">I", len(value)) + value
    return head(6 + len(properties), command=True) + b"\x05READY" + properties


def head(size: int, *, more: bool = False, command: bool = False) -> bytes:
    """Return what stands before the bytes of a frame of ZMTP 2 and 3."""
    return struct.pack(">BQ", _LONG | (_MORE if more else 0) | (_COMMAND if command else 0), size)


def frames(parts: Sequence[bytes]) -> bytes:
    """Return a message in ZMTP 2 and 3."""
    last = len(parts) - 1
    return b"".join(head(len(part), more=index < last) + part for index, part in enumerate(parts))


def old_frames(parts: Sequence[bytes]) -> bytes:
    """Return a message in ZMTP/1.0, where each length counts the flags too."""
    last = len(parts) - 1
    return b"".join(
        b"\xff" + struct.pack(">QB", len(part) + 1, _MORE if index < last else 0) + part
        for index, part in enumerate(parts)
    )


class Raw:
    """A TCP connection to a daemon."""

    def __init__(self, address: str, timeout_seconds: float = 20.0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> bool:
        """Send bytes; False if the other side has hung up."""
        try:
            self.socket.sendall(data)
        except (ConnectionError, TimeoutError):
            return False
        return True

    def greet(self, routing_id: bytes = b"") -> None:
        """Shake hands as ZMTP 3.1 without a key; raises ConnectionError if it is refused."""
        self.socket.sendall(greeting(b"NULL"))
        self.greet_again(routing_id)

    def greet_again(self, routing_id: bytes = b"") -> None:
        """Complete the handshake after a greeting that the test has sent itself."""
        self.read(GREETING_BYTES)
        self.socket.sendall(ready(routing_id))
        self.read(self._command_bytes())

    def read(self, size: int) -> bytes:
        """Return exactly so many bytes."""
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionResetError
            data += piece
        return data

    def read_until(self, end: bytes) -> bytes:
        """Return what the other side sends up to and with ``end``."""
        data = b""
        while end not in data:
            data += self.read(1)
        return data

    def read_all(self) -> bytes:
        """Return what the other side sends until it hangs up."""
        data = b""
        with contextlib.suppress(ConnectionError):
            while piece := self.socket.recv(65536):
                data += piece
        return data

    def _command_bytes(self) -> int:
        flags = self.read(1)[0]
        return int(struct.unpack(">Q", self.read(8))[0]) if flags & _LONG else self.read(1)[0]

"""The cluster key: one CURVE key pair that every process of a cluster has, and nobody else.

It encrypts, and it authenticates both ways: a worker admits only who proves to hold the key, and a
client talks only to who does. Any address other than loopback needs it.
"""

from __future__ import annotations

import ipaddress
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

from stretto.errors import UsageError
from stretto.process.private_files import require_private
from stretto.vocabulary.decoding import MALFORMED

PORT_MAX = 65_535


class _KeyFile(msgspec.Struct, frozen=True, kw_only=True):
    version: int = 1
    public: str
    secret: str


@dataclass(frozen=True, slots=True)
class ClusterKey:
    """A CURVE key pair in its printable form."""

    public: bytes
    secret: bytes

    @classmethod
    def generate(cls) -> ClusterKey:
        return cls(*zmq.curve_keypair())

    @classmethod
    def load(cls, path: Path, *, private: bool = True) -> ClusterKey:
        """Load the key from a file.

        Raises UsageError for what is no key and, if it has to be ``private``, for one that others can read.
        """
        try:
            key = msgspec.json.decode(path.read_bytes(), type=_KeyFile)
        except OSError as error:
            raise UsageError(
                f"the cluster key {path} cannot be read ({error.strerror}); name the file that it is in"
            ) from None
        except MALFORMED:
            raise UsageError(
                f"{path} is not a cluster key; make one with: stretto keys generate {shlex.quote(str(path))}"
            ) from None
        if len(key.public) != 40 or len(key.secret) != 40:
            raise UsageError(f"{path} is not a cluster key: a key has 40 characters")
        found = cls(key.public.encode(), key.secret.encode())
        try:
            is_pair = zmq.curve_public(found.secret) == found.public
        except (zmq.ZMQError, ValueError):
            is_pair = False
        if not is_pair:
            raise UsageError(f"{path} is not a cluster key: its halves do not belong together; copy it again")
        if private:
            require_private(path)
        return found

    def save(self, path: Path) -> None:
        """Write the key to a file that only its owner can read; an existing file is never overwritten."""
        content = msgspec.json.encode(_KeyFile(public=self.public.decode(), secret=self.secret.decode()))
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise UsageError(f"{path} exists already; choose another name or remove it first") from None
        with os.fdopen(descriptor, "wb") as file:
            file.write(content + b"\n")

    def serve_with(self, socket: zmq.Socket[bytes]) -> None:
        """Make a listening socket speak only to peers with a key; the listener says which keys are let in."""
        socket.curve_server = True
        socket.curve_publickey = self.public
        socket.curve_secretkey = self.secret

    def connect_with(self, socket: zmq.Socket[bytes]) -> None:
        """Make a connecting socket present this key, and speak only to an endpoint that has it."""
        socket.curve_publickey = self.public
        socket.curve_secretkey = self.secret
        socket.curve_serverkey = self.public


def require_key(address: str, key: ClusterKey | None) -> None:
    """Refuse to listen on, or connect to, anything but loopback without the cluster key."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    # ZeroMQ takes the lowest 16 bits of any number for a port.
    if not host or not port.isdecimal() or int(port) > PORT_MAX:
        raise UsageError(f"{address!r} is not an address; write HOST:PORT, such as 127.0.0.1:7400")
    if key is None and not is_loopback(address):
        raise UsageError(
            f"{address} can be reached from other machines and needs the cluster key: "
            "make one with 'stretto keys generate FILE' and give it to every process with --key FILE"
        )


def is_loopback(address: str) -> bool:
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

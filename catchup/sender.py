"""Blocks of images are sent by a process of their own.

A block that a worker's loop sends is read and copied under the interpreter lock that its clients wait for, on
the connection that entries use. So the loop only says what goes where: a *part* names a message, where its
body is in a spool file, and who gets it. The file itself comes along as a descriptor, so the sender knows
nothing between two parts but its connections. These begin with the worker's own hello, and to a follower what
comes is the worker's.

**What is in memory** need not come from the disk: the file that the image is a copy of is there as a rule,
for the copy has just been made. It may have changed since, so what is found there is hashed, and if it is not
what the image has, or would have to be waited for, the spool file is read.

A sender is nice to those that answer clients. It is started with the first image that is worth it, and ends
when there are no transfers. Nobody waits for it: until it is ready the worker sends by itself, and a part
that does not fit its queue, or is lost when it dies, is asked for again.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence

import msgspec
import structlog
import zmq

from stretto.catchup.hasher import be_nice, hashes_in
from stretto.errors import StrettoError
from stretto.network.dealer import Dealer
from stretto.network.keys import ClusterKey
from stretto.network.loop import Loop
from stretto.process import allocator
from stretto.vocabulary.types import Buffer, WorkerId
from stretto.wire import messages as wire

COMMAND_BYTES_MAX = 128 * 1024

log = structlog.get_logger()


class Key(msgspec.Struct, frozen=True, tag=True):
    """The cluster's key, if it has one: the first command to the sender."""

    public: bytes
    secret: bytes


class Part(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A part of an image to send to a follower."""

    to: WorkerId
    address: str
    hello: wire.Hello
    message: wire.Catchup
    pieces: tuple[tuple[int, int], ...]
    """Position and length in the file, for each piece of the body."""
    hashes: bytes
    """Hashes of the body's blocks."""
    block_bytes: int
    seed: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The sender can take parts: its first answer."""


class Unread(msgspec.Struct, frozen=True, tag=True):
    """The body of a part could not be read."""

    to: WorkerId
    message: wire.Catchup
    why: str


_encode = msgspec.msgpack.Encoder().encode
_command = msgspec.msgpack.Decoder(Key | Part)
_answer = msgspec.msgpack.Decoder(Ready | Unread)


class Sender:
    """The sending process as its worker sees it, over all its lives. Only the loop calls its methods."""

    def __init__(self, loop: Loop, key: ClusterKey | None, on_unread: Callable[[Unread], None]) -> None:
        self._loop = loop
        self._key = key
        self._on_unread = on_unread
        self._life: _Life | None = None

    def start(self) -> None:
        """Start the process unless it runs. If it cannot be started, it is never ready."""
        if self._life is None:
            try:
                self._life = _Life(self._loop, self._on_unread, self._on_death)
            except OSError as error:
                log.warning("sender_not_started", why=str(error))
                return
            if self._key is not None:
                self._life.tell(Key(self._key.public, self._key.secret))

    def send(self, part: Part, spool: int, source: int | None = None) -> bool:
        """Send a part; False if the process is not ready. ``source`` is a file that may have its body."""
        if self._life is None or not self._life.is_ready:
            return False
        self._life.tell(part, *((spool,) if source is None else (spool, source)))
        return True

    def end(self) -> None:
        """Let the process end: there is nothing more to send."""
        if self._life is not None:
            self._life.end()
            self._life = None

    def close(self) -> None:
        """Kill the process, and wait for its end."""
        life, self._life = self._life, None
        if life is not None:
            life.close()

    def _on_death(self, life: _Life) -> None:
        if self._life is life:
            self._life = None
            log.error("sender_died", exit_code=life.exit_code)


class _Life:
    """One sending process, whose end is reported by a pidfd."""

    def __init__(
        self, loop: Loop, on_unread: Callable[[Unread], None], on_death: Callable[[_Life], None]
    ) -> None:
        self._loop = loop
        self._on_unread = on_unread
        self._on_death = on_death
        self.is_ready = False
        self.exit_code: int | None = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", "-m", "stretto.catchup.sender", str(theirs.fileno())]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self._socket = ours
        self._pidfd = os.pidfd_open(self._process.pid)
        loop.register(ours.fileno(), self._receive)
        loop.register(self._pidfd, self._exited)

    def tell(self, command: Key | Part, *fds: int) -> None:
        # What does not fit is asked for again; whether it still lives is told by its pidfd.
        with contextlib.suppress(OSError):
            socket.send_fds(self._socket, [_encode(command)], fds)

    def _receive(self) -> bool:
        try:
            data = self._socket.recv(COMMAND_BYTES_MAX)
        except OSError:
            return False
        if not data:
            self._hang_up()
            return False
        answer = _answer.decode(data)
        if isinstance(answer, Ready):
            self.is_ready = True
        else:
            self._on_unread(answer)
        return True

    def _hang_up(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.unregister(self._socket.fileno())
            self._socket.close()

    def _exited(self) -> bool:
        self.exit_code = self._process.wait()
        self._let_go()
        self._on_death(self)
        return False

    def _let_go(self) -> None:
        self._hang_up()
        self._loop.unregister(self._pidfd)
        os.close(self._pidfd)

    def end(self) -> None:
        """Hang up on the process, which then ends by itself."""
        self._hang_up()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._let_go()


# The process.


class _Child:
    def __init__(self, parent: socket.socket) -> None:
        self._parent = parent
        parent.setblocking(False)
        self._loop = Loop()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._key: ClusterKey | None = None
        self._dealers: dict[tuple[str, wire.Hello], Dealer] = {}
        #: Aligned memory, for files that are read past the page cache.
        self._buffer = memoryview(mmap.mmap(-1, 1 << 20))
        self._loop.register(parent.fileno(), self._receive)

    def run(self) -> None:
        self._parent.send(_encode(Ready()))
        self._loop.run()
        self._context.destroy(0)

    def _receive(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self._parent, COMMAND_BYTES_MAX, 2)
        except BlockingIOError:
            return False
        if not data:
            self._loop.stop()
            return False
        command = _command.decode(data)
        try:
            if isinstance(command, Key):
                self._key = ClusterKey(command.public, command.secret)
            else:
                self._send(command, *fds)
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _send(self, part: Part, spool: int, source: int | None = None) -> None:
        try:
            body = self._in_memory(part, source) or self._read(spool, part.pieces)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._parent.send(_encode(Unread(part.to, part.message, str(error))))
            return
        dealer = self._dealer(part.address, part.hello)
        if dealer is not None:
            dealer.send(part.message, (body,))

    def _in_memory(self, part: Part, source: int | None) -> memoryview | None:
        if source is None:
            return None
        try:
            body = self._read(source, part.pieces, os.RWF_NOWAIT)
        except OSError:
            return None
        return body if hashes_in(body, part.block_bytes, part.seed) == part.hashes else None

    def _read(self, fd: int, pieces: Sequence[tuple[int, int]], flags: int = 0) -> memoryview:
        total = sum(length for _, length in pieces)
        if total > len(self._buffer):
            self._buffer = memoryview(mmap.mmap(-1, total))
        at = 0
        for position, length in pieces:
            if os.preadv(fd, [self._buffer[at : at + length]], position, flags) != length:
                raise OSError("a spool file is shorter than the image it holds")
            at += length
        return self._buffer[:total]

    def _dealer(self, address: str, hello: wire.Hello) -> Dealer | None:
        found = self._dealers.get((address, hello))
        if found is not None:
            return found

        def on_lost() -> None:
            del self._dealers[address, hello]

        def on_parts(parts: list[Buffer]) -> None:
            if not isinstance(wire.decode_to_client(parts[0]), wire.Welcome):
                self._dealers.pop((address, hello)).close()

        try:
            dealer = Dealer(
                self._loop, self._context, address, self._key, hello, receive=on_parts, lost=on_lost
            )
        except (StrettoError, zmq.ZMQError):
            # The worker has a connection there too, and tells what is wrong with it.
            return None
        self._dealers[address, hello] = dealer
        return dealer


def _main(arguments: list[str]) -> None:
    allocator.keep_freed_memory()
    with socket.socket(fileno=int(arguments[0])) as parent:
        child = _Child(parent)
        be_nice(as_session=True)
        child.run()


if __name__ == "__main__":
    _main(sys.argv[1:])

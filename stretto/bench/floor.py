"""The floor of replication: what three workers cannot do without, and nothing else.

A leader and two followers, each a process: the same ZeroMQ sockets with messages of the same sizes as
workers use, the same bytes written to a log and synced by a thread of its own, the same LMDB commits on
another one, and the acknowledgement after the leader's commit. No replication core: no elections, leases,
checksums, duplicates or lost messages, no encoding but a fixed struct.

A floor that *gathers* acknowledges what all logs have, and commits ten times a second, as workers do with
records that nobody reads yet.

Run as ``python -m stretto.bench.floor at-once|gathers PORT FOLDER TASKS leader FOLLOWER_PORT...``, and with
``follower LEADER_PORT`` on the other ports. :class:`FloorClient` appends.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import lmdb
import zmq

from stretto.process.allocator import keep_freed_memory
from stretto.replog.frame import HEADER_BYTES, TRAILER_BYTES
from stretto.replog.log import SEGMENT_BYTES
from stretto.vocabulary.types import Buffer

HOST = "127.0.0.1"
GATHERED_SECONDS = 0.1
MAP_BYTES = 8 << 30

# A number, and the end of what is decided; padded to the size that these messages have in
# stretto.wire.messages.
_APPEND = struct.Struct("<QQ77x")
_ENTRIES = struct.Struct("<QQ151x")
_CONFIRM = struct.Struct("<QQ137x")
_APPENDED = struct.Struct("<QQ22x")
_NUMBERS = struct.Struct("<QQ")

_KEY = struct.Struct(">QQQ")
_ROW = bytes(100)
"""A row as large as that of a producer."""


class _Log:
    """A log that writes all that waits with one writev and one fdatasync, then reports its new end."""

    def __init__(self, folder: Path, done: Callable[[int], None]) -> None:
        self._folder = folder
        self._done = done
        self._queue: SimpleQueue[tuple[Buffer, ...]] = SimpleQueue()
        self.append = self._queue.put
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        written = 0
        while True:
            path = self._folder / f"{written:020d}.replog"
            fd = os.open(path, os.O_RDWR | os.O_CREAT)
            position = 0
            while position < SEGMENT_BYTES:
                frames = _all_of(self._queue)
                position += os.pwritev(fd, [part for frame in frames for part in frame], position)
                os.fdatasync(fd)
                written += len(frames)
                self._done(written)
            os.close(fd)
            path.unlink()


class _State:
    """A state that commits all that waits to one LMDB file per task, then reports its new end."""

    def __init__(self, folder: Path, tasks: int, done: Callable[[int], None], *, gathers: bool) -> None:
        self._gathers = gathers
        self._environments = []
        for task in range(tasks):
            (folder / f"task-{task}").mkdir()
            environment = lmdb.open(
                os.fspath(folder / f"task-{task}"), map_size=MAP_BYTES, metasync=False, max_dbs=2
            )
            databases = environment.open_db(b"depot"), environment.open_db(b"meta")
            self._environments.append((environment, *databases))
        self._done = done
        self._pool = ThreadPoolExecutor(tasks)
        self._queue: SimpleQueue[tuple[int, Buffer]] = SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def apply(self, number: int, batch: Buffer) -> None:
        self._queue.put((number, batch))

    def _run(self) -> None:
        while True:
            batches = _all_of(self._queue)
            if self._gathers:
                time.sleep(GATHERED_SECONDS)
                while not self._queue.empty():
                    batches.append(self._queue.get())
            by_task: dict[int, list[tuple[int, Buffer]]] = {}
            for number, batch in batches:
                by_task.setdefault(number % len(self._environments), []).append((number, batch))
            if len(by_task) == 1:
                for task, its in by_task.items():
                    self._commit(task, its)
            else:
                list(self._pool.map(self._commit, by_task.keys(), by_task.values()))
            self._done(batches[-1][0] + 1)

    def _commit(self, task: int, batches: list[tuple[int, Buffer]]) -> None:
        environment, depot, meta = self._environments[task]
        with environment.begin(write=True) as txn:
            for number, batch in batches:
                txn.put(_KEY.pack(number, 0, 0), batch, append=True, db=depot)
            txn.put(b"producer", _ROW, db=meta)
            txn.put(b"applied", _KEY.pack(number, 0, 0), db=meta)


def _all_of(queue: SimpleQueue[Any]) -> list[Any]:
    found = [queue.get()]
    while not queue.empty():
        found.append(queue.get())
    return found


class _Replica(ABC):
    """What leader and followers share: a socket that others connect to, a log, a state, and being woken."""

    def __init__(self, port: int, folder: Path, tasks: int, *, gathers: bool) -> None:
        folder.mkdir(parents=True)
        self.gathers = gathers
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.bind(f"tcp://{HOST}:{port}")
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self.log = _Log(folder, self._tell("durable"))
        self.state = _State(folder, tasks, self._tell("applied"), gathers=gathers)
        #: Ends, in numbers of batches, of what is in the log, what is durable, and what is applied.
        self.end = 0
        self.durable = 0
        self.applied = 0
        #: Batches that are in the log and not handed to the state.
        self.unapplied: deque[Buffer] = deque()
        self.handed = 0

    def _tell(self, what: str) -> Callable[[int], None]:
        def tell(end: int) -> None:
            setattr(self, what, end)
            os.eventfd_write(self._wake, 1)

        return tell

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake, zmq.POLLIN)
        poller.register(self.router, zmq.POLLIN)
        while True:
            for ready, _ in poller.poll():
                if ready == self._wake:
                    os.eventfd_read(self._wake)
                else:
                    self._receive_all()
            self.progressed()

    def _receive_all(self) -> None:
        while True:
            try:
                sender, *parts = self.router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            number, decided = _NUMBERS.unpack_from(parts[0].buffer)
            self.received(sender.bytes, number, decided, parts[1].buffer if len(parts) > 1 else None)

    def apply_to(self, end: int) -> None:
        while self.handed < end:
            self.state.apply(self.handed, self.unapplied.popleft())
            self.handed += 1

    @abstractmethod
    def received(self, sender: bytes, number: int, decided: int, body: memoryview | None) -> None: ...

    @abstractmethod
    def progressed(self) -> None: ...


class _Leader(_Replica):
    def __init__(self, port: int, folder: Path, tasks: int, followers: list[int], *, gathers: bool) -> None:
        super().__init__(port, folder, tasks, gathers=gathers)
        self._sockets = []
        for follower in followers:
            socket = self.context.socket(zmq.DEALER)
            socket.connect(f"tcp://{HOST}:{follower}")
            socket.send(_ENTRIES.pack(0, 0))
            self._sockets.append(socket)
        self._confirmed: dict[bytes, int] = {}
        self._decided = self._told = self._answered = 0
        #: Frames that arrived in this turn of the loop; they are sent together.
        self._unsent: list[tuple[Buffer, ...]] = []
        #: The appender of each batch that is not acknowledged, and the number that it gave the batch.
        self._waiting: deque[tuple[bytes, int]] = deque()

    def received(self, sender: bytes, number: int, _decided: int, body: memoryview | None) -> None:
        if body is None:
            self._confirmed[sender] = number
            return
        self._unsent.append((bytes(HEADER_BYTES), body, bytes(TRAILER_BYTES)))
        self._waiting.append((sender, number))
        self.end += 1

    def progressed(self) -> None:
        if self._unsent:
            self._send(b"".join([part for frame in self._unsent for part in frame]))
            for frame in self._unsent:
                self.log.append(frame)
                self.unapplied.append(frame[1])
            self._unsent.clear()
        if len(self._confirmed) == len(self._sockets):
            self._decided = min(self.durable, *self._confirmed.values())
        self.apply_to(self._decided)
        while self._answered < (self._decided if self.gathers else self.applied):
            self._answered += 1
            sender, number = self._waiting.popleft()
            self.router.send_multipart([sender, _APPENDED.pack(number, 0)])
        if self._told < self.applied:
            self._send()

    def _send(self, *frames: bytes) -> None:
        self._told = self._decided
        for socket in self._sockets:
            socket.send_multipart([_ENTRIES.pack(self.end, self._decided), *frames])


class _Follower(_Replica):
    def __init__(self, port: int, folder: Path, tasks: int, leader: int, *, gathers: bool) -> None:
        super().__init__(port, folder, tasks, gathers=gathers)
        self._socket = self.context.socket(zmq.DEALER)
        self._socket.connect(f"tcp://{HOST}:{leader}")
        self._confirmed = -1
        self._decided = 0

    def received(self, _sender: bytes, number: int, decided: int, body: memoryview | None) -> None:
        self._decided = decided
        if body is not None:
            batches = number - self.end
            size = len(body) // batches
            for at in range(0, len(body), size):
                frame = body[at : at + size]
                self.log.append((frame,))
                self.unapplied.append(frame[HEADER_BYTES:-TRAILER_BYTES])
            self.end = number

    def progressed(self) -> None:
        if self._confirmed < self.durable:
            self._confirmed = self.durable
            self._socket.send(_CONFIRM.pack(self.durable, 0))
        self.apply_to(min(self._decided, self.durable))


class FloorClient:
    """A client of the floor's leader, with a producer's window: so many batches of each task."""

    def __init__(self, leader: int, *, window: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(f"tcp://{HOST}:{leader}")
        self._window = window

    def append(self, batches: int, body: bytes) -> float:
        """Append batches, and return the seconds until all of them are acknowledged."""
        started = time.perf_counter()
        for number in range(batches):
            if number >= self._window:
                self._socket.recv()
            self._socket.send_multipart([_APPEND.pack(number, 0), body])
        for _ in range(min(batches, self._window)):
            self._socket.recv()
        return time.perf_counter() - started

    def close(self) -> None:
        self._context.destroy(0)


def main(arguments: list[str]) -> None:
    commits, port, folder, tasks, role, *peers = arguments
    keep_freed_memory()
    ports = [int(peer) for peer in peers]
    gathers = commits == "gathers"
    if role == "leader":
        _Leader(int(port), Path(folder), int(tasks), ports, gathers=gathers).run()
    else:
        _Follower(int(port), Path(folder), int(tasks), *ports, gathers=gathers).run()


if __name__ == "__main__":
    main(sys.argv[1:])

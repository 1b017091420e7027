"""Loads in which no cluster has a part: files that are copied, sent over a socket and written elsewhere.

``pipeline`` is the floor of a transfer. ``busy`` does the same work as a transfer, again and again, beside
appends; its processes run this file.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stretto.bench.waiting import until
from stretto.catchup.hasher import be_nice, hashes_in, open_direct, write
from stretto.catchup.hashing import copy_and_hash
from stretto.catchup.machines import blocks
from stretto.catchup.machines.fetch import WINDOW
from stretto.catchup.staging import AlignedParts
from stretto.errors import StrettoError
from stretto.state.environment import StandingFile
from stretto.vocabulary.invariants import present

HOST = "127.0.0.1"
CHUNK_BYTES = 1 << 20
SEED = 1
PASSES_MAX = 1_000_000
PATIENCE_SECONDS = 600.0
_SIZE = struct.Struct("<Q")


def pipeline(source: Path, folder: Path) -> float:
    """Copy a file to a spool, send it over a socket, write and sync it elsewhere; returns the seconds."""
    with _receiver(folder, "receive") as connection:
        started = time.perf_counter()
        with source.open("rb", 0) as file, (folder / "spool").open("wb", 0) as spool:
            while chunk := file.read(CHUNK_BYTES):
                spool.write(chunk)
                connection.sendall(chunk)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        seconds = time.perf_counter() - started
    shutil.rmtree(folder)
    return seconds


def _load(source: Path, folder: Path, passes: int, bytes_per_second: float = math.inf) -> None:
    """Do the work of a transfer so many times, without a pause, by processes that have no part in a cluster.

    A file is hashed while it is copied to a spool, and sent, hashed once more, as far as the copy has come;
    what arrives is hashed and written, and synced at the end.
    """
    with _receiver(folder, "take") as connection:
        be_nice()
        progress, pace = _Progress(folder), _Pace(bytes_per_second)
        for _ in range(passes):
            spool = open_direct(folder / "spool", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            _load_once(source, spool, connection, progress, pace)
            os.close(spool)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
    shutil.rmtree(folder)


def _load_once(source: Path, spool: int, connection: socket.socket, progress: _Progress, pace: _Pace) -> None:
    size_bytes = source.stat().st_size
    sent, moved = 0, progress.read()
    buffer = memoryview(mmap.mmap(-1, blocks.PART_BYTES))
    connection.sendall(_SIZE.pack(size_bytes))

    def send(end: int) -> None:
        nonlocal sent
        while sent < end:
            part = buffer[: os.preadv(file.fileno(), [buffer[: min(blocks.PART_BYTES, end - sent)]], sent)]
            hashes_in(part, blocks.BLOCK_BYTES, SEED)
            connection.sendall(part)
            sent += len(part)
            progress.write(moved + sent)

    def grew(hashes: bytearray) -> None:
        """Send what was copied and hashed; the copy waits for the pace, a few dozen MB ahead at most."""
        copied = min(len(hashes) // blocks.HASH_BYTES * blocks.BLOCK_BYTES, size_bytes)
        sending.submit(send, copied)
        pace.keep(moved + copied)

    with source.open("rb", 0) as file, ThreadPoolExecutor(1) as sending:
        copy_and_hash(StandingFile(source, size_bytes), spool, blocks.BLOCK_BYTES, SEED, grew)


class _Pace:
    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._started = time.monotonic()

    def keep(self, moved_bytes: int) -> None:
        due = self._started + moved_bytes / self._bytes_per_second
        time.sleep(max(0.0, due - time.monotonic()))


@contextlib.contextmanager
def _receiver(folder: Path, kind: str) -> Iterator[socket.socket]:
    folder.mkdir(exist_ok=True)
    listener = socket.create_server((HOST, 0))
    port = listener.getsockname()[1]
    listener.close()
    arguments = [sys.executable, "-m", "stretto.bench.loads", kind, str(port), str(folder / "received")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, start_new_session=True) as receiver:
        present(receiver.stdout, "output of the receiver").readline()
        with socket.create_connection((HOST, port)) as connection:
            yield connection


@contextlib.contextmanager
def _accepted(port: int) -> Iterator[socket.socket]:
    with socket.create_server((HOST, port)) as listener:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        connection, _ = listener.accept()
    with connection:
        yield connection
        connection.sendall(b".")


def _receive(port: int, path: Path) -> None:
    with _accepted(port) as connection, path.open("wb", 0) as file:
        while chunk := connection.recv(CHUNK_BYTES):
            file.write(chunk)
        os.fdatasync(file.fileno())


def _take(port: int, path: Path) -> None:
    parts = AlignedParts(WINDOW, blocks.PART_BYTES)
    room = threading.Semaphore(WINDOW)
    with _accepted(port) as connection:
        file = open_direct(path, os.O_WRONLY | os.O_CREAT)

        def store(position: int, chunk: bytes) -> None:
            with parts.put(memoryview(chunk)) as copied:
                hashes_in(copied, blocks.BLOCK_BYTES, SEED)
                write(file, copied, position)
            room.release()

        while size := connection.recv(_SIZE.size, socket.MSG_WAITALL):
            (size_bytes,) = _SIZE.unpack(size)
            os.ftruncate(file, 0)
            os.ftruncate(file, size_bytes)
            position = 0
            with ThreadPoolExecutor(WINDOW) as storing:
                while position < size_bytes:
                    room.acquire()
                    chunk = connection.recv(min(blocks.PART_BYTES, size_bytes - position), socket.MSG_WAITALL)
                    if not chunk:
                        # Whoever sends was killed.
                        return
                    storing.submit(store, position, chunk)
                    position += len(chunk)
            os.fdatasync(file)


def command_of_load(source: Path, folder: Path, passes: int, bytes_per_second: float = math.inf) -> list[str]:
    """Return the command that does the work of a transfer in a process of its own."""
    command = [sys.executable, "-m", "stretto.bench.loads", "load", str(source), str(folder)]
    return [*command, str(passes), str(bytes_per_second)]


@contextlib.contextmanager
def busy(source: Path, folder: Path, bytes_per_second: float) -> Iterator[Callable[[], int]]:
    """Repeat the work of a transfer in another process; yields a function that returns the bytes moved."""
    progress = _Progress(folder)
    progress.write(0)
    command = command_of_load(source, folder, PASSES_MAX, bytes_per_second)
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            until("the others' load has begun", lambda: progress.read() > 0, PATIENCE_SECONDS)
            yield progress.read
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


class _Progress:
    """A number that one process reports to another, in a file beside the folder that it works in."""

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder.with_suffix(".moved"), os.O_RDWR | os.O_CREAT, 0o600)

    def write(self, number: int) -> None:
        os.pwrite(self._fd, b"%020d" % number, 0)

    def read(self) -> int:
        return int(os.pread(self._fd, 20, 0) or 0)


def main(arguments: list[str]) -> None:
    """Run one of the processes that the measures start beside themselves."""
    match arguments:
        case ["receive", port, path]:
            _receive(int(port), Path(path))
        case ["take", port, path]:
            _take(int(port), Path(path))
        case ["load", source, folder, passes, bytes_per_second]:
            _load(Path(source), Path(folder), int(passes), float(bytes_per_second))
        case _:
            raise StrettoError("this is run by the measures of stretto bench")


if __name__ == "__main__":
    main(sys.argv[1:])

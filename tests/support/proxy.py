"""A loopback proxy between a ZooKeeper client and its server: what a bad network does, on demand."""

from __future__ import annotations

import contextlib
import enum
import socket
import threading
from typing import Self


class Road(enum.Enum):
    """What a proxy does with the bytes of its connections."""

    OPEN = "open"
    CUT = "cut"
    """Connections are broken, and new ones too, as soon as they are made."""
    SILENT = "silent"
    """Nothing passes in either direction, not even that the other side has hung up."""
    ONE_WAY = "one_way"
    """Requests pass, replies are swallowed."""


class Proxy:
    """A proxy in front of one port of this machine."""

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._lock = threading.Lock()
        self._road = Road.OPEN
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._spawn(self._accept)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cut(self) -> None:
        self._set(Road.CUT)

    def silence(self) -> None:
        self._set(Road.SILENT)

    def swallow_replies(self) -> None:
        self._set(Road.ONE_WAY)

    def heal(self) -> None:
        """Let everything pass again; connections that may have lost bytes are broken."""
        with self._lock:
            was, self._road = self._road, Road.OPEN
        if was is not Road.OPEN:
            self._break_all()

    def close(self) -> None:
        self.cut()
        # A thread in accept() is woken by shutdown(), not by close().
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _set(self, road: Road) -> None:
        with self._lock:
            self._road = road
        if road is Road.CUT:
            self._break_all()

    def _break_all(self) -> None:
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _spawn(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._road is Road.CUT:
                client.close()
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._sockets |= {client, server}
                open_ends = [2]
            self._spawn(self._pump, client, server, {Road.SILENT, Road.CUT}, open_ends)
            self._spawn(self._pump, server, client, {Road.SILENT, Road.CUT, Road.ONE_WAY}, open_ends)

    def _pump(
        self, source: socket.socket, sink: socket.socket, blocked: set[Road], open_ends: list[int]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self._road not in blocked:
                    sink.sendall(data)
        if self._road is not Road.SILENT:
            for each in (source, sink):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        with self._lock:
            open_ends[0] -= 1
            if open_ends[0] == 0:
                self._sockets -= {source, sink}
                source.close()
                sink.close()

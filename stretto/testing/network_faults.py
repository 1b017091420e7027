"""The network between the nodes of a cluster on one machine, which can be cut.

Every node listens on a loopback address of its own and advertises another one. At the latter stands a gate
for each port that the node listens on: a process that wants to reach the node connects to the gate, which
passes on what comes. To ZooKeeper, each node has a gate of its own too. A gate knows both ends: the target by
itself, and the source by the process that holds the other end of the connection.

Between two ends that are cut from each other nothing passes any more, not even that one of them has hung up:
that is what a partition looks like. Connections that lost bytes in this way are broken when it is healed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ZOOKEEPER = "zookeeper"
LOOK_SECONDS = 0.05
CHUNK_BYTES = 64 * 1024
_LISTENS = "0A"
_TABLE = Path("/proc/net/tcp")


@dataclass(eq=False, slots=True)
class _Connection:
    """A connection through a gate: two sockets, and the ends that they belong to."""

    source: str | None
    """Node that connected; None for a client."""
    target: str
    ends: list[socket.socket]
    lost: bool = False
    """Whether bytes were sent on the connection that did not arrive."""
    open_ways: int = 2

    def hang_up(self) -> None:
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@dataclass(eq=False, slots=True)
class _Gate:
    """A listening socket that passes connections on to a node or ZooKeeper, and its thread."""

    listener: socket.socket
    thread: threading.Thread | None = None

    def close(self) -> None:
        # A thread in accept() is woken by shutdown(), not by close().
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        if self.thread is not None:
            self.thread.join()


@dataclass(slots=True)
class _Cuts:
    """Which nodes cannot reach each other now."""

    alone: set[str] = field(default_factory=set)
    """Nodes that are cut off from everything."""
    pairs: set[frozenset[str]] = field(default_factory=set)

    def separate(self, source: str | None, target: str) -> bool:
        if source == target:
            return False
        ends = {source, target}
        return bool(self.alone & ends) or ends in self.pairs


class NetworkFaults:
    """The network between the nodes of a cluster on one machine, whose connections can be cut.

    ``pids_of`` returns the processes of each node, by which the source of a connection is known.
    """

    def __init__(self, nodes: Sequence[str], pids_of: Callable[[], Mapping[str, set[int]]]) -> None:
        self._pids_of = pids_of
        # Chosen by chance, because other clusters may run on this machine.
        net = f"127.{1 + secrets.randbelow(253)}.{1 + secrets.randbelow(253)}"
        self.hosts = {node: f"{net}.{2 * number}" for number, node in enumerate(nodes, 1)}
        self.advertised = {node: f"{net}.{2 * number + 1}" for number, node in enumerate(nodes, 1)}
        self._node_at = {host: node for node, host in self.hosts.items()}
        self._cuts = _Cuts()
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._connections: set[_Connection] = set()
        self._pumps: set[threading.Thread] = set()
        #: Gates, by the address that a node listens on.
        self._gates: dict[tuple[str, int], _Gate] = {}
        self._to_zookeeper: list[_Gate] = []
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="network-faults", daemon=True)
        self._watcher.start()

    def zookeeper(self, node: str, port: int) -> str:
        """Open a gate, and return the address at which this node reaches the ZooKeeper of that port."""
        listener = socket.create_server(("127.0.0.1", 0))
        self._to_zookeeper.append(self._open(listener, ("127.0.0.1", port), ZOOKEEPER, node))
        return f"127.0.0.1:{listener.getsockname()[1]}"

    def close(self) -> None:
        self._closing.set()
        self._watcher.join()
        with self._looking:
            gates = [*self._gates.values(), *self._to_zookeeper]
        for gate in gates:
            gate.close()
        with self._lock:
            connections, pumps = list(self._connections), list(self._pumps)
        for connection in connections:
            connection.hang_up()
        for pump in pumps:
            pump.join()

    # Cuts.

    def isolate(self, node: str) -> None:
        """Cut a node off from other nodes, from clients and from ZooKeeper."""
        with self._lock:
            self._cuts.alone.add(node)

    def separate(self, one: str, other: str) -> None:
        with self._lock:
            self._cuts.pairs.add(frozenset({one, other}))

    def heal(self) -> None:
        with self._lock:
            self._cuts = _Cuts()
            broken = [each for each in self._connections if each.lost]
        for connection in broken:
            connection.hang_up()

    # Gates follow where nodes listen.

    def follow(self) -> None:
        """Open gates for all nodes that listen now; each has its gate when this returns."""
        self._look()

    def _watch(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        """Open gates where nodes have begun to listen.

        A gate stays when no process listens behind it: it closes connections at once until one does again.
        """
        with self._looking:
            if self._closing.is_set():
                return
            listening = {
                (each.host, each.port)
                for each in _sockets()
                if each.state == _LISTENS and each.host in self._node_at
            }
            for host, port in listening - self._gates.keys():
                node = self._node_at[host]
                # If the address is in use now, the next look may find it free.
                with contextlib.suppress(OSError):
                    listener = socket.create_server((self.advertised[node], port))
                    self._gates[host, port] = self._open(listener, (host, port), node, None)

    def _open(self, listener: socket.socket, to: tuple[str, int], target: str, source: str | None) -> _Gate:
        gate = _Gate(listener)
        gate.thread = threading.Thread(
            target=self._accept, args=(listener, to, target, source), name=f"gate-{target}", daemon=True
        )
        gate.thread.start()
        return gate

    def _accept(self, listener: socket.socket, to: tuple[str, int], target: str, source: str | None) -> None:
        while True:
            try:
                near, peer = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(to)
            except OSError:
                near.close()
                continue
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(source or self._who(peer), target, [near, far])
            with self._lock:
                self._connections.add(connection)
            for one, other in ((near, far), (far, near)):
                pump = threading.Thread(target=self._pump, args=(connection, one, other), daemon=True)
                with self._lock:
                    self._pumps.add(pump)
                pump.start()

    def _who(self, peer: tuple[str, int]) -> str | None:
        """Return the node whose process has this end of a connection; None for a client's."""
        inodes = [each.inode for each in _sockets() if (each.host, each.port) == peer]
        if not inodes:
            return None
        wanted = f"socket:[{inodes[0]}]"
        for node, pids in self._pids_of().items():
            if any(wanted in _open_files(pid) for pid in pids):
                return node
        return None

    def _is_cut(self, connection: _Connection) -> bool:
        with self._lock:
            return self._cuts.separate(connection.source, connection.target)

    def _pump(self, connection: _Connection, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if self._is_cut(connection):
                    connection.lost = True
                    continue
                if connection.source is None and sink is connection.ends[0]:
                    # A client may learn an address that is new, and connects there at once.
                    self._look()
                sink.sendall(data)
        if self._is_cut(connection) and not self._closing.is_set():
            connection.lost = True
        else:
            connection.hang_up()
        with self._lock:
            self._pumps.discard(threading.current_thread())
            connection.open_ways -= 1
            if connection.open_ways == 0:
                self._connections.discard(connection)
                for end in connection.ends:
                    end.close()


class _Socket(NamedTuple):
    host: str
    port: int
    state: str
    inode: str


def _sockets() -> Iterator[_Socket]:
    """Iterate over all TCP sockets of this machine."""
    for line in _TABLE.read_text().splitlines()[1:]:
        fields = line.split()
        host, _, port = fields[1].partition(":")
        address = int(host, 16).to_bytes(4, sys.byteorder)
        yield _Socket(socket.inet_ntoa(address), int(port, 16), fields[3], fields[9])


def _open_files(pid: int) -> set[str]:
    found = set()
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"{folder}/{name}"))
    return found

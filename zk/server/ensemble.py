"""Several embedded servers that form one ensemble, for tests that take servers away."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Self

from stretto.errors import StrettoError
from stretto.zk.server.embedded import HOST, EmbeddedZooKeeper, QuorumAddress, free_ports

_POLL_SECONDS = 0.02
"""Time between two questions whether a server leads: a server does not tell by itself."""


class EmbeddedEnsemble:
    """Several servers; ports are chosen once, so that a restarted server is found where it was."""

    def __init__(self, folder: Path, servers: int = 3, *, tick_ms: int = 200, fsync: bool = True) -> None:
        ports = free_ports(3 * servers)
        self._clients = ports[:servers]
        quorum = [
            QuorumAddress(server=number + 1, port=port, election_port=election_port)
            for number, (port, election_port) in enumerate(
                zip(ports[servers : 2 * servers], ports[2 * servers :], strict=True)
            )
        ]
        self.servers = [
            EmbeddedZooKeeper(
                folder / f"server-{address.server}",
                port,
                tick_ms=tick_ms,
                fsync=fsync,
                server=address.server,
                quorum=quorum,
            )
            for address, port in zip(quorum, self._clients, strict=True)
        ]

    @property
    def hosts(self) -> str:
        """The connection string of all servers."""
        return ",".join(f"{HOST}:{port}" for port in self._clients)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start all servers; returns when all serve requests, hence one leads."""
        try:
            for server in self.servers:
                server.launch()
            for server in self.servers:
                server.wait_until_serving()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def leader(self, timeout_seconds: float = 30.0) -> EmbeddedZooKeeper:
        """The server that leads, once there is one. Raises StrettoError after the time-out."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            for server in self.servers:
                if server.is_running and server.mode() == "leader":
                    return server
            time.sleep(_POLL_SECONDS)
        raise StrettoError(f"the ensemble {self.hosts} has no leader after {timeout_seconds:g} s")

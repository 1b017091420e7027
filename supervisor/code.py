"""The code of modules on this node: a worker starts only where the code of its module is.

A launch puts it on as many nodes as a group has replicas; the others fetch it from these when they are to run
a worker of that module. Disk and network are waited for on a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from stretto.errors import StrettoError
from stretto.network.keys import ClusterKey
from stretto.network.loop import Loop
from stretto.network.routing import Network
from stretto.supervisor.artifacts import ArtifactStore
from stretto.vocabulary.backoff import Backoff
from stretto.vocabulary.types import Incarnation
from stretto.zk.watches.daemon_session import DaemonSession
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import NodeRegistration, decode

log = structlog.get_logger()

RETRY = Backoff(first_ms=500, most_ms=10_000)


class ModuleCode:
    """The code of modules on this node, fetched from other nodes where it is missing.

    All methods run on the loop's thread, except what says otherwise.
    """

    def __init__(
        self,
        loop: Loop,
        view: DaemonSession,
        paths: Paths,
        *,
        folder: Path,
        node: str,
        key: ClusterKey | None,
        changed: Callable[[], None],
    ) -> None:
        """Call ``changed`` when code has come that was missing."""
        self.store = ArtifactStore(folder)
        self._loop = loop
        self._view = view
        self._paths = paths
        self._node = node
        self._key = key
        self._changed = changed
        #: Digests of unpacked code; the empty one stands for modules whose assignment was made by hand.
        self._here = {""}
        #: Digests that are being looked for, and when to try again if that fails.
        self._missing: dict[str, Backoff] = {}
        self._is_closed = False
        self._pool = ThreadPoolExecutor(1, "code")

    def is_here(self, digest: str) -> bool:
        """Whether code is on this node; if it is not, it is being fetched from now on."""
        if digest not in self._here and digest not in self._missing:
            self._missing[digest] = RETRY
            self._pool.submit(self._get, digest)
        return digest in self._here

    def sweep(self, used: Collection[str]) -> None:
        """Delete code that no module of the cluster uses, after a while."""
        self._pool.submit(self._sweep, frozenset(used))

    def _sweep(self, used: frozenset[str]) -> None:
        """Delete unused code; runs on the thread of the pool."""
        try:
            gone = self.store.sweep(used)
        except OSError as error:
            log.error("artifacts_not_swept", error=str(error))
        else:
            self._loop.call_soon(self._here.difference_update, gone)

    def close(self) -> None:
        self._is_closed = True
        self._pool.shutdown(cancel_futures=True)

    def _get(self, digest: str) -> None:
        """Fetch code and unpack it; runs on the thread of the pool."""
        try:
            if not self.store.has(digest):
                self._fetch(digest)
            # Unpacked, where workers look for it.
            self.store.path(digest)
        except (StrettoError, OSError) as error:
            self._loop.call_soon(self._failed, digest, str(error))
        else:
            self._loop.call_soon(self._came, digest)

    def _fetch(self, digest: str) -> None:
        addresses = self._others()
        network = Network(addresses, self._key)
        try:
            self.store.fetch(network, digest, addresses)
        finally:
            network.close()

    def _others(self) -> list[str]:
        """Addresses of the supervisors of the other nodes."""
        paths = self._paths
        addresses = []
        for node in self._view.children(paths.nodes):
            for incarnation in self._view.children(paths.node_parent(node)) if node != self._node else ():
                path = paths.node(node, Incarnation(incarnation))
                data = self._view.data(path)
                if data is not None:
                    addresses.append(decode(data, NodeRegistration, path).address)
        if not addresses:
            raise StrettoError("no other node is there to fetch it from; start those that have it")
        return addresses

    def _came(self, digest: str) -> None:
        del self._missing[digest]
        self._here.add(digest)
        self._changed()

    def _failed(self, digest: str, why: str) -> None:
        wait_ms = self._missing[digest].delay_ms
        self._missing[digest] = self._missing[digest].next()
        log.warning("module_code_missing", digest=digest, why=why, again_in_ms=wait_ms)
        self._loop.call_after(wait_ms, self._again, digest)

    def _again(self, digest: str) -> None:
        if not self._is_closed:
            self._pool.submit(self._get, digest)

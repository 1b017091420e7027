"""Two supervisors of one name: a mistake that would run every worker of the node twice.

A node's registration says which data folder its supervisor has, by a random word in it. Whoever finds another
folder registered under its name, when it has registered itself, starts nothing until that one is gone. An
earlier life of the same supervisor has the same folder, and is no reason to wait.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from stretto.network.loop import Loop
from stretto.vocabulary.types import Incarnation
from stretto.zk.watches.daemon_session import DaemonSession, WatchedPath
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import NodeRegistration, ZnodeDamaged, decode

log = structlog.get_logger()


class Namesakes:
    """Other supervisors that have the name of this node; all methods run on the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        view: DaemonSession,
        paths: Paths,
        *,
        node: str,
        folder: str,
        changed: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._view = view
        self._paths = paths
        self._node = node
        self._folder = folder
        self._changed = changed
        self._is_started = False
        self._is_listed = False
        #: Registrations under this name, by path; the folder is None until it is read.
        self._registered: dict[str, tuple[WatchedPath, str | None]] = {}

    @property
    def are_none(self) -> bool:
        """Whether it is known that no other supervisor has this name."""
        folders = {folder for _, folder in self._registered.values()}
        return self._is_listed and folders <= {self._folder}

    def start(self) -> None:
        """Begin to look for other supervisors, once our own registration is there.

        So of two that start together, one at least sees the other.
        """
        if not self._is_started:
            self._is_started = True
            self._view.follow_children(
                self._paths.node_parent(self._node),
                lambda names: self._loop.call_soon(self._listed, names or []),
            )

    def _listed(self, names: list[str]) -> None:
        self._is_listed = True
        now = {self._paths.node(self._node, Incarnation(name)) for name in names}
        for path in self._registered.keys() - now:
            self._registered.pop(path)[0].stop()
        for path in sorted(now - self._registered.keys()):
            self._registered[path] = (self._follow(path), None)
        self._changed()

    def _follow(self, path: str) -> WatchedPath:
        return self._view.follow_data(path, lambda data: self._loop.call_soon(self._read, path, data))

    def _read(self, path: str, data: bytes | None) -> None:
        if path not in self._registered or data is None:
            return
        try:
            registration = decode(data, NodeRegistration, path)
        except ZnodeDamaged as damage:
            log.error("znode_damaged", path=damage.path, problem=damage.problem)
            return
        self._registered[path] = (self._registered[path][0], registration.folder)
        if registration.folder != self._folder:
            log.error(
                "node_name_taken",
                node=self._node,
                address=registration.address,
                advice="another supervisor has this name; stop one of them and give it its own --node",
            )
        self._changed()
